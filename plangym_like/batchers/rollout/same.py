"""Rollouts in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from plangym_like.batchers.engine.make_lanes import make_lanes
from plangym_like.batchers.engine.nests import empty
from plangym_like.batchers.engine.seeding import RandomStreams, seed_groups, whole_seeds
from plangym_like.batchers.rollout.actor_module import BaseActorModule
from plangym_like.batchers.rollout.collector import Collector
from plangym_like.batchers.rollout.env_infos import EnvInfos
from plangym_like.batchers.rollout.fragment import Fragment
from plangym_like.batchers.rollout.iteration import RolloutIterator
from plangym_like.batchers.rollout.record import Record, as_fragment, join_copies, join_views
from plangym_like.errors import InputError


def rollout(
    envs: Sequence[gymnasium.Env[Any, Any]],
    actor: BaseActorModule,
    n_steps: int = 51,
    *,
    sticky: bool = False,
    device: torch.device | str | None = None,
    seed: int | Sequence[int] | None = None,
    copy: bool = True,
    keep_final: bool = True,
    infos: bool = True,
    vectorise: bool = True,
) -> SameRollout:
    """Step `envs` with `actor` itself, in this process.

    Parameters
    ----------
    envs : sequence of gymnasium.Env
        They stay the caller's to close.
    actor : BaseActorModule
        Its weights of the moment are used.
    n_steps : int
        T.
    sticky : bool
        Leave a lane whose episode has ended frozen for the rest of the fragment.
    device : torch.device, optional
        Where the actor is, and where fragments are delivered.
    seed : int or sequence of int, optional
        An int seeds environments and noise. A sequence, one a lane, seeds each environment with
        its own. ``None`` leaves generators as they are: what was seeded before goes on.
    copy : bool
        Whether a fragment is the caller's to keep; else the next one overwrites it.
    keep_final : bool
        Whether fragments hold the final observations of episodes.
    infos : bool
        Whether fragments hold the numbers in the environments' infos. To learn which there are,
        the first environment is reset and stepped once at the start.
    vectorise : bool
        Whether environments that have a vectorised form are stepped in it.

    Returns
    -------
    iterator of Fragment
        And a context manager. After a Ctrl-C it may be used on: all environments begin new
        episodes then.
    """
    return SameRollout(
        envs,
        actor,
        n_steps,
        sticky=sticky,
        device=device,
        seed=seed,
        copy=copy,
        keep_final=keep_final,
        infos=infos,
        vectorise=vectorise,
    )


class SameRollout(RolloutIterator):
    """The iterator; see `rollout`."""

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[Any, Any]],
        actor: BaseActorModule,
        n_steps: int,
        *,
        sticky: bool,
        device: torch.device | str | None,
        seed: int | Sequence[int] | None,
        copy: bool,
        keep_final: bool,
        infos: bool,
        vectorise: bool,
    ) -> None:
        super().__init__()
        if n_steps < 1:
            raise InputError(f"a fragment has at least 1 step, got n_steps={n_steps}")
        lanes = make_lanes(envs, vectorise=vectorise)
        lane_seeds, words = _seeds(seed, lanes.num_lanes)
        self._device = torch.device("cpu" if device is None else device)
        self._actor = actor
        self._collector = Collector(
            lanes,
            actor,
            n_steps,
            lane_seeds=lane_seeds,
            streams=RandomStreams(words),
            sticky=sticky,
            keep_final=keep_final,
            infos=infos,
            device=None if self._device.type == "cpu" else self._device,
        )
        self._options: dict[str, Any] = {
            "sticky": sticky,
            "keep_final": keep_final,
            "join": join_copies if copy else join_views,
        }
        self._record: Record | None = None
        self._env_infos = EnvInfos()
        self._weights = _fingerprint(actor)

    def _next(self) -> Fragment:
        if self._record is None:
            layout = self._collector.describe()
            self._record = Record(empty(layout, ()))
        weights = _fingerprint(self._actor)
        if weights != self._weights:
            self._weights = weights
            self.stats.version += 1
        extras = self._collector.collect(self._record, self.stats.version)
        fragment = as_fragment([self._record.memory], [extras], self._env_infos, **self._options)
        return fragment if self._device.type == "cpu" else fragment.to(self._device)

    def _close(self) -> None:
        self._record = None


def _seeds(
    seed: int | Sequence[int] | None, num_lanes: int
) -> tuple[Sequence[int | None] | None, Sequence[int] | None]:
    """Return the seeds of the environments and the words of the noise."""
    if seed is None:
        return None, None
    (group,) = seed_groups(seed, [num_lanes])
    if np.ndim(seed) == 0:
        return group.lanes, group.words
    lanes = whole_seeds(seed)  # type: ignore[arg-type]
    if len(lanes) != num_lanes:
        raise InputError(f"{len(lanes)} seeds were given for {num_lanes} environments")
    return lanes, group.words


def _fingerprint(actor: torch.nn.Module) -> list[tuple[int, int]]:
    """Return what changes when the weights do."""
    weights = [*actor.parameters(), *actor.buffers()]
    return [(weight.data_ptr(), weight._version) for weight in weights]
