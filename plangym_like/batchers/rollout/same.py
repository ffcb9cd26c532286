"""`same.rollout`: rollouts in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from plangym_like.batchers.randomness import RandomStreams, seed_groups
from plangym_like.batchers.rollout.actor import BaseActorModule, check_actor
from plangym_like.batchers.rollout.collector import Collector, RolloutIterator
from plangym_like.batchers.rollout.fragment import Fragment, FragmentOptions
from plangym_like.errors import InputError
from plangym_like.support.arguments import as_count
from plangym_like.vector.lanes import whole_seeds
from plangym_like.vector.make_lanes import make_lanes
from plangym_like.vector.start_states import StartStates


def rollout(
    envs: Sequence[gymnasium.Env[Any, Any]],
    actor: BaseActorModule,
    n_steps: int = 51,
    *,
    sticky: bool = False,
    device: torch.device | str | None = None,
    seed: int | Sequence[int] | None = None,
    states: Any = None,
    keep_final: bool = True,
    infos: bool = True,
) -> SameRollout:
    """Collect fragments from `envs` in this process, with `actor` itself instead of copies.

    Parameters
    ----------
    envs : sequence of gymnasium.Env
        The caller closes them.
    actor : BaseActorModule
        Every step uses its current weights.
    n_steps : int
        The number of steps in a fragment, T.
    sticky : bool
        When an episode ends, freeze its lane for the rest of the fragment.
    device : torch.device, optional
        The device of the actor, and of the fragments.
    seed : int or sequence of int, optional
        An int seeds the environments and the actor. A sequence holds one seed for each environment.
        ``None`` leaves all random generators as they are.
    states : tuple, optional
        The states that the first episodes begin in, as a tuple ``(rows, obs)`` of state rows, uint8
        ``(B, state_nbytes)``, and their observations.
    keep_final : bool
        Keep the final observations of episodes.
    infos : bool
        Keep the numbers in the environments' infos.

    Returns
    -------
    iterator of Fragment
        Also a context manager. It can still be used after a Ctrl-C; all environments then begin
        new episodes.

    Examples
    --------
    >>> class Left(BaseActorModule):
    ...     def forward(self, obs, act=None, rew=None, fin=None, *, hx=None):
    ...         return torch.zeros(obs.shape[:2], dtype=torch.int64), (), {}
    >>> envs = [gymnasium.make("CartPole-v1") for _ in range(3)]
    >>> with rollout(envs, Left(), n_steps=5, seed=0) as fragments:
    ...     fragment = next(fragments)
    >>> fragment.state.rew.shape, fragments.stats.steps
    (torch.Size([5, 3]), 15)
    """
    n_steps = as_count("n_steps", n_steps)
    check_actor(actor)
    lanes = make_lanes(envs)
    group = None if seed is None else seed_groups(seed, [lanes.num_lanes])[0]
    if group is not None and not isinstance(seed, int | np.integer):
        group = group._replace(lanes=tuple(whole_seeds(seed)))  # type: ignore[arg-type]
        given = len(group.lanes)
        if given != lanes.num_lanes:
            raise InputError(f"{given} seeds were given for {lanes.num_lanes} environments")
    starts = StartStates.of(states)
    if starts is not None:
        starts.check(lanes.num_lanes)
    target = torch.device("cpu" if device is None else device)
    options = FragmentOptions(n_steps, sticky=sticky, keep_final=keep_final, infos=infos)
    collector = Collector(
        lanes,
        actor,
        options,
        seed=group,
        streams=RandomStreams(None if group is None else group.words),
        states=starts,
        device=None if target.type == "cpu" else target,
    )
    return SameRollout(actor, collector, options, target)


class SameRollout(RolloutIterator):
    """The iterator that `rollout` returns."""

    def __init__(
        self,
        actor: BaseActorModule,
        collector: Collector,
        options: FragmentOptions,
        device: torch.device,
    ) -> None:
        super().__init__(actor, options, device)
        self._collector = collector

    def _next(self) -> Fragment:
        self._weights.update()
        self.stats.version = self._weights.version
        return self._assemble([self._collector.collect(self.stats.version)])

    def _close(self, timeout: float) -> None:
        """The caller closes the environments."""
