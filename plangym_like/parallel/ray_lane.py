"""One actor of a cluster as the side that deals out rows sees it."""

from __future__ import annotations

import time
from typing import Any

from plangym_like.parallel.ray_chunk import Chunk, Order
from plangym_like.parallel.ray_host import CONCURRENCY, RayHost
from plangym_like.parallel.ray_placement import Place
from plangym_like.parallel.ray_session import load

# Chunks that an actor has at once: one that it steps, one that is there when that is done.
DEPTH = 2
# A second measurement counts this much of the speed that chunks are cut by.
_FRESH = 0.4


class RayLane:
    """A `RayHost` in the cluster, and the chunks that it has.

    Parameters
    ----------
    place : Place
        Where it is.
    recipe : bytes
        What it hosts.
    options : dict
        What ``ray.remote(...).options`` takes.

    Attributes
    ----------
    tasks : dict of ObjectRef to (owner, Chunk)
        What it has been sent and has not answered, in order; the owner is the batch.
    pid : int
        Of its own process, on its machine; 0 until it stands.
    seconds_per_row : float
        Of all its processes together; 0 before the first measurement.
    """

    def __init__(self, place: Place, recipe: bytes, options: dict[str, Any]) -> None:
        ray = load()
        self.place = place
        self.tasks: dict[Any, tuple[Any, Chunk]] = {}
        self.seconds_per_row = 0.0
        self.pid = 0
        self._actor = ray.remote(RayHost).options(**options).remote(recipe)
        self.greeting: Any = self._actor.greet.remote()

    @property
    def ready(self) -> bool:
        """Whether its environment is known to stand."""
        return self.greeting is None

    @property
    def refs(self) -> list[Any]:
        """What it owes."""
        return [*self.tasks] if self.greeting is None else [self.greeting]

    @property
    def speed(self) -> float:
        """Rows per second, or the number of its processes as long as nothing is measured."""
        return 1.0 / self.seconds_per_row if self.seconds_per_row else float(self.place.lanes)

    def send(self, owner: Any, chunk: Chunk, order: Order, states: Any) -> None:
        """Have `chunk` stepped."""
        chunk.sent_at = time.monotonic()
        ref = self._actor.run.remote(order, states)
        self.tasks[ref] = owner, chunk
        chunk.copies += 1

    def note(self, rows: int, seconds: float) -> None:
        """Remember that `rows` took `seconds`."""
        measured = seconds / max(1, rows)
        known = self.seconds_per_row
        self.seconds_per_row = known + _FRESH * (measured - known) if known else measured

    def say_goodbye(self) -> Any:
        """Ask the actor to close its environment, and return what to wait for."""
        return self._actor.close.remote()

    def kill(self) -> None:
        """End the actor, and with it all its processes."""
        load().kill(self._actor, no_restart=True)


def actor_options(
    place: Place,
    *,
    reserve: bool,
    resources: dict[str, Any] | None,
    placement_group: Any,
    runtime_env: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return what Ray is asked for so that an actor runs at `place`.

    `reserve`: whether it claims a core for each of its lanes. Ray itself never starts an actor or
    repeats a call: a fresh one would do so without our knowing.
    """
    from ray.util import scheduling_strategies  # type: ignore[import-not-found,unused-ignore]

    named = dict(resources or {})
    options: dict[str, Any] = {
        "num_cpus": place.lanes if reserve else 0,
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": CONCURRENCY,
    }
    options.update({key: named.pop(key) for key in _OWN_OPTIONS if key in named})
    if named:
        options["resources"] = named
    if runtime_env is not None:
        options["runtime_env"] = runtime_env
    if placement_group is not None:
        options["scheduling_strategy"] = scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group, place.bundle
        )
    else:
        options["scheduling_strategy"] = scheduling_strategies.NodeAffinitySchedulingStrategy(
            place.node, soft=False
        )
    return options


_OWN_OPTIONS = ("num_cpus", "num_gpus", "memory")
