"""`Stats`: counters of the batches of an environment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """Counters of batches; in `rows`, a row that was stepped several times counts once.

    Attributes
    ----------
    batches, rows : int
        Batches and rows that were submitted.
    rows_audited : int
        Rows that were stepped a second time and compared (see `plangym_like.audit`).
    rows_sent : int
        Rows that were sent to child processes, including audited rows.
    steals : int
        How often an idle process took rows from another process.
    deaths, restarts, timeouts : int
        Workers that died, workers that were restarted, and rows that exceeded ``step_timeout``.
    rows_retried : int
        Rows that were requeued because their worker died or hung.
    bytes_shared : int
        Bytes of shared memory for batches that were sent to workers: inputs and results.
    seconds_here, seconds_waiting : float
        The time that this process spent stepping rows, and waiting for child processes.
    seconds_on_workers : float
        The time that all child processes together spent stepping rows.
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
        """Count one more batch of `rows` rows."""
        self.batches += 1
        self.rows += rows
