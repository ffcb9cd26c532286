"""What has happened to the processes of lanes so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LaneStats:
    """Counters.

    Attributes
    ----------
    deaths : int
        Processes that died, or were killed because they hung.
    timeouts : int
        The number of processes that hung.
    restarts : int
        Processes that were started again.
    lanes_ended : int
        Episodes that ended because the process of their lane died.
    lanes_restored : int
        Lanes that were brought back to where they were, so that their episodes went on.
    """

    deaths: int = 0
    timeouts: int = 0
    restarts: int = 0
    lanes_ended: int = 0
    lanes_restored: int = 0
