"""Trees of tensors: make, convert and move them.

>>> from plangym_like.vector.tree import Leaf, take
>>> image, speed = Leaf((2, 2), np.dtype("u1")), Leaf((), np.dtype(float))
>>> layout = tensor_layout({"image": image, "speed": speed})
>>> layout["image"]
Leaf(shape=(2, 2), dtype=torch.uint8)
>>> rows = empty(layout, (3,))
>>> take(rows, 1)["image"].tolist()
[[0, 0], [0, 0]]

The last functions convert steps to tensordicts in the layout that torchrl's losses and replay
buffers take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from plangym_like.errors import ActionError, InputError
from plangym_like.vector.tree import named_parts, tree_map

if TYPE_CHECKING:
    from tensordict import TensorDict


def tensor_layout(layout: Any) -> Any:
    """Convert a layout of arrays to a layout of tensors with the same shapes and number types.

    Raises
    ------
    InputError
        Torch has no dtype for the numbers in one of the arrays.
    """
    return tree_map(lambda leaf: leaf._replace(dtype=as_torch_dtype(leaf.dtype)), layout)


def as_torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the torch dtype that corresponds to a NumPy dtype.

    Raises
    ------
    InputError
        Torch has no corresponding dtype; it has none for text, objects and long doubles.
    """
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError) as error:
        raise InputError(
            f"torch has no dtype for NumPy's {dtype}: convert such values, or leave them out"
        ) from error


def empty(layout: Any, lead: Sequence[int]) -> Any:
    """Return a tree of tensors ``(*lead, *leaf.shape)`` filled with zeros."""
    return tree_map(lambda leaf: torch.zeros((*lead, *leaf.shape), dtype=leaf.dtype), layout)


def as_arrays(tree: Any) -> Any:
    """Return a tree of arrays that share memory with a tree of CPU tensors.

    A tensor whose dtype NumPy does not have, such as ``bfloat16``, stays a tensor, and an array
    stays an array.
    """
    return tree_map(_as_array, tree)


def _as_array(tensor: Any) -> Any:
    try:
        return tensor.numpy()
    except (AttributeError, TypeError):
        return tensor


def as_tensors(tree: Any) -> Any:
    """Return a tree of tensors that share memory with a tree of arrays; numbers become tensors."""
    return tree_map(torch.as_tensor, tree)


def clone_tree(tree: Any) -> Any:
    """Return the tree with a copy of each tensor."""
    return tree_map(torch.clone, tree)


def to_device(tree: Any, device: Any, *, non_blocking: bool = False) -> Any:
    """Return the tree with its tensors on `device`."""
    return tree_map(lambda tensor: tensor.to(device, non_blocking=non_blocking), tree)


# What actors and agents return is used only if it fits: it is never broadcast, and integers never
# overflow. Floats of actions are rounded to the dtype of the target; other wider floats do not fit.


def fitting(
    value: Any, shape: tuple[int, ...], dtype: torch.dtype, name: str, *, is_action: bool = True
) -> torch.Tensor:
    """Convert a tensor of the given shape to `dtype`, on the CPU, without gradients.

    If `dtype` is floating-point, values are rounded to it; floats that are wider must be actions.
    Otherwise, no value changes. `name` is that of `value` in error messages.

    Raises
    ------
    InputError
        `value` is not a tensor, its shape differs, `dtype` cannot hold its values, or `value` is
        floating-point and `dtype` is not; for actions, an `ActionError`.
    """
    error = ActionError if is_action else InputError
    if not isinstance(value, torch.Tensor):
        raise error(f"{name} must be a tensor {tuple(shape)} {dtype}, got {type(value).__name__}")
    if value.dtype is dtype and value.shape == shape:
        return value.detach().cpu()
    fits = torch.can_cast(value.dtype, dtype)
    if dtype.is_floating_point and not is_action:
        fits = torch.promote_types(value.dtype, dtype) is dtype
    if value.shape != shape or not fits:
        raise error(
            f"{name} must be a tensor {tuple(shape)} {dtype}, got {tuple(value.shape)} "
            f"{value.dtype}"
        )
    value = value.detach().cpu()
    cast: torch.Tensor = value.to(dtype)
    # NumPy compares the two dtypes by value. Casting back could hide a change of sign.
    if not dtype.is_floating_point and not np.array_equal(cast.numpy(), value.numpy()):
        raise error(
            f"{name} must be {dtype}, got {value.dtype} with values from {value.min()} to "
            f"{value.max()}, which {dtype} cannot hold"
        )
    return cast


def copy_fitting(rows: Any, value: Any, name: str, *, is_action: bool = True) -> None:
    """Convert each tensor of the tree `value` as `fitting` does, and copy it into the tree `rows`.

    Raises
    ------
    InputError
        The trees differ in structure, or a tensor does not fit; for actions, an `ActionError`.
    """
    if type(rows) is torch.Tensor:
        if type(value) is torch.Tensor and value.dtype is rows.dtype and value.shape == rows.shape:
            rows.copy_(value)
        else:
            rows.copy_(fitting(value, rows.shape, rows.dtype, name, is_action=is_action))
        return
    try:
        tree_map(partial(copy_fitting, name=name, is_action=is_action), rows, value)
    except (IndexError, KeyError, TypeError, ValueError) as mismatch:
        if isinstance(mismatch, InputError):
            raise
        text = f"{name} must have the structure of {rows!r:.200}, got {value!r:.200}"
        raise (ActionError if is_action else InputError)(text) from mismatch


def named_leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the leaves of a tree in order, each with its path; parts of a tuple are numbered.

    >>> list(named_leaves({"a": 1, "b": (2, 3)}))
    [(('a',), 1), (('b', '0'), 2), (('b', '1'), 3)]
    """
    if tree is None:
        return
    parts = named_parts(tree)
    if parts is None:
        yield path, tree
        return
    for key, part in parts.items():
        if isinstance(part, torch.Tensor):
            yield (*path, key), part
        else:
            yield from named_leaves(part, (*path, key))


# Tensordicts

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
            name: tree[..., None] if name in _NUMBERS and tree.ndim == 2 else as_named(tree)
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


def as_named(tree: Any) -> Any:
    """Return a tree as nested dicts with text as keys; parts of a tuple are numbered."""
    parts = named_parts(tree)
    return tree if parts is None else {name: as_named(part) for name, part in parts.items()}
