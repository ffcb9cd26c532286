"""`BaseActorModule`: a module that chooses actions from observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plangym_like.errors import InputError
from plangym_like.vector.tree import tree_map


class BaseActorModule(torch.nn.Module):
    """An actor: implement `forward`, and `reset` if episodes begin with a nonzero recurrent state.

    Except for `hx`, all inputs and outputs are trees of tensors ``(T, B, ...)``: time first, then
    the lanes. Do not change the inputs in place.

    Examples
    --------
    >>> class Linear(BaseActorModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(4, 2)
    ...     def forward(self, obs, act=None, rew=None, fin=None, *, hx=None):
    ...         logits = self.layer(obs)
    ...         return logits.argmax(-1), (), {"logits": logits}
    >>> actions, hx, info = Linear()(torch.zeros(5, 3, 4))  # 5 steps of 3 lanes
    >>> actions.shape, info["logits"].shape
    (torch.Size([5, 3]), torch.Size([5, 3, 2]))
    """

    def forward(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Choose actions for T observations of B lanes.

        Parameters
        ----------
        obs : tree of Tensor ``(T, B, ...)``
            The observations.
        act : tree of Tensor ``(T, B, ...)``
            The action before each observation.
        rew : Tensor float32 ``(T, B)``
            The rewards of these actions.
        fin : Tensor bool ``(T, B)``
            Whether these actions ended an episode. If so, `obs` is the first observation of the
            next episode, while `act` and `rew` belong to the one that ended. With T > 1, a
            recurrent actor must reset its state where `fin` is true.
        hx : tree of Tensor, or None
            The recurrent state before ``obs[0]``, with the lanes along the second dimension, as in
            torch's recurrent layers; ``None`` at the beginning.

        Returns
        -------
        actions : tree of Tensor ``(T, B, ...)``
        hx : tree of Tensor
            The recurrent state after ``obs[-1]``; ``()`` if there is none.
        info : dict of str to Tensor ``(T, B, ...)``
            Values to record, including ``"value"`` ``(T, B)`` if there is a critic.
        """
        raise NotImplementedError(f"{type(self).__name__} has to implement forward")

    @torch.no_grad()
    def reset(self, j: int | slice | Sequence[int] | torch.Tensor, hx: Any) -> Any:
        """Return a copy of `hx` with zeros for the lanes `j`, which begin a new episode."""

        def zeroed(state: torch.Tensor) -> torch.Tensor:
            state = state.clone()
            state[:, j] = 0
            return state

        return tree_map(zeroed, hx)

    def step(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Choose actions for one observation per lane (T = 1), without gradients."""
        # A collector has switched gradients off already, for all its steps.
        if not torch.is_grad_enabled():
            return self(obs, act, rew, fin, hx=hx)  # type: ignore[no-any-return]
        with torch.no_grad():
            return self(obs, act, rew, fin, hx=hx)  # type: ignore[no-any-return]

    @torch.no_grad()
    def value(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> torch.Tensor:
        """Return the critic's estimates ``(T, B)``, without gradients."""
        _, _, info = self(obs, act, rew, fin, hx=hx)
        value: torch.Tensor = info["value"]
        return value


def check_actor(actor: Any) -> None:
    """Raise `InputError` unless `actor` is a module."""
    if not isinstance(actor, torch.nn.Module):
        hint = "; make one of this class" * isinstance(actor, type)
        raise InputError(f"the actor must be a BaseActorModule, got {actor!r}{hint}")
