"""A fragment: T steps of B lanes, with what is needed to learn from them."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch

from plangym_like.batchers.engine.nests import map_nest, take, to_device
from plangym_like.errors import InputError


class State(NamedTuple):
    """What happened: ``act[t]`` answers ``obs[t]``, earns ``rew[t]`` and leads to ``obs[t + 1]``.

    Attributes
    ----------
    obs : nest of Tensor ``(T + 1, B, ...)``
        Where ``fin[t]``, ``obs[t + 1]`` is the first observation of the next episode.
    act : nest of Tensor ``(T, B, ...)``
    rew : Tensor float32 ``(T, B)``
    fin : Tensor bool ``(T, B)``
        Whether the step ended the episode: ``terminated | truncated``.
    terminated, truncated : Tensor bool ``(T, B)``
    stepno : Tensor int64 ``(T, B)``
        How many steps of the episode came before this one.
    """

    obs: Any
    act: Any
    rew: torch.Tensor
    fin: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    stepno: torch.Tensor


class Inputs(NamedTuple):
    """What the actor was given, aligned: ``actor(*inputs, hx=fragment.hx)`` plays it again.

    ``obs[t]``, and the action, reward and end of the step before it. As for `Fragment.before`, the
    three alone are those of the step before the fragment.
    """

    obs: Any
    act: Any
    rew: torch.Tensor
    fin: torch.Tensor


class Final(NamedTuple):
    """The last observations of the K episodes that ended: what ``state.obs`` has no room for.

    Attributes
    ----------
    t, lane : Tensor int64 ``(K,)``
        The episode of ``lane[k]`` ended with step ``t[k]``.
    obs : nest of Tensor ``(K, ...)``
    value : Tensor ``(K,)``
        The critic's estimate of what would have come after `obs`, by the actor that collected; 0
        where the episode terminated, and where the actor has no critic.
    hx : nest of Tensor ``(..., K, ...)``
        The recurrent state with which `obs` would have been met, lanes along the second dimension.
    """

    t: torch.Tensor
    lane: torch.Tensor
    obs: Any
    value: torch.Tensor
    hx: Any


class Fragment(NamedTuple):
    """T steps of B lanes.

    Attributes
    ----------
    state : State
    actor : dict of str to nest of Tensor ``(T, B, ...)``
        The actor's infos: ``actor[key][t]`` came with ``state.act[t]``.
    env : dict of str to nest of Tensor ``(T, B, ...)``
        The numbers in the environments' infos; 0 where a step's info has no number under the key.
        If a number does not fit the dtype of those before it, the dtype is a wider one from that
        fragment on. A key that comes late is there from the fragment on in which it came first.
    bootstrap : Tensor ``(1, B)``
        The critic's estimate at ``state.obs[T]``; float32 0 where the actor has no critic.
    hx : nest of Tensor
        The recurrent state with which ``state.obs[0]`` was met.
    version : Tensor int64 ``(B,)``
        Which weights each lane's actor had: how often they had changed since the beginning.
    before : Inputs
        ``act``, ``rew`` and ``fin`` ``(1, B, ...)`` of the step before the fragment; its ``obs`` is
        ``None``. At the very beginning ``fin`` is true and the others are 0.
    final : Final or None
        ``None`` where it was not asked for.
    sticky : bool
        Whether lanes that ended stayed frozen for the rest of the fragment.
    """

    state: State
    actor: dict[str, Any]
    env: dict[str, Any]
    bootstrap: torch.Tensor
    hx: Any
    version: torch.Tensor
    before: Inputs
    final: Final | None
    sticky: bool

    def inputs(self) -> Inputs:
        """Return what the actor was given at each step, ``(T, B, ...)``."""

        def behind(first: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
            return torch.cat((first, rest[:-1]))

        state, before = self.state, self.before
        return Inputs(
            take(state.obs, slice(None, -1)),
            map_nest(behind, before.act, state.act),
            behind(before.rew, state.rew),
            behind(before.fin, state.fin),
        )

    def rewards(self, gamma: float) -> torch.Tensor:
        """Return ``state.rew`` with what truncated episodes would still have earned, ``(T, B)``.

        An episode that was cut off would have gone on. To the reward of its last step is added
        `gamma` times ``final.value``, so that returns and advantages of these rewards are right
        where ``fin`` is true: they need no other bootstrap than that of the fragment's end.

        Raises
        ------
        InputError
            Episodes were truncated, but there is no critic, or `final` was not recorded.
        """
        rewards = self.state.rew
        if not bool((self.state.truncated & ~self.state.terminated & ~self.frozen).any()):
            return rewards.clone()
        if self.final is None or "value" not in self.actor:
            raise InputError(
                "episodes were truncated, and what they would have earned is unknown: that "
                "takes keep_final=True and an actor whose info has a 'value'"
            )
        value = self.final.value
        rewards = rewards.to(torch.promote_types(rewards.dtype, value.dtype), copy=True)
        trailing = (1,) * (value.ndim - 1)
        rewards = rewards.reshape(*rewards.shape, *trailing).repeat(1, 1, *value.shape[1:])
        rewards[self.final.t, self.final.lane] += gamma * value
        return rewards

    @property
    def frozen(self) -> torch.Tensor:
        """Tensor bool ``(T, B)``: steps that no environment took, its episode having ended.

        There are none unless the fragment is `sticky`.
        """
        frozen = torch.zeros_like(self.state.fin)
        if self.sticky:
            frozen[1:] = self.state.fin[:-1]
        return frozen

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        """Return the fragment on `device`."""
        moved: Self = to_device(self._replace(sticky=None), device, non_blocking=non_blocking)  # type: ignore[arg-type]
        return moved._replace(sticky=self.sticky)
