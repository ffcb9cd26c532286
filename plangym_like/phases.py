"""What rows spend in being restored, stepped, observed and saved: measured on a sample of them."""

from __future__ import annotations

from time import perf_counter
from typing import Self

RESTORE, STEP, OBSERVE, SAVE = range(4)

# For each row that is timed, so many that are not.
_UNTIMED = 31


class PhaseClock:
    """Adds up seconds by phase, for those who step rows.

    Attributes
    ----------
    seconds : list of float
        ``[RESTORE]``, ``[STEP]``, ``[OBSERVE]`` and ``[SAVE]`` of the rows that were timed.

    >>> clock = PhaseClock()
    >>> [clock.sample(rows) is clock for rows in (1, 30, 2, 100)]
    [True, False, True, True]
    """

    __slots__ = ("_at", "_untimed", "seconds")

    def __init__(self) -> None:
        self.seconds = [0.0] * 4
        self._untimed = 0
        self._at = 0.0

    def sample(self, count: int) -> Self | None:
        """Return this clock if the next `count` rows are to be timed, else ``None``."""
        self._untimed -= count
        if self._untimed >= 0:
            return None
        self._untimed = _UNTIMED * count
        return self

    def start(self) -> None:
        """Begin with a row, or a chunk of rows."""
        self._at = perf_counter()

    def lap(self, phase: int) -> None:
        """Count what has passed since the last lap, or the start, as `phase`."""
        now = perf_counter()
        self.seconds[phase] += now - self._at
        self._at = now

    def take(self) -> list[float]:
        """Return the seconds so far and begin anew; an empty list if there are none."""
        if not any(self.seconds):
            return []
        taken, self.seconds = self.seconds, [0.0] * 4
        return taken
