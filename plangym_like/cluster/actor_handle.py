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
    """A `NodeActor` in the cluster, and the chunks that it has.

    Parameters
    ----------
    placement : Placement
        Where it runs.
    recipe : bytes
        What it hosts.
    options : dict
        What ``ray.remote(...).options`` takes.

    Attributes
    ----------
    tasks : dict of ObjectRef to Chunk
        What it was sent and has not answered, in order.
    pid : int
        Its process, on its machine; 0 until it is ready.
    making : ObjectRef or None
        Its environment, while that is being made.
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
        """Whether its environment is known to be made."""
        return self.making is None

    @property
    def refs(self) -> list[Any]:
        """What Ray is to bring from it."""
        return [*self.tasks] if self.making is None else [self.making]

    @property
    def has_suspect(self) -> bool:
        """Whether it has a chunk that may kill it."""
        return any(chunk.suspect for chunk in self.tasks.values())

    def send(self, chunk: Chunk, request: ChunkRequest, states: Any) -> None:
        """Have `chunk` stepped; `states` are rows, or where Ray has them."""
        chunk.sent_at = time.monotonic()
        self.tasks[self._actor.run.remote(request, states)] = chunk

    def seconds_per_row(self, steps: int) -> float:
        """Return what a row of `steps` steps takes with all workers, at best; 0 if not known."""
        return self._seconds_per_step * steps

    def note(self, steps: int, seconds: float) -> None:
        """Remember that so many steps took `seconds`."""
        self._seconds_per_step = faded_minimum(self._seconds_per_step, seconds, max(1, steps))

    def ask_to_close(self) -> Any:
        """Ask the actor to close its environment, and return what to wait for."""
        return self._actor.close.remote()

    def kill(self) -> None:
        """End the actor and all its processes."""
        load().kill(self._actor, no_restart=True)


@functools.cache
def _actor_class() -> Any:
    """Return `NodeActor` as Ray takes it; made once, because Ray publishes each one it is given."""
    return load().remote(NodeActor)
