"""`NodeActor`: an actor that Ray runs on a node. This module is quick to import."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from plangym_like.cluster.worker_context import enter_worker_context
from plangym_like.processes import fork_server

if TYPE_CHECKING:
    from plangym_like.cluster.chunk import ChunkRequest, ChunkResult
    from plangym_like.cluster.node_env import NodeEnv, Readiness
    from plangym_like.states import Row

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
