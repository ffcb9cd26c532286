"""Convert steps to tensordicts in the layout that torchrl's losses and replay buffers take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from plangym_like.errors import InputError
from plangym_like.vector.tree import named_parts

if TYPE_CHECKING:
    from tensordict import TensorDict

# Single numbers, which have a last axis of length 1 in torchrl.
_NUMBERS = {"reward", "done", "terminated", "truncated"}
_RESERVED = {"next", "mask"}


def as_transitions(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    batch_size: Sequence[int],
    mask: torch.Tensor | None = None,
) -> TensorDict:
    """Return a tensordict of steps, with the results of each step under ``"next"``.

    Parameters
    ----------
    before : mapping of str to tree of Tensor ``(*batch_size, ...)``
        The observation before each step, the step's action, and what the actor returned with it.
    after : mapping of str to tree of Tensor ``(*batch_size, ...)``
        The results of each step: the entries of ``"next"``.
    batch_size : sequence of int
        The numbers of environments and of steps, ``[B, T]``.
    mask : Tensor bool ``(*batch_size)``, optional
        Which steps took place. It becomes the entry ``"mask"``.
    """

    def entries(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: tree[..., None] if name in _NUMBERS and tree.ndim == 2 else _named(tree)
            for name, tree in fields.items()
        }

    # Imported here: the import takes more than a second, and rollout workers do not need it.
    from tensordict import TensorDict

    fields = {**entries(before), "next": entries(after)}
    if mask is not None:
        fields["mask"] = mask
    return TensorDict(fields, batch_size=batch_size)


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of all `parts` in one dict.

    Raises
    ------
    InputError
        Two entries have the same name, or one is called ``"next"`` or ``"mask"``.
    """
    entries: dict[str, Any] = {}
    for part in parts:
        if taken := part.keys() & (entries.keys() | _RESERVED):
            raise InputError(
                f"several entries of a tensordict would be called {sorted(taken)}, or these names "
                "are reserved: rename parts of the observation, the infos or the actor's output"
            )
        entries |= part
    return entries


def as_observation(tree: Any) -> dict[str, Any]:
    """Return an observation as a dict; any other `tree` becomes ``{"observation": tree}``."""
    return dict(tree) if isinstance(tree, Mapping) else {"observation": tree}


def _named(tree: Any) -> Any:
    parts = named_parts(tree)
    return tree if parts is None else {name: _named(part) for name, part in parts.items()}
