"""The environment that an actor of a cluster hosts, stepped by processes on its node."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from plangym_like.batch.arrays import single_steps
from plangym_like.cluster.chunks import ChunkRequest, ChunkResult
from plangym_like.execution.executor import SubmitOptions
from plangym_like.execution.known_ids import know, known_ids
from plangym_like.execution.placement import signature
from plangym_like.execution.short_episode import ShortEpisode, episode_given
from plangym_like.processes.remote_errors import is_remote, pack_exception
from plangym_like.processes.wire import dumps, dumps_by_value, loads
from plangym_like.states.rows import Row, adopt_session_key, session_key

# Counters that the driver updates itself.
_COUNTED_BY_DRIVER = {"batches", "rows", "rows_sent"}


@dataclass(frozen=True, slots=True)
class Readiness:
    """An actor's report that its environment is ready, or the error that was raised instead."""

    pid: int
    signature: int = 0
    fingerprint_fields: str = ""
    error: bytes | None = None


class NodeEnv:
    """Steps chunks of batches in processes on this node.

    Rows never run in this process itself, so a row that crashes cannot end the connection to the
    cluster.
    """

    def __init__(self) -> None:
        self._env: Any = None
        self._reported: dict[str, float] = {}

    def make(self, recipe: bytes) -> Readiness:
        """Make the environment and its processes from `recipe`, a result of `write_recipe`."""
        try:
            key, packed = loads(recipe)
            adopt_session_key(key)
            construct, ids, expected = loads(packed)
            know(ids)
            with episode_given(expected):
                self._env = construct()
            self._env.executor.pool.wait_ready()
            layout = self._env.layout
            return Readiness(os.getpid(), signature(layout), layout.format.fingerprint_fields)
        except Exception as error:
            return Readiness(os.getpid(), error=pack_exception(error, skip_frames=1))

    def run(self, request: ChunkRequest, states: Row) -> ChunkResult:
        """Step a chunk; exceptions are not raised, but returned in the result."""
        env = self._env
        begun = time.perf_counter()
        chunk = ChunkResult(steps=single_steps(request.inputs, 0, request.inputs.count))
        try:
            result = env.executor.submit(
                request.with_states(states),
                SubmitOptions(
                    states=request.wants_states,
                    observations=request.wants_observations,
                    masked=request.masked,
                ),
            )
            chunk.take(env.layout, request, result)
        except Exception as error:
            chunk.error = pack_exception(error, skip_frames=1)
            chunk.pool_errors = set() if is_remote(error) else {-1}
        chunk.seconds = time.perf_counter() - begun
        chunk.counts = self._news()
        return chunk

    def _news(self) -> dict[str, float]:
        """Return by how much each counter has increased since the last call."""
        tally, reported = self._env.executor.tally, self._reported
        names = {item.name for item in fields(tally)} - _COUNTED_BY_DRIVER
        self._reported = {name: getattr(tally, name) for name in names}
        news = {name: now - reported.get(name, 0) for name, now in self._reported.items()}
        return {name: more for name, more in news.items() if more}

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()


def write_recipe(
    construct: Callable[[], Any], name: Any, expected: ShortEpisode | None = None
) -> bytes:
    """Pickle `construct`, which a `NodeEnv` calls to make the environment `name`.

    The processes of the node have to repeat the short episode `expected`, if it is given.
    """
    packed = dumps_by_value((construct, known_ids(name), expected))
    return dumps((session_key(), packed))
