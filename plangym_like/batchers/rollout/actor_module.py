"""What collects rollouts: a module that answers observations with actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plangym_like.batchers.engine.nests import map_nest


class BaseActorModule(torch.nn.Module):
    """An actor: implement `forward`, and where the start is not zero, `reset`.

    All inputs and outputs are nests of tensors ``(T, B, ...)``: time first, then the lanes. None of
    them may be changed in place.
    """

    def forward(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Answer T observations of B lanes.

        Parameters
        ----------
        obs : nest of Tensor ``(T, B, ...)``
            What is observed now.
        act : nest of Tensor ``(T, B, ...)``
            The action before it.
        rew : Tensor float32 ``(T, B)``
            What that action earned.
        fin : Tensor bool ``(T, B)``
            Whether it ended an episode, so that `obs` is the first of a new one, and `act` and
            `rew` belong to the old. A recurrent actor that is given T > 1 begins anew where it is
            true.
        hx : nest of Tensor, or None
            The recurrent state with which ``obs[0]`` is met, lanes along the second dimension, as
            in torch's recurrent layers; ``None``: from the beginning.

        Returns
        -------
        actions : nest of Tensor ``(T, B, ...)``
        hx : nest of Tensor
            The recurrent state after ``obs[-1]``; ``()`` for none.
        info : dict of str to Tensor ``(T, B, ...)``
            ``"value"`` ``(T, B)``, where there is a critic, and whatever shall be recorded.
        """
        raise NotImplementedError(f"{type(self).__name__} has to implement forward")

    @torch.no_grad()
    def reset(self, j: int | slice | Sequence[int] | torch.Tensor, hx: Any) -> Any:
        """Return a copy of `hx` in which the lanes `j` are at the beginning: zero."""

        def zeroed(state: torch.Tensor) -> torch.Tensor:
            state = state.clone()
            state[:, j] = 0
            return state

        return map_nest(zeroed, hx)

    def step(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Answer one observation a lane (T = 1), without gradients."""
        # A collector has switched gradients off already, for all its steps.
        if not torch.is_grad_enabled():
            return self(obs, act, rew, fin, hx=hx)  # type: ignore[no-any-return]
        with torch.no_grad():
            return self(obs, act, rew, fin, hx=hx)  # type: ignore[no-any-return]

    @torch.no_grad()
    def value(
        self, obs: Any, act: Any = None, rew: Any = None, fin: Any = None, *, hx: Any = None
    ) -> torch.Tensor:
        """Return the critic's estimates ``(T, B)`` of what is to come, without gradients."""
        _, _, info = self(obs, act, rew, fin, hx=hx)
        value: torch.Tensor = info["value"]
        return value
