"""`RowFaults`: which rows of a batch have failed, and which are tried again alone."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from plangym_like.errors import PoisonInputError, StepTimeoutError, WorkerDiedError

# A row is to blame when so many workers have died while they were trying it alone.
_DEATHS_ALONE = 5
# The note with which `RowStepper` says which row raised an exception.
_NOTE = re.compile(r"\(in row \d+ of a batch of \d+\)")


@dataclass(slots=True)
class RowFaults:
    """The failures of the rows of one batch, wherever they are stepped.

    Parameters
    ----------
    masked : bool
        Whether to continue after a row that fails.

    Attributes
    ----------
    errors : dict of int to Exception
        If `masked` is true, the exceptions of rows that failed, by row index.
    suspects : set of int
        Rows in which a worker died or hung, and which have not failed. Only workers try them again,
        each as a token of its own.
    lowest : int or None
        The lowest index of a row whose error ends the batch. Rows with a higher index need not be
        stepped.
    failure : Exception
        The error of row `lowest`, which must exist.
    """

    masked: bool
    errors: dict[int, Exception] = field(default_factory=dict)
    suspects: set[int] = field(default_factory=set)
    lowest: int | None = None
    failure: Exception = field(init=False)
    _deaths: Counter[int] = field(default_factory=Counter, init=False)
    _slow: set[int] = field(default_factory=set, init=False)

    def is_left(self, row: int) -> bool:
        """Return whether `row` has not failed and is to be stepped."""
        return row not in self.errors and (self.lowest is None or row < self.lowest)

    def lose(self, row: int, error: Exception) -> None:
        """Mark `row` as failed: if rows are masked, record its error; otherwise fail the batch."""
        self.suspects.discard(row)
        if self.masked:
            self.errors[row] = error
        else:
            self.fail(row, error)

    def fail(self, row: int, error: Exception) -> None:
        """Fail the batch with `error`, unless a row with a lower index has failed it already."""
        if self.lowest is None or row < self.lowest:
            self.lowest, self.failure = row, error
        self.suspects = {each for each in self.suspects if each < self.lowest}

    def note_death(self, row: int, error: WorkerDiedError, *, alone: bool) -> None:
        """Record that a worker died in `row`, which is to be tried again unless it is to blame.

        `alone` says that the row was all that the worker had taken.
        """
        self._deaths[row] += alone and row in self.suspects
        if self._deaths[row] < _DEATHS_ALONE:
            self.suspects.add(row)
            return
        poisoned = PoisonInputError(
            f"row {row} killed {_DEATHS_ALONE} workers that were trying it alone (exit status "
            f"{error.exitcode}); the pool can still be used without that row",
            row,
            error.exitcode,
        )
        poisoned.__cause__ = error
        self.lose(row, poisoned)

    def note_timeout(self, row: int, step_timeout: float) -> None:
        """Record that `row` exceeded the step timeout: it is tried once more, and then fails."""
        if row not in self._slow:
            self._slow.add(row)
            self.suspects.add(row)
            return
        self.lose(
            row,
            StepTimeoutError(
                f"row {row} took longer than step_timeout={step_timeout} seconds, and hung again "
                "when it was tried once more; the environment hangs in this state, or needs a "
                "larger step_timeout",
                [row],
            ),
        )


def rename_row(error: BaseException, part_row: int, row: int, count: int) -> None:
    """Let the error of row `part_row` of a part of a batch name its index `row` in the batch.

    `count` is the number of rows of the batch. An exception that a row raised names the row in its
    last note; a `PoisonInputError` or `StepTimeoutError`, in its message and an attribute.
    """
    notes = getattr(error, "__notes__", [])
    if notes and _NOTE.fullmatch(notes[-1]):
        notes[-1] = f"(in row {row} of a batch of {count})"
        return
    message = str(error).replace(f"row {part_row}", f"row {row}", 1)
    if isinstance(error, PoisonInputError):
        error.index = row
        error.args = (message, row, error.exitcode)
    elif isinstance(error, StepTimeoutError):
        error.indices = (row,)
        error.args = (message, error.indices)
