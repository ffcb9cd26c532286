"""`Hearing`: takes in the reports of lanes on one batch, and deals with rows that fail."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from plangym_like.batches import Rows
from plangym_like.errors import WorkerDiedError
from plangym_like.execution.lane import Report
from plangym_like.execution.mortality import poisoned, timed_out
from plangym_like.execution.worker_lane import WorkerLane
from plangym_like.processes.messages import loads
from plangym_like.processes.remote_errors import unpack_exception
from plangym_like.row_errors import not_exiting

if TYPE_CHECKING:
    from plangym_like.execution.lane_pool import LanePool

# How long a row that hung may take when it is tried again: a hang by chance shows in that time, and
# the caller has waited long enough already. Where rows are slow, so many of them.
_SECOND_TRY_SECONDS, _SECOND_TRY_ROWS = 0.2, 10
# How long a worker may take to begin its rows, beyond the time for one of them. One that takes
# longer has been stopped, or has no core; to replace it costs a start.
_BEGIN_SECONDS = 3.0
# How long to wait for lanes that step rows above one that failed.
_STOP_SECONDS = 0.1


class Hearing:
    """The part of a `Schedule` that learns which rows are done, and which must be stepped again.

    Parameters
    ----------
    house : LanePool
        Owns lanes and statistics; held weakly, as lanes hold the schedule whose rows they step.
    rows : Rows
        The batch.
    masked : bool
        Whether to go on after a row that fails.

    Attributes
    ----------
    errors : dict of int to Exception
        Where `masked`: the exceptions of rows that failed, by row.
    """

    def __init__(self, house: LanePool, rows: Rows, *, masked: bool) -> None:
        self._house = house
        self._rows = rows
        self._pending: deque[tuple[int, int]] = deque()
        self._suspects: deque[int] = deque()
        self._deaths: Counter[int] = Counter()
        self._deaths_alone: Counter[int] = Counter()
        self._outran: set[int] = set()
        self._hung: set[int] = set()
        self._masked = masked
        # Whether some results come in the lanes' reports, and not in shared memory.
        self._told = masked or rows.have_objects
        self.errors: dict[int, Exception] = {}
        self._own = (0, 0)
        self._failure: tuple[int, Exception] | None = None
        self._failed_at = 0.0
        self._careful = False

    @property
    def _lanes(self) -> Sequence[WorkerLane]:
        return self._house.lanes

    def _held(self) -> list[WorkerLane]:
        """Return the lanes that step rows of this batch."""
        return [lane for lane in self._lanes if lane.owner is self]

    @property
    def failure(self) -> Exception | None:
        """What the lowest row that failed raised; rows above it may not have been stepped."""
        if self._failure is None:
            return None
        if self._failure[0] in self._hung:
            return timed_out(sorted(self._hung), self._house.step_timeout)
        return self._failure[1]

    def _hear_lanes(self) -> None:
        for lane in self._held():
            if lane.job.done():
                self._hear(lane)
            elif self._house.step_timeout is not None:
                self._watch(lane)

    def _hear(self, lane: WorkerLane) -> None:
        # Whose error it is cannot be told from its type: a row may raise a `WorkerDiedError`.
        died, stop = lane.died, lane.stop
        try:
            report = lane.report()
        except Exception as error:
            error = error.with_traceback(None)
            if died and isinstance(error, WorkerDiedError):
                self._mourn(lane, error)
            else:
                self._fail(max(lane.cursor, 0), error)
            return
        self._note_alive(lane, report)
        for index, packed in report.errors.items():
            self._lose(index, cast(Exception, unpack_exception(packed)))
        try:
            infos, observations = loads(report.objects) if report.objects else ({}, {})
        except BaseException as error:
            self._cannot_read(lane, report.stop, not_exiting(error))
        else:
            if self._rows.infos is not None:
                self._rows.infos.update(infos)
            for index, value in observations.items():
                self._rows.observations[index] = value
        if report.stop < stop:
            self._pending.append((report.stop, stop))

    def _cannot_read(self, lane: WorkerLane, stop: int, error: Exception) -> None:
        """Step each of the lane's rows alone, to find whose objects cannot be unpickled here."""
        rows = [row for row in range(lane.start, stop) if row not in self.errors]
        if len(rows) == 1:
            error.add_note(f"(in row {rows[0]} of a batch of {self._rows.inputs.count})")
            self._lose(rows[0], error.with_traceback(None))
        elif self._failure is None:
            self._suspects.extend(rows)

    def _note_alive(self, lane: WorkerLane, report: Report) -> None:
        """Learn from a lane that has done its rows."""
        self._house.note_rows_done(report, report.stop - lane.start)
        if lane.alone and report.stop > lane.start:
            self._outran.discard(lane.start)
            if self._deaths[lane.start]:
                # Its worker was killed by something else.
                self._house.mortality.note_stray()

    def _mourn(self, lane: WorkerLane, error: WorkerDiedError) -> None:
        """Hand out a dead lane's unfinished rows again, the one that was running on its own."""
        start, row, stop = self._take_back(lane)
        alone, mortality = lane.alone, self._house.mortality
        in_row = start <= row < stop
        done = lane.done > lane.start
        self._house.bury(lane, stray=not in_row)
        self._careful = True
        if done:
            mortality.note_rows_done()
        else:
            mortality.note_barren(error)
        if not in_row:
            row = stop
        else:
            self._deaths[row] += 1
            self._deaths_alone[row] += alone
            told = self._deaths[row], self._deaths_alone[row]
            if mortality.blames(*told, error.exitcode):
                self._lose(row, poisoned(row, *told, error))
            else:
                self._suspect(row)
        self._retry(start, row, stop)

    def _suspect(self, row: int) -> None:
        """Have `row` stepped on its own, unless it is already about to be."""
        alone = (lane.start for lane in self._held() if lane.alone)
        if row not in self._suspects and row not in alone:
            self._suspects.append(row)

    def _take_back(self, lane: WorkerLane) -> tuple[int, int, int]:
        """Return a lost lane's rows: the first to do again, the one it was in, and the end."""
        # What a lane would have told is lost, even of rows that are done in shared memory.
        return lane.start if self._told else lane.done, lane.cursor, lane.reach

    def _retry(self, start: int, row: int, stop: int) -> None:
        """Hand out again all rows from `start` to `stop` but `row` and those that have failed."""
        first = start
        for last in (*sorted({row, *self.errors} & set(range(start, stop))), stop):
            if first < last:
                self._pending.append((first, last))
            first = last + 1
        self._house.tally.rows_retried += max(0, stop - start)

    def _watch(self, lane: WorkerLane) -> None:
        """Replace a worker that hangs; its row is tried once more, for a short while."""
        limit = self._house.step_timeout
        assert limit is not None
        start, row, stop = self._take_back(lane)
        begun, again = start <= row < stop, row in self._outran
        if not begun:
            patience = limit + _BEGIN_SECONDS
        elif again:
            short = max(_SECOND_TRY_SECONDS, _SECOND_TRY_ROWS * self._house.slowest_row)
            patience = min(limit, short)
        else:
            patience = limit
        if lane.idle_seconds() <= patience:
            return
        self._house.tally.timeouts += 1
        self._house.restart(lane)
        if not begun:
            row = stop
        elif again:
            self._hung.add(row)
            self._outran.discard(row)
            self._lose(row, timed_out([row], limit))
        else:
            self._outran.add(row)
            self._suspect(row)
        self._retry(start, row, stop)

    # Failing

    def _lose(self, row: int, error: Exception) -> None:
        """Give `row` up."""
        if self._masked:
            self.errors[row] = error
        else:
            self._fail(row, error)

    def _fail(self, row: int, error: Exception) -> None:
        """Note the failure of `row`; rows above it need no stepping any more."""
        if self._failure is None or row < self._failure[0]:
            self._failure, self._failed_at = (row, error), time.monotonic()
        last = self._failure[0]
        self._suspects = deque(row for row in self._suspects if row < last or row in self._outran)
        start, stop = self._own
        self._own = (start, min(stop, last)) if start < last and row != start else (0, 0)
        for lane in self._held():
            if lane.stop > last:
                lane.end_at(max(last, 0))

    def _below_failure(self) -> bool:
        """Return whether rows below the lowest failure are still on their way.

        If the failure is a timeout, rows that hung once before are awaited as well, to be named in
        its error. Else other lanes are awaited for a moment, as most stop soon.
        """
        assert self._failure is not None
        row = self._failure[0]
        hangs = row in self._hung
        also = self._outran if hangs else set()
        soon = not hangs and time.monotonic() - self._failed_at < _STOP_SECONDS
        return (
            any(soon or lane.done < row or lane.done in also for lane in self._held())
            or any(start < row for start, _ in self._pending)
            or any(suspect < row or suspect in also for suspect in self._suspects)
        )
