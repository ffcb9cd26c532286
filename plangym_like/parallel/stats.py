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
    bytes_shared : int
        Bytes of shared memory that batches on their way to lanes took: inputs and results.
    seconds_here, seconds_on_lanes, seconds_waiting : float
        What this process spent in stepping rows, what all child processes did together, and what
        this process spent in waiting for them. What a row's restore, step, observation and save
        take of that is not told apart: a clock in the loops over rows would slow them down.
    """

    batches: int = 0
    rows: int = 0
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
