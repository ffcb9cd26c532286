"""One actor's group of lanes, as a crew hosts it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from plangym_like.batchers.engine.make_lanes import make_envs, make_lanes
from plangym_like.batchers.engine.nests import take
from plangym_like.batchers.engine.residents import Workplace
from plangym_like.batchers.engine.seeding import GroupSeed, RandomStreams
from plangym_like.batchers.engine.shared_actor import ActorCopy
from plangym_like.batchers.rollout.actor_module import BaseActorModule
from plangym_like.batchers.rollout.collector import Collector
from plangym_like.batchers.rollout.env_infos import Extra
from plangym_like.batchers.rollout.record import Record, without_empty_rows

# The names of what is shared with all groups.
ACTOR, BUFFERS = "actor", "buffers"


@dataclass
class GroupPlan:
    """What all groups of one rollout have in common, and the seeds of each."""

    factory: Callable[[], Any]
    actor: BaseActorModule
    n_steps: int
    n_per_actor: int
    seeds: list[GroupSeed]
    sticky: bool
    keep_final: bool
    infos: bool
    vectorise: bool
    close: bool

    def __call__(self, place: Workplace) -> Group:
        """Return the group that `place` is for."""
        return Group(self, place)


class Group:
    """Fills buffers with fragments, on request.

    Messages say which buffer, and nothing else: steps go to the pool's memory, weights come from
    what is shared.
    """

    def __init__(self, plan: GroupPlan, place: Workplace) -> None:
        seed = plan.seeds[place.group]
        streams = RandomStreams(seed.words, alone=place.alone)
        with streams.in_place():
            envs = make_envs(plan.factory, plan.n_per_actor)
        self._lanes = make_lanes(envs, vectorise=plan.vectorise)
        self._plan = plan
        self._place = place
        self._records: dict[int, Record] = {}
        # Several groups may live in one process, and the owner's actor in this one.
        self._actor = copy.deepcopy(plan.actor)
        self._copy: ActorCopy | None = None
        self._collector = Collector(
            self._lanes,
            self._actor,
            plan.n_steps,
            lane_seeds=seed.lanes,
            streams=streams,
            sticky=plan.sticky,
            keep_final=plan.keep_final,
            infos=plan.infos,
            beat=place.beat,
            alone=place.alone,
        )

    def describe(self) -> Any:
        """Return the layout of a buffer."""
        return self._collector.describe()

    def collect(self, buffer: int) -> Sequence[Extra]:
        """Write the next fragment into `buffer`, by an actor with the newest weights.

        Return the values in the environments' infos for which the buffer has no column.
        """
        if self._copy is None:
            self._copy = ActorCopy(self._actor, self._place.memory[ACTOR])
        at = self._place.place_of(BUFFERS, buffer)
        if at not in self._records:
            self._records[at] = Record(take(self._place.memory[BUFFERS], at))
        extras = self._collector.collect(self._records[at], self._copy.refresh())
        self._place.hand_in(BUFFERS, buffer, without_empty_rows)
        return extras

    def close(self) -> None:
        """Close the environments, if that is wanted."""
        if self._plan.close:
            self._lanes.close()
