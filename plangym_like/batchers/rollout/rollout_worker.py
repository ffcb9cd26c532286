"""`RolloutWorker`: one actor's group of lanes, hosted in a worker."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plangym_like.batchers.engine.group_context import GroupContext
from plangym_like.batchers.engine.random_streams import GroupSeed, RandomStreams
from plangym_like.batchers.engine.shared_actor import ActorCopy
from plangym_like.batchers.rollout.actor_module import BaseActorModule
from plangym_like.batchers.rollout.collector import Collector
from plangym_like.batchers.rollout.env_infos import Extra
from plangym_like.batchers.rollout.fragment_buffer import (
    FragmentBuffer,
    FragmentOptions,
    without_empty_rows,
)
from plangym_like.batchers.start_states import StartStates
from plangym_like.vector.make_lanes import EnvSource, lanes_from
from plangym_like.vector.tree import take

# Names in the memory that all groups share.
ACTOR, BUFFERS = "actor", "buffers"


@dataclass(frozen=True)
class RolloutPlan:
    """The options that all groups of a rollout share, and the seeds for each group."""

    factory: EnvSource
    actor: BaseActorModule
    options: FragmentOptions
    n_per_actor: int
    seeds: list[GroupSeed]
    states: StartStates | None
    vectorise: bool
    close: bool


class RolloutWorker:
    """Fills buffers with fragments, on request.

    A request contains only the index of a buffer. Steps and weights are exchanged through
    `GroupContext.memory`.
    """

    def __init__(self, plan: RolloutPlan, context: GroupContext) -> None:
        seed, states, count = plan.seeds[context.group], plan.states, plan.n_per_actor
        streams = RandomStreams(seed.words, own_process=context.own_process)
        with streams.in_place():
            self._lanes = lanes_from(plan.factory, count, vectorise=plan.vectorise)
        self._plan = plan
        self._context = context
        self._buffers: dict[int, FragmentBuffer] = {}
        # A copy, since one process may host several groups and the owner's actor.
        self._actor = copy.deepcopy(plan.actor)
        self._copy: ActorCopy | None = None
        if states is not None:
            states = states[context.group * count : (context.group + 1) * count]
        self._collector = Collector(
            self._lanes,
            self._actor,
            plan.options,
            seed=seed,
            streams=streams,
            states=states,
            beat=context.beat,
            own_process=context.own_process,
        )

    def describe(self) -> Any:
        """Return the layout of a buffer."""
        return self._collector.describe()

    def collect(self, buffer: int) -> Sequence[Extra]:
        """Collect the next fragment with the newest weights, and write it into `buffer`.

        Return the values in the environments' infos that fit no column of the buffer.
        """
        memory = self._context.memory
        if self._copy is None:
            self._copy = ActorCopy(self._actor, memory[ACTOR])
        at = self._context.local_index(BUFFERS, buffer)
        if at not in self._buffers:
            self._buffers[at] = FragmentBuffer(take(memory[BUFFERS], at))
        extras = self._collector.collect(self._buffers[at], self._copy.refresh())
        self._context.publish(BUFFERS, buffer, without_empty_rows)
        return extras

    def close(self) -> None:
        """Close the environments, unless the user gave ``close=False``."""
        if self._plan.close:
            self._lanes.close()
