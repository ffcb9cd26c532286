"""Decide which row is to blame for the death of a worker, and make the error for it."""

from __future__ import annotations

from plangym_like.errors import PoisonInputError, StepTimeoutError, WorkerDiedError
from plangym_like.processes.retry_policy import RetryPolicy

# A row is to blame when this many workers have died in it, and this many of them while they stepped
# only this row. If workers are being killed from outside, it is to blame after many more deaths.
_MOST_DEATHS, _DEATHS_ALONE = 4, 2
_MOST_DEATHS_AMONG_KILLINGS = 24


def row_is_to_blame(
    policy: RetryPolicy, deaths: int, deaths_alone: int, exitcode: int | None
) -> bool:
    """Return whether a row in which `deaths` workers have died is to blame.

    For `deaths_alone` of them, it was the only row that they stepped. The last one ended with
    `exitcode`.
    """
    if policy.suspects_killing(exitcode):
        return deaths >= _MOST_DEATHS_AMONG_KILLINGS
    return deaths >= _MOST_DEATHS and deaths_alone >= _DEATHS_ALONE


def poisoned(row: int, deaths: int, deaths_alone: int, error: WorkerDiedError) -> PoisonInputError:
    """Return the error for a `row` that is to blame for deaths, the last of which is `error`."""
    found = PoisonInputError(
        f"row {row} killed {deaths} workers, {deaths_alone} of which were fresh and stepped "
        f"nothing else (exit status {error.exitcode}); the pool is usable, leave that row out",
        row,
        error.exitcode,
    )
    found.__cause__ = error
    return found


def timed_out(rows: list[int], limit: float | None) -> StepTimeoutError:
    """Return the error for rows that hung twice."""
    named = f"row {rows[0]}" if len(rows) == 1 else f"rows {', '.join(map(str, rows))}"
    return StepTimeoutError(
        f"{named} took longer than step_timeout={limit} seconds, and hung again in a fresh worker; "
        "the environment hangs in this state, or needs a larger step_timeout",
        rows,
    )
