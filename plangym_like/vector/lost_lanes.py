"""`LostLanes`: lanes whose process died; their next step must report this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from plangym_like.vector.lane_stats import LaneStats
from plangym_like.vector.tree import take


class LostLanes:
    """The last observations of lanes whose episode was lost, until the loss is reported.

    Parameters
    ----------
    stats : LaneStats
        Where lost episodes are counted.
    """

    def __init__(self, stats: LaneStats) -> None:
        self._stats = stats
        self._last: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._last)

    def __iter__(self) -> Iterator[int]:
        return iter(self._last)

    def __contains__(self, lane: int) -> bool:
        return lane in self._last

    def add(self, first_lane: int, lanes: Iterable[int], last: Any) -> None:
        """Record that the episodes of `lanes` were lost.

        `last` holds the last observations, with a row for each lane from `first_lane` on.
        """
        for lane in lanes:
            if lane not in self._last:
                self._stats.lanes_ended += 1
                self._last[lane] = take(last, lane - first_lane)

    def forget(self, lanes: Iterable[int]) -> None:
        """Drop lanes that begin a new episode, or continue from a given state."""
        for lane in lanes:
            self._last.pop(lane, None)

    def pop(self, lane: int) -> Any:
        """Remove `lane`, whose loss is being reported, and return its last observation."""
        return self._last.pop(lane)
