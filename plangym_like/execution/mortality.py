"""How workers of one `BatchEnv` die: what a row is to blame for, and when it is enough."""

from __future__ import annotations

import signal
import time

from plangym_like.errors import (
    PoisonInputError,
    StepTimeoutError,
    WorkerDiedError,
    WorkerError,
    WorkerStartError,
)

# Processes that die before their environments stand, for each lane, before this is an error; and
# where they are killed, which may have nothing to do with them.
_FAILED_STARTS, _KILLED_STARTS = 3, 20
# Workers that die one after the other, in whatever row, without one row being done in between.
_BARREN_DEATHS = 64
# For so long after a death that no row is to blame for, more of the kind are expected.
_SUSPICION_SECONDS = 60.0
# Signals that may come from outside. Others, and exit statuses, are a worker's own doing.
_SENT = {-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
# A row is to blame when so many workers have died in it, so many of them stepping nothing else;
# and where workers are being killed from outside, when it cannot be stepped at all.
_MOST_DEATHS, _DEATHS_ALONE = 4, 2
_MOST_DEATHS_AMONG_KILLINGS = 24


class Mortality:
    """What the deaths of workers so far say about the next one."""

    def __init__(self) -> None:
        self._failed_starts = self._barren = 0
        self._stray_at = float("-inf")

    def note_stray(self) -> None:
        """Note a death that no row was to blame for: somebody may be killing workers."""
        self._stray_at = time.monotonic()

    def blames(self, deaths: int, deaths_alone: int, exitcode: int | None) -> bool:
        """Return whether a row is to blame, `deaths` workers having died in it.

        In `deaths_alone` of them it was all that they stepped; the last one ended by `exitcode`.
        """
        among_killings = time.monotonic() - self._stray_at < _SUSPICION_SECONDS
        if among_killings and _may_be_sent(exitcode):
            return deaths >= _MOST_DEATHS_AMONG_KILLINGS
        return deaths >= _MOST_DEATHS and deaths_alone >= _DEATHS_ALONE

    def note_rows_done(self) -> None:
        """Note that workers get on with their rows."""
        self._barren = 0

    def note_barren(self, error: WorkerDiedError) -> None:
        """Note that a worker died without having finished a row.

        Raises
        ------
        WorkerDiedError
            So many have in succession that going on is pointless.
        """
        self._barren += 1
        if self._barren >= _BARREN_DEATHS:
            died, self._barren = self._barren, 0
            raise WorkerDiedError(
                f"{died} workers in a row died without finishing one row, the last one because: "
                f"{error}; whatever is stepped seems to end them",
                error.pid,
                error.exitcode,
            ) from error

    def note_start(self) -> None:
        """Note that a worker's environment stands."""
        self._failed_starts = 0

    def note_failed_start(self, error: WorkerError, num_lanes: int) -> None:
        """Note that a worker died before its environment stood, or took too long over it.

        Raises
        ------
        WorkerStartError
            Again and again, and no other came up in between.
        """
        self._failed_starts += 1
        killed = isinstance(error, WorkerDiedError) and _may_be_sent(error.exitcode)
        most = _KILLED_STARTS if killed else _FAILED_STARTS
        if self._failed_starts >= most * num_lanes:
            failed, self._failed_starts = self._failed_starts, 0
            raise WorkerStartError(
                f"workers died {failed} times in a row before their environments stood, the "
                f"last time because: {error}"
            ) from error


def _may_be_sent(exitcode: int | None) -> bool:
    return exitcode is None or exitcode in _SENT


def poisoned(row: int, deaths: int, deaths_alone: int, error: WorkerDiedError) -> PoisonInputError:
    """Return the error that says that `row` is to blame for so many deaths, the last by `error`."""
    found = PoisonInputError(
        f"row {row} killed {deaths} workers, {deaths_alone} of which were fresh and stepped "
        f"nothing else (exit status {error.exitcode}); the pool is usable, leave that row out",
        row,
        error.exitcode,
    )
    found.__cause__ = error
    return found


def timed_out(rows: list[int], limit: float | None) -> StepTimeoutError:
    """Return the error that tells of rows that hung twice."""
    named = f"row {rows[0]}" if len(rows) == 1 else f"rows {', '.join(map(str, rows))}"
    return StepTimeoutError(
        f"{named} took longer than step_timeout={limit} seconds, and hung again in a fresh worker; "
        "the environment hangs in this state, or needs a larger step_timeout",
        rows,
    )
