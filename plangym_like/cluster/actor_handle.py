"""`ActorHandle`: one actor of a cluster as the driver sees it."""

from __future__ import annotations

import functools
import time
from typing import Any

from plangym_like.cluster.chunk import Chunk, ChunkRequest
from plangym_like.cluster.node_actor import CONCURRENCY, NodeActor
from plangym_like.cluster.node_placement import Placement
from plangym_like.cluster.ray_session import load
from plangym_like.cluster.worker_context import worker_context
from plangym_like.execution.costs import faded_minimum


class ActorHandle:
    """A `NodeActor` in the cluster, and the chunks that were sent to it.

    Parameters
    ----------
    placement : Placement
        Where the actor runs.
    recipe : bytes
        The result of `write_recipe`, from which the actor makes its environment.
    options : dict
        Arguments of ``ray.remote(...).options``.

    Attributes
    ----------
    tasks : dict of ObjectRef to Chunk
        The chunks that were sent to it and have no result yet, in the order of sending.
    pid : int
        The id of its process on its machine; 0 until it is ready.
    making : ObjectRef or None
        The reference to wait for while its environment is being made; ``None`` afterwards.
    """

    def __init__(self, placement: Placement, recipe: bytes, options: dict[str, Any]) -> None:
        self.placement = placement
        self.tasks: dict[Any, Chunk] = {}
        self._seconds_per_step = 0.0
        self.pid = 0
        actor = _actor_class().options(max_concurrency=CONCURRENCY, **options)
        self._actor = actor.remote(worker_context(), recipe)
        self.making: Any = self._actor.make.remote()

    @property
    def ready(self) -> bool:
        """Whether the actor's environment is known to be ready."""
        return self.making is None

    @property
    def refs(self) -> list[Any]:
        """Ray references to the actor's pending answers."""
        return [*self.tasks] if self.making is None else [self.making]

    @property
    def has_suspect(self) -> bool:
        """Whether the actor has a suspect chunk; see `Chunk`."""
        return any(chunk.suspect for chunk in self.tasks.values())

    def send(self, chunk: Chunk, request: ChunkRequest, states: Any) -> None:
        """Send `chunk` to be stepped; `states` are rows, or a Ray reference to them."""
        chunk.sent_at = time.monotonic()
        self.tasks[self._actor.run.remote(request, states)] = chunk

    def seconds_per_row(self, steps: float) -> float:
        """Return the shortest time that the actor took per row of `steps` steps; 0 if unknown."""
        return self._seconds_per_step * steps

    def note(self, steps: float, seconds: float) -> None:
        """Record that the actor took `seconds` for `steps` steps."""
        self._seconds_per_step = faded_minimum(self._seconds_per_step, seconds, max(1.0, steps))

    def ask_to_close(self) -> Any:
        """Ask the actor to close its environment, and return a reference to wait for."""
        return self._actor.close.remote()

    def kill(self) -> None:
        """End the actor and all its processes."""
        load().kill(self._actor, no_restart=True)


@functools.cache
def _actor_class() -> Any:
    """Return `NodeActor` as a Ray actor class; made once, since Ray exports each new class."""
    return load().remote(NodeActor)
