"""Where the actors of a cluster go, and how many lanes each of them has."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

# One process copies in and out for all lanes of its actor, so a large node gets several.
_MOST_LANES = 16


@dataclass(frozen=True, slots=True)
class Place:
    """A place for one actor: a node by its id, or one bundle of a placement group.

    ``lanes`` is how many processes it steps rows in.
    """

    node: str
    lanes: int
    bundle: int = -1


def share(
    cores: Mapping[str, int],
    wanted: int | None,
    *,
    cores_per_actor: int | None = None,
    spread: bool = True,
) -> list[Place]:
    """Return places for `wanted` lanes on nodes with free `cores`; for all cores if ``None``.

    Parameters
    ----------
    cores : mapping of str to int
        Free cores by node.
    wanted : int or None
        Lanes at most; fewer where the cores do not suffice.
    cores_per_actor : int, optional
        Lanes of one actor; left out, a node has as few actors as have 16 lanes each at most.
    spread : bool
        Whether nodes are used evenly; else one is filled before the next, the largest first.

    >>> share({"a": 4, "b": 2}, 4)
    [Place(node='a', lanes=3, bundle=-1), Place(node='b', lanes=1, bundle=-1)]
    >>> filled = share({"a": 4, "b": 2}, 5, cores_per_actor=2, spread=False)
    >>> [(place.node, place.lanes) for place in filled]
    [('a', 2), ('a', 2), ('b', 1)]
    """
    total = sum(max(0, free) for free in cores.values())
    wanted = total if wanted is None else min(wanted, total)
    dealt = _dealt_evenly(cores, wanted) if spread else _dealt_in_turn(cores, wanted)
    places = []
    for node, lanes in dealt.items():
        actors = -(-lanes // (cores_per_actor or _MOST_LANES))
        if cores_per_actor is None:
            sizes = [lanes // actors + (index < lanes % actors) for index in range(actors)]
        else:
            sizes = [
                min(cores_per_actor, lanes - start) for start in range(0, lanes, cores_per_actor)
            ]
        places += [Place(node, size) for size in sizes]
    return places


def _dealt_evenly(cores: Mapping[str, int], wanted: int) -> dict[str, int]:
    """Give one lane after the other to the node that has most free cores left."""
    dealt: dict[str, int] = {}
    order = {node: index for index, node in enumerate(cores)}
    heap = [(-free, order[node], node) for node, free in cores.items() if free > 0]
    heapq.heapify(heap)
    for _ in range(wanted):
        free, index, node = heap[0]
        dealt[node] = dealt.get(node, 0) + 1
        if free == -1:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (free + 1, index, node))
    return dealt


def _dealt_in_turn(cores: Mapping[str, int], wanted: int) -> dict[str, int]:
    dealt: dict[str, int] = {}
    for node in sorted(cores, key=lambda node: -cores[node]):
        lanes = min(max(0, cores[node]), wanted)
        if lanes:
            dealt[node] = lanes
            wanted -= lanes
    return dealt
