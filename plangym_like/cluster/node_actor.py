"""`NodeActor`: an actor that Ray runs on a node. This module is quick to import."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from plangym_like.processes import fork_server
from plangym_like.processes.child import serve_another_process

if TYPE_CHECKING:
    from plangym_like.cluster.chunks import ChunkRequest, ChunkResult
    from plangym_like.cluster.node_env import NodeEnv, Readiness
    from plangym_like.states.rows import Row


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


# The number of calls that Ray may run at the same time: one steps a chunk, one sends the results of
# another chunk, and one closes.
CONCURRENCY = 3


class NodeActor:
    """Hosts a `NodeEnv`.

    One thread makes the environment and steps all chunks, because some simulators belong to the
    thread that made them; Ray's own threads send results meanwhile. The fork server starts while
    this process imports the modules that the environment needs.

    Parameters
    ----------
    context : dict
        The arguments of `enter_worker_context`.
    recipe : bytes
        The result of `write_recipe`.
    """

    def __init__(self, context: dict[str, Any], recipe: bytes) -> None:
        enter_worker_context(**context)
        fork_server.warm_up(["plangym_like.execution.job"])
        self._recipe = recipe
        self._thread = ThreadPoolExecutor(1, "plangym_like")
        self._hosted: NodeEnv | None = None

    def make(self) -> Readiness:
        """Make the environment and its processes."""
        return self._thread.submit(self._make).result()

    def run(self, request: ChunkRequest, states: Row) -> ChunkResult:
        """Step a chunk; exceptions are not raised, but returned in the result."""
        assert self._hosted is not None
        return self._thread.submit(self._hosted.run, request, states).result()

    def close(self) -> None:
        """Close the environment, once the chunk that is being stepped is done."""
        if self._hosted is not None:
            self._thread.submit(self._hosted.close).result()

    def _make(self) -> Readiness:
        from plangym_like.cluster.node_env import NodeEnv

        self._hosted = NodeEnv()
        return self._hosted.make(self._recipe)
