"""What an actor of a cluster hosts: a `ParallelEnv` on its node."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from plangym_like.cluster.chunk import Harvest, Order
from plangym_like.cluster.near_memory import GivenPools, NearOrder, Proof
from plangym_like.execution.parallel_env import ParallelEnv
from plangym_like.execution.placement import place, signature
from plangym_like.execution.registered import know, spec_of
from plangym_like.processes.messages import dumps, dumps_by_value, loads
from plangym_like.processes.remote_errors import is_remote, pack_exception
from plangym_like.states import Row, adopt_session_key, session_key
from plangym_like.stats import Stats


@dataclass(frozen=True, slots=True)
class Greeting:
    """What an actor says of itself once its environment stands, or the error instead."""

    pid: int
    signature: int = 0
    meaning: str = ""
    near: bool = False
    error: bytes | None = None


class NodeEnv:
    """Steps chunks of batches in processes of this node.

    Rows never run in this process itself, so none of them can take the connection to the cluster
    with it.

    Parameters
    ----------
    recipe : bytes
        What `write_recipe` wrote.
    """

    def __init__(self, recipe: bytes) -> None:
        self._recipe = recipe
        self._env: ParallelEnv | None = None
        self._told: dict[str, int] = {}
        self._given = GivenPools()

    def greet(self, proof: Proof) -> Greeting:
        """Make the environment and its processes."""
        try:
            key, packed = loads(self._recipe)
            adopt_session_key(key)
            construct, options, spec = loads(packed)
            know(spec)
            self._env = ParallelEnv(construct, isolate=True, **options)
            workers = self._env.batch_env
            for index in range(len(workers)):
                workers[index].wait_ready()
            layout = self._env.plan_env.layout
            return Greeting(os.getpid(), signature(layout), layout.format.meaning, proof.holds())
        except Exception as error:
            return Greeting(os.getpid(), error=pack_exception(error, skip_frames=1))

    def run(self, order: Order, states: Row | None) -> Harvest:
        """Step a chunk; what stepping it raises is part of the harvest."""
        env = self._env
        assert env is not None
        begun = time.perf_counter()
        harvest = Harvest(0.0, {})
        try:
            if order.near is not None:
                self._run_near(env, order, order.near, harvest)
            else:
                assert states is not None
                result = env.batch_env.run(
                    order.inputs(states),
                    states=order.wants_states,
                    observations=order.wants_observations,
                    blocking=True,
                    masked=order.masked,
                )
                harvest.take(env.plan_env.layout, order, result)
        except Exception as error:
            harvest.error = pack_exception(error, skip_frames=1)
            harvest.verdicts = set() if is_remote(error) else {-1}
        harvest.seconds = time.perf_counter() - begun
        # What workers say once their rows are seen to be done goes along with the next chunk.
        tally = env.batch_env.tally
        harvest.counts, harvest.phases = self._news(tally), tally.clock.take()
        return harvest

    def _run_near(self, env: ParallelEnv, order: Order, near: NearOrder, harvest: Harvest) -> None:
        """Step a chunk where it lies in memory that its sender and the workers here share."""
        layout, workers = env.plan_env.layout, env.batch_env
        arrays = self._given.offer(near)
        result = workers.run(
            place(layout, near.shape, arrays, order.actions).inputs,
            states=order.wants_states,
            observations=order.wants_observations,
            blocking=True,
            masked=order.masked,
            pools=self._given,
        )
        harvest.take_infos(layout, order, result)
        for pool in self._given.values():
            pool.forget(lambda number: any(number in lane.known for lane in workers.lanes))

    def _news(self, tally: Stats) -> dict[str, int]:
        """Return by how much the counters have grown since the last time."""
        names = {item.name for item in fields(tally)} - _TOLD_OTHERWISE
        counts = {name: getattr(tally, name) for name in names}
        news = {name: count - self._told.get(name, 0) for name, count in counts.items()}
        self._told = counts
        return {name: count for name, count in news.items() if count}

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()


# The side that deals out rows counts these itself, but for the clock, whose seconds go along.
_TOLD_OTHERWISE = {"batches", "rows", "rows_sent", "clock"}


def write_recipe(construct: Callable[..., Any], options: dict[str, Any]) -> bytes:
    """Return what a `NodeEnv` needs to make ``construct(**options)`` on its node."""
    packed = dumps_by_value((construct, options, spec_of(options.get("name"))))
    return dumps((session_key(), packed))
