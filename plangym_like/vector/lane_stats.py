"""Counters of events in the processes of lanes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LaneStats:
    """Counters of processes that died or were restarted, and of the lanes affected.

    Attributes
    ----------
    deaths : int
        Processes that died, or were killed because they hung.
    timeouts : int
        Processes that were killed because they hung.
    restarts : int
        Processes that were started again.
    lanes_ended : int
        Episodes that ended because the process of their lane died.
    lanes_restored : int
        Lanes whose states were restored, so that their episodes continued.
    """

    deaths: int = 0
    timeouts: int = 0
    restarts: int = 0
    lanes_ended: int = 0
    lanes_restored: int = 0
