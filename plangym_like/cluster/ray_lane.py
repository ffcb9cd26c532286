"""One actor of a cluster as the side that deals out rows sees it."""

from __future__ import annotations

import functools
import time
from itertools import count
from typing import Any

from plangym_like.batches import Layout
from plangym_like.cluster.chunk import Chunk, Harvest, Order
from plangym_like.cluster.claims import claims
from plangym_like.cluster.near_line import NearLine
from plangym_like.cluster.near_memory import NearMemory, Proof
from plangym_like.cluster.places import Place
from plangym_like.cluster.ray_host import CONCURRENCY, RayHost
from plangym_like.cluster.ray_session import load
from plangym_like.cluster.surroundings import surroundings
from plangym_like.states import Row

# Chunks that an actor has at once: one that it steps, one that is there when that is done.
DEPTH = 2
# A second measurement counts this much of the speed that chunks are cut by.
_FRESH = 0.4
_numbers = count()


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
    proof : Proof
        By which it finds out whether it is on this machine.

    Attributes
    ----------
    tasks : dict of (ObjectRef or int) to (owner, Chunk)
        What it has been sent and has not answered, in order; the owner is the batch. Those sent by
        its line have numbers.
    pid : int
        Of its own process, on its machine; 0 until it stands.
    near : bool
        Whether it shares memory with this process.
    seconds_per_row : float
        Of all its processes together; 0 before the first measurement.
    """

    def __init__(self, place: Place, recipe: bytes, options: dict[str, Any], proof: Proof) -> None:
        self.place = place
        self.tasks: dict[Any, tuple[Any, Chunk]] = {}
        self.seconds_per_row = 0.0
        self.pid = 0
        self.near = False
        self._line: NearLine | None = None
        self._resting: list[NearMemory] = []
        self._given: dict[Any, NearMemory] = {}
        self._actor = _host_class().options(**options).remote(surroundings(), recipe)
        self.greeting: Any = self._actor.greet.remote(proof)

    @property
    def ready(self) -> bool:
        """Whether its environment is known to stand."""
        return self.greeting is None

    @property
    def refs(self) -> list[Any]:
        """What it owes to Ray."""
        if self.greeting is not None:
            return [self.greeting]
        return [key for key in self.tasks if not isinstance(key, int)]

    @property
    def line(self) -> int:
        """The descriptor of its line, if it owes anything there; else -1."""
        return self._line.fileno() if self._line is not None and self._due else -1

    @property
    def _due(self) -> list[int]:
        return [key for key in self.tasks if isinstance(key, int)]

    @property
    def speed(self) -> float:
        """Rows per second; infinite before the first measurement."""
        return 1.0 / self.seconds_per_row if self.seconds_per_row else float("inf")

    def come_near(self) -> None:
        """Share memory with the actor from now on, and lay a line to it."""
        self.near = True
        self._line = NearLine()
        self._actor.listen.remote(self._line.address)

    def send(self, owner: Any, chunk: Chunk, order: Order, states: Any) -> None:
        """Have `chunk` stepped."""
        self._send(owner, chunk, self._actor.run.remote(order, states))

    def _send(self, owner: Any, chunk: Chunk, key: Any) -> None:
        chunk.sent_at = time.monotonic()
        self.tasks[key] = owner, chunk
        chunk.copies += 1

    def send_near(
        self,
        owner: Any,
        chunk: Chunk,
        layout: Layout,
        order: Order,
        states: Row,
        *,
        by_line: bool,
    ) -> None:
        """Have `chunk` stepped where it lies in shared memory; `by_line`: told so past Ray."""
        memory = self._resting.pop() if self._resting else NearMemory(next(_numbers))
        inputs = order.inputs(states)
        order.near = memory.put(
            layout, inputs, states=order.wants_states, observations=order.wants_observations
        )
        order.which = order.seeds = None
        order.dt = 1
        if not isinstance(order.actions, list):
            order.actions = None
        key: Any = self._line.send(order) if by_line and self._line is not None else None
        if key is None:
            key = self._actor.run.remote(order, None)
        self._send(owner, chunk, key)
        self._given[key] = memory

    def listen(self) -> list[int]:
        """Return which tasks have been answered on its line; where that has ended, the first."""
        assert self._line is not None
        due = self._due
        try:
            heard = self._line.hear()
        except EOFError:
            return due[:1]
        for number in heard:
            if number not in due:  # whoever sent it was interrupted
                self._line.take(number)
        return [number for number in due if number in heard]

    def harvest(self, key: Any) -> Harvest:
        """Return what a task that has been answered gave.

        Raises
        ------
        RayError
            It was lost.
        EOFError
            The actor has ended.
        """
        found: Harvest
        if isinstance(key, int):
            assert self._line is not None
            found = self._line.take(key)
        else:
            found = load().get(key)
        return found

    def fetch(self, key: Any, harvest: Harvest, layout: Layout) -> None:
        """Add to a harvest what lies in shared memory; it must be read before the next is sent."""
        memory = self._given.pop(key, None)
        if memory is not None:
            if harvest.error is None:
                harvest.take_rows(layout, memory.rows)
            self._resting.append(memory)

    def forget(self) -> None:
        """Give all shared memory back, and cut the line, of an actor that is gone."""
        if self._line is not None:
            self._line.close()
            self._line = None
        for memory in (*self._resting, *self._given.values()):
            memory.close()
        self._resting.clear()
        self._given.clear()

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
        self.forget()
        load().kill(self._actor, no_restart=True)


@functools.cache
def _host_class() -> Any:
    """Return `RayHost` for the cluster; one that is made anew is published anew each time."""
    return load().remote(RayHost)


def actor_options(
    place: Place,
    *,
    reserve: bool,
    resources: dict[str, Any] | None,
    placement_group: Any,
    runtime_env: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return what Ray is asked for so that an actor runs at `place`.

    `reserve`: whether it claims a core for each of its lanes.
    """
    from ray.util import scheduling_strategies  # type: ignore[import-not-found,unused-ignore]

    options = claims(place.lanes if reserve else 0, resources, runtime_env)
    options["max_concurrency"] = CONCURRENCY
    if placement_group is not None:
        options["scheduling_strategy"] = scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group, place.bundle
        )
    else:
        options["scheduling_strategy"] = scheduling_strategies.NodeAffinitySchedulingStrategy(
            place.node, soft=False
        )
    return options
