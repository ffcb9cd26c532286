"""`NodeActor`: the actor that Ray runs on a node, and the environment that it hosts there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any

from plangym_like.batch.arrays import Inputs, SubmitOptions
from plangym_like.batch.layout import Layout
from plangym_like.errors import StateMismatchError
from plangym_like.execution.known_ids import know, known_ids
from plangym_like.processes import start_methods
from plangym_like.processes.child import serve_another_process
from plangym_like.processes.remote_errors import pack_exception
from plangym_like.processes.wire import dumps, dumps_by_value, loads
from plangym_like.states.rows import Row, adopt_session_key, session_key

# The number of calls that Ray may run at the same time: one steps a chunk, one sends the results of
# another chunk, and one closes.
CONCURRENCY = 3
# Counters that the driver updates itself.
_COUNTED_BY_DRIVER = {"rows_sent"}


@dataclass(slots=True)
class ChunkResult:
    """What an actor returns for a chunk of rows.

    Attributes
    ----------
    result : BatchTransition, BatchStep, Rollout or None
        The result of the rows, without the exceptions of failed rows.
    error : bytes or None
        The packed exception that was raised instead of a result.
    failed : dict of int to bytes
        The packed exceptions of failed rows, by row of the chunk.
    counts : dict of str to float
        By how much each counter of the actor's workers has increased.
    """

    result: Any = None
    error: bytes | None = None
    failed: dict[int, bytes] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)


class NodeActor:
    """Hosts an environment whose batches are stepped by processes on this node.

    Rows never run in this process itself, so a row that crashes cannot end the connection to the
    cluster. One thread makes the environment and steps all chunks, because some simulators belong
    to the thread that made them; Ray's own threads send results meanwhile. The fork server starts
    while this process imports the modules that the environment needs.

    Parameters
    ----------
    context : dict
        The arguments of `enter_worker_context`.
    recipe : bytes
        The result of `write_recipe`.
    """

    def __init__(self, context: dict[str, Any], recipe: bytes) -> None:
        enter_worker_context(**context)
        start_methods.warm_up(["plangym_like.execution.row_server"])
        self._recipe = recipe
        self._thread = ThreadPoolExecutor(1, "plangym_like")
        self._env: Any = None
        self._reported: dict[str, float] = {}

    def make(self) -> tuple[int, bytes | None]:
        """Make the environment and its processes; return the process id, and any packed error."""
        try:
            self._thread.submit(self._make).result()
        except Exception as error:
            return os.getpid(), pack_exception(error, skip_frames=1)
        return os.getpid(), None

    def _make(self) -> None:
        key, packed = loads(self._recipe)
        adopt_session_key(key)
        construct, ids, number, fields_there = loads(packed)
        know(ids)
        self._env = construct()
        self._env.executor.pool.wait_ready()
        layout = self._env.layout
        if layout.signature != number:
            fields_here = layout.format.fingerprint_fields
            raise StateMismatchError(
                "the environment on another machine differs from the driver's; install the same "
                f"versions of its packages on both: expected {fields_there}, got {fields_here}",
                fields_there,
                fields_here,
            )

    def run(self, inputs: Inputs, states: Row, options: SubmitOptions) -> ChunkResult:
        """Step a chunk, whose `inputs` were sent without `states`.

        Exceptions are not raised, but returned in the result.
        """
        inputs.states = states
        return self._thread.submit(self._run, inputs, options).result()

    def _run(self, inputs: Inputs, options: SubmitOptions) -> ChunkResult:
        chunk = ChunkResult()
        try:
            chunk.result = self._env.executor.submit(inputs, options)
            errors = chunk.result.infos.errors
            for row in list(errors):
                chunk.failed[row] = pack_exception(errors.pop(row), skip_frames=1)
        except Exception as error:
            chunk.error = pack_exception(error, skip_frames=1)
        stats = self._env.executor.stats
        names = {item.name for item in fields(stats)} - _COUNTED_BY_DRIVER
        for name in names:
            now = getattr(stats, name)
            if more := now - self._reported.get(name, 0):
                chunk.counts[name], self._reported[name] = more, now
        return chunk

    def close(self) -> None:
        """Close the environment, once the chunk that is being stepped is done."""
        if self._env is not None:
            self._thread.submit(self._env.close).result()


def write_recipe(construct: Callable[[], Any], name: Any, layout: Layout) -> bytes:
    """Pickle `construct`, which a `NodeActor` calls to make the environment `name`.

    Its batches must have the given layout.
    """
    same = layout.signature, layout.format.fingerprint_fields
    return dumps((session_key(), dumps_by_value((construct, known_ids(name), *same))))


def worker_context() -> dict[str, Any]:
    """Return this program's import path and thread settings for `enter_worker_context`.

    Actors can import the same modules as this process if the folders exist on their machine.
    """
    return {
        "path": [entry for entry in sys.path if type(entry) is str and entry],
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def enter_worker_context(*, path: list[str], threads: str | None) -> None:
    """Give this process the program's import path and thread settings."""
    serve_another_process()
    sys.path += [entry for entry in path if entry not in sys.path and os.path.exists(entry)]
    # Ray sets the number of threads to the actor's cores, but here each worker has one core.
    if threads is None:
        os.environ.pop("OMP_NUM_THREADS", None)
    else:
        os.environ["OMP_NUM_THREADS"] = threads
