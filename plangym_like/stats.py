"""What has happened to the batches of an environment so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """Counters; rows that were stepped several times count once.

    Attributes
    ----------
    batches, rows : int
        What was asked for.
    rows_audited : int
        Rows that were stepped a second time and compared (see `plangym_like.audit`).
    rows_sent : int
        Rows that were handed to child processes, those of audits included.
    steals : int
        How often a process without rows took over rows of another one.
    deaths, restarts, timeouts : int
        Workers that died, that were started again, and rows that outran ``step_timeout``.
    rows_retried : int
        Rows that were handed out again after a death.
    bytes_shared : int
        Bytes of shared memory for batches that were sent to workers: inputs and results.
    seconds_here, seconds_on_workers, seconds_waiting : float
        What this process spent in stepping rows, what all child processes did together, and what
        this process spent in waiting for them.
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
    seconds_on_workers: float = 0.0
    seconds_waiting: float = 0.0

    def begin(self, rows: int) -> None:
        """Count one more batch, of so many rows."""
        self.batches += 1
        self.rows += rows
