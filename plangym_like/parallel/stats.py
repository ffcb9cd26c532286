"""What has happened on a `BatchEnv` so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """Counters; rows that several lanes stepped by mistake or misfortune count once.

    Attributes
    ----------
    batches, rows : int
        What was asked for.
    rows_sent : int
        Rows that were handed to child processes.
    steals : int
        How often an idle lane took over rows of a busy one.
    deaths, restarts, timeouts : int
        Workers that died, that were started again, and rows that outran ``step_timeout``.
    rows_retried : int
        Rows that were handed out again after a death.
    """

    batches: int = 0
    rows: int = 0
    rows_sent: int = 0
    steals: int = 0
    deaths: int = 0
    restarts: int = 0
    timeouts: int = 0
    rows_retried: int = 0
