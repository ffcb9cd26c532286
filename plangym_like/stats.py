"""What has happened to the batches of an environment so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plangym_like.phases import OBSERVE, RESTORE, SAVE, STEP, PhaseClock


@dataclass(slots=True)
class Stats:
    """Counters; rows that several lanes stepped by mistake or misfortune count once.

    Attributes
    ----------
    batches, rows : int
        What was asked for.
    rows_audited : int
        Rows that were stepped a second time and compared (see `plangym_like.audit`).
    rows_sent : int
        Rows that were handed to child processes, those of audits included.
    steals : int
        How often an idle lane took over rows of a busy one.
    deaths, restarts, timeouts : int
        Workers that died, that were started again, and rows that outran ``step_timeout``.
    rows_retried : int
        Rows that were handed out again after a death.
    bytes_shared : int
        Bytes of shared memory that batches on their way to lanes took: inputs and results.
    seconds_here, seconds_on_lanes, seconds_waiting : float
        What this process spent in stepping rows, what all child processes did together, and what
        this process spent in waiting for them.
    seconds_restoring, seconds_stepping, seconds_observing, seconds_saving : float
        How the first two of these divide, by a sample: about one row in 32 is timed, and its shares
        stand for all. An environment whose own ``step`` makes its observation does so while
        stepping; observing is then putting it, rewards, flags and infos where they belong.
    """

    batches: int = 0
    rows: int = 0
    rows_audited: int = 0
    rows_sent: int = 0
    steals: int = 0
    deaths: int = 0
    restarts: int = 0
    timeouts: int = 0
    rows_retried: int = 0
    bytes_shared: int = 0
    seconds_here: float = 0.0
    seconds_on_lanes: float = 0.0
    seconds_waiting: float = 0.0
    clock: PhaseClock = field(default_factory=PhaseClock, repr=False)

    @property
    def seconds_restoring(self) -> float:
        """Seconds that went into writing states into simulators."""
        return self._estimate(RESTORE)

    @property
    def seconds_stepping(self) -> float:
        """Seconds that simulators stepped."""
        return self._estimate(STEP)

    @property
    def seconds_observing(self) -> float:
        """Seconds that went into observations and what else comes of a step."""
        return self._estimate(OBSERVE)

    @property
    def seconds_saving(self) -> float:
        """Seconds that went into reading states out of simulators."""
        return self._estimate(SAVE)

    def begin(self, rows: int) -> None:
        """Count one more batch, of so many rows."""
        self.batches += 1
        self.rows += rows

    def note_phases(self, seconds: Sequence[float]) -> None:
        """Add what another process's clock has counted."""
        for phase, more in enumerate(seconds):
            self.clock.seconds[phase] += more

    def _estimate(self, phase: int) -> float:
        timed = sum(self.clock.seconds)
        if not timed:
            return 0.0
        return self.clock.seconds[phase] / timed * (self.seconds_here + self.seconds_on_lanes)
