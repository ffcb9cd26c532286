"""`RowFaults`: which rows of a batch have failed, and which are tried again alone."""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import PoisonInputError, StepTimeoutError, WorkerDiedError
from plangym_like.processes.pool import may_be_sent

# How long to wait for workers that still step rows above the lowest failed row. Most stop within
# this time, so that the batch's memory can be released at once.
_STOP_SECONDS = 0.1
# A row is to blame when so many workers have died while they were trying it alone. Other programs
# may have killed workers that ended by certain signals, so there must be more of these.
_DEATHS_ALONE, _KILLED_ALONE = 3, 16
# The note with which `RowStepper` says which row raised an exception.
_NOTE = re.compile(r"\(in row (\d+) of a batch of \d+\)")


class RowFaults:
    """The failures of the rows of one batch.

    Parameters
    ----------
    step_timeout : float or None
        Seconds that a row may take.
    masked : bool
        Whether to continue after a row that fails.
    tries_again : bool
        Whether a row that exceeds the step timeout is tried once more.

    Attributes
    ----------
    errors : dict of int to Exception
        If `masked` is true, the exceptions of rows that failed, by row index.
    suspects : deque of int
        Rows to be tried again, each in a worker that steps no other row.
    lowest : int or None
        The lowest index of a row whose error ends the batch. Rows with a higher index need not be
        stepped.
    """

    def __init__(
        self, step_timeout: float | None, *, masked: bool, tries_again: bool = True
    ) -> None:
        self._step_timeout, self._masked = step_timeout, masked
        self._tries_again = tries_again
        self.errors: dict[int, Exception] = {}
        self.suspects: deque[int] = deque()
        self._deaths: Counter[int] = Counter()
        self._deaths_alone: Counter[int] = Counter()
        self._slow: set[int] = set()
        self._hung: set[int] = set()
        self.lowest: int | None = None
        self._error: Exception
        self._failed_at = 0.0

    @property
    def failure(self) -> Exception:
        """The error that ends the batch: that of row `lowest`, which must exist."""
        if self.lowest in self._hung and isinstance(self._error, StepTimeoutError):
            return self._timed_out(sorted(self._hung))
        return self._error

    def lose(self, row: int, error: Exception) -> None:
        """Mark `row` as failed: if rows are masked, record its error; otherwise fail the batch."""
        if self._masked:
            self.errors[row] = error
        else:
            self.fail(row, error)

    def fail(self, row: int, error: Exception) -> None:
        """Fail the batch with `error`, unless a row with a lower index has failed it already."""
        if self.lowest is None or row < self.lowest:
            self.lowest, self._error, self._failed_at = row, error, time.monotonic()
        last = self.lowest
        self.suspects = deque(row for row in self.suspects if row < last or row in self._slow)

    def note_death(
        self, row: int, error: WorkerDiedError, *, alone: bool, tried: Collection[int]
    ) -> None:
        """Record that a worker died in `row`; try the row again alone, unless it is to blame.

        `alone` says that this worker stepped no other row. `tried` holds the rows that other
        workers are stepping alone at the moment.
        """
        self._deaths[row] += 1
        self._deaths_alone[row] += alone
        # Nothing is known of how an actor ended, and starting one takes seconds.
        killed = error.exitcode is not None and may_be_sent(error.exitcode)
        most = _KILLED_ALONE if killed else _DEATHS_ALONE
        if self._deaths_alone[row] >= most:
            self.lose(row, _poisoned(row, self._deaths[row], self._deaths_alone[row], error))
        else:
            self._suspect(row, tried)

    def note_timeout(self, row: int, *, tried: Collection[int]) -> None:
        """Record that `row` exceeded the step timeout: try it again alone, or mark it as failed.

        It is tried again at most once. `tried` is as in `note_death`.
        """
        if self._tries_again and row not in self._slow:
            self._slow.add(row)
            self._suspect(row, tried)
            return
        self._slow.discard(row)
        self._hung.add(row)
        self.lose(row, self._timed_out([row]))

    def note_survived(self, row: int) -> None:
        """Record that a worker stepped `row` alone and survived."""
        self._slow.discard(row)

    def _suspect(self, row: int, tried: Collection[int]) -> None:
        if row not in self.suspects and row not in tried:
            self.suspects.append(row)

    def _timed_out(self, rows: list[int]) -> StepTimeoutError:
        """Return the error for rows that hung."""
        again = ", and hung again when it was tried once more" if self._tries_again else ""
        return StepTimeoutError(
            f"{_named(rows)} took longer than step_timeout={self._step_timeout} seconds{again}; "
            "the environment hangs in this state, or needs a larger step_timeout",
            rows,
        )

    def waits_for(self, *, below: bool, busy: bool) -> bool:
        """Return whether to wait because rows below the lowest failed row may still fail.

        If the lowest failed row exceeded the step timeout, also wait for the second try of rows
        that hung once, because the error names all rows that hung. If it failed in another way,
        also wait for a moment (`_STOP_SECONDS`) until workers have stopped stepping later rows.

        Parameters
        ----------
        below : bool
            Whether rows below the lowest failed row have not been stepped yet.
        busy : bool
            Whether workers still step rows of the batch.
        """
        assert self.lowest is not None
        hangs = self.lowest in self._hung
        also = self._slow if hangs else set()
        soon = busy and not hangs and time.monotonic() - self._failed_at < _STOP_SECONDS
        return below or soon or bool(also) or any(row < self.lowest for row in self.suspects)


def _poisoned(row: int, deaths: int, deaths_alone: int, error: WorkerDiedError) -> PoisonInputError:
    """Return the error for a `row` that killed workers; `error` describes the last death."""
    found = PoisonInputError(
        f"row {row} killed {deaths} workers, {deaths_alone} of which were trying it alone (exit "
        f"status {error.exitcode}); the pool can still be used without that row",
        row,
        error.exitcode,
    )
    found.__cause__ = error
    return found


def _named(rows: Sequence[int]) -> str:
    return f"row {rows[0]}" if len(rows) == 1 else f"rows {', '.join(map(str, rows))}"


def name_rows(error: BaseException, rows: NDArray[np.intp], count: int) -> int:
    """Let an error of a part of a batch name rows by their index in the batch, of `count` rows.

    `rows` are the indices of the part's rows. Return the index in the part of the first row that
    `error` names; 0 if it names none. An exception that a row raised names it in its last note.
    """
    notes = getattr(error, "__notes__", [])
    before: Sequence[int] = ()
    if notes and (found := _NOTE.fullmatch(notes[-1])):
        first = int(found[1])
        notes[-1] = f"(in row {rows[first]} of a batch of {count})"
        return first
    if isinstance(error, PoisonInputError):
        before = [error.index]
    elif isinstance(error, StepTimeoutError):
        before = error.indices
    if not before:
        return 0
    after = [int(rows[index]) for index in before]
    message = str(error)
    if message.startswith(_named(before)):
        message = _named(after) + message.removeprefix(_named(before))
    if isinstance(error, PoisonInputError):
        error.index = after[0]
        error.args = (message, error.index, error.exitcode)
    elif isinstance(error, StepTimeoutError):
        error.indices = tuple(after)
        error.args = (message, error.indices)
    return before[0]
