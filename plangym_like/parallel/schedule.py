"""How one batch is dealt out to lanes, and what happens when lanes fail.

Every lane starts on a share of the rows. Whoever is done takes half of what the slowest still has,
by lowering that lane's limit: no lock, so nothing that a killed worker could hold. When victim and
thief race for a row, both step it, and because rows are pure they write the same bytes. This
process steps its own rows from the last one down, so that the lane next to them can be given some
before it runs dry, by raising its limit: that costs nothing, where a message costs both sides.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from plangym_like.batches import Rows, split
from plangym_like.errors import StepTimeoutError, WorkerDiedError
from plangym_like.parallel.lane import Report, faded_minimum, portion
from plangym_like.parallel.mortality import poisoned, timed_out
from plangym_like.parallel.remote_errors import unpack_exception
from plangym_like.parallel.worker_lane import WorkerLane

if TYPE_CHECKING:
    from plangym_like.parallel.batch_env import BatchEnv

_LOOK_SECONDS = 6e-3
_WAIT_SECONDS = 0.5
# Rows that take less are done before another lane has heard of them. How much more than its
# share a lane may be given without hearing of it: one part in so many.
_SENDING_SECONDS, _AHEAD = 4e-4, 16
_LOOK_AT_CLOCK_SECONDS = 0.02
# How long a row that hung may take when it is tried again: a hang by chance shows in that time, and
# the caller has waited long enough already. Where rows are slow, so many of them.
_SECOND_TRY_SECONDS, _SECOND_TRY_ROWS = 0.2, 10
# How long a worker may take to begin its rows, beyond the time for one of them.
_BEGIN_SECONDS = 10.0


class Schedule:
    """One batch on its way.

    Parameters
    ----------
    house : BatchEnv
        Owns lanes and statistics.
    rows : Rows
        The batch, its results in shared memory and its inputs where the caller has them.
    send : callable
        ``send(lane, start, stop, most, careful)`` hands rows to a lane; its limit may be raised to
        `most` later.
    step_here : callable or None
        ``step_here(start, stop)`` steps rows in this process, and where `masked` returns what those
        that failed raised; ``None``: never do that.
    masked : bool
        Whether to go on after a row that fails.

    Attributes
    ----------
    errors : dict of int to Exception
        Where `masked`: what failed, by row.
    """

    def __init__(
        self,
        house: BatchEnv,
        rows: Rows,
        send: Callable[[WorkerLane, int, int, int, bool], None],
        step_here: Callable[[int, int], dict[int, Exception] | None] | None,
        *,
        masked: bool = False,
    ) -> None:
        self._house = house
        self._rows = rows
        self._send = send
        self._step_here = step_here
        self._lanes: Sequence[WorkerLane] = house.lanes
        self._pending: deque[tuple[int, int]] = deque()
        self._suspects: deque[int] = deque()
        self._deaths: Counter[int] = Counter()
        self._deaths_alone: Counter[int] = Counter()
        self._outran: set[int] = set()
        self._hung: set[int] = set()
        self._masked = masked
        # Whether some results come with what lanes say at their end, beside those in memory.
        self._told = masked or rows.have_objects
        self.errors: dict[int, Exception] = {}
        self._own = (0, 0)
        self._failure: tuple[int, Exception] | None = None
        self._careful = False

    # Dealing out

    def launch(self, *, here: bool) -> None:
        """Give every lane that is ready its first share; `here` counts this process as one."""
        count = self._rows.inputs.count
        here = here and self._step_here is not None
        lanes = [lane for lane in self._lanes if lane.ready and not lane.busy]
        if not lanes and not here:
            self._pending.append((0, count))
            return
        shares = list(split(count, len(lanes) + here))
        self._own = shares[-1] if here else (0, 0)
        for lane, (start, stop) in zip(lanes, shares, strict=False):
            if stop > start:
                self._hand(lane, start, stop)

    def _hand(self, lane: WorkerLane, start: int, stop: int, *, alone: bool = False) -> None:
        lane.alone = alone
        most = stop
        if stop == self._own[0] and not alone:
            most = min(stop + (stop - start) // _AHEAD, self._own[1])
        self._send(lane, start, stop, most, self._careful)
        self._house.tally.rows_sent += stop - start

    def finish(self, until: float = math.inf) -> bool:
        """Bring the batch to its end; return whether that was done by the time `until`."""
        while True:
            self._step_own()
            self._settle_lanes()
            self._feed()
            start, stop = self._own
            if start >= stop:
                if self._failure is not None and not self._below_failure():
                    return True
                if not (self._pending or self._suspects) and self._all_done():
                    return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            if start >= stop:
                self._house.wait(min(left, self._nap()), watch=not self._eventful)

    def _all_done(self) -> bool:
        """Return whether no lane has rows; those that are seen to be done are not waited for."""
        busy = [lane for lane in self._lanes if lane.busy]
        if self._eventful or not all(lane.finished and lane.unheard is None for lane in busy):
            return not busy
        for lane in busy:
            lane.leave()
        return True

    @property
    def _eventful(self) -> bool:
        """Whether what lanes say is awaited."""
        return self._told or self._careful or self._failure is not None

    @property
    def failure(self) -> Exception | None:
        """What the lowest row that failed raised; rows above it may not have been stepped."""
        if self._failure is None:
            return None
        if isinstance(self._failure[1], StepTimeoutError):
            return timed_out(sorted(self._hung), self._house.step_timeout)
        return self._failure[1]

    def _step_own(self) -> None:
        """Step rows here, the last first, until it is time to look at the other lanes."""
        house, until = self._house, time.perf_counter() + _LOOK_SECONDS
        while self._own[0] < self._own[1]:
            start, stop = self._own
            middle = stop - portion(stop - start, house.seconds_per_row)
            self._rows.clock = house.tally.clock.sample(stop - middle)
            begun = time.perf_counter()
            assert self._step_here is not None
            try:
                self.errors |= self._step_here(middle, stop) or {}
            except Exception as error:
                self._fail(int(self._rows.cursor[0]), error)
                return
            now = time.perf_counter()
            house.tally.seconds_here += now - begun
            each = (now - begun) / (stop - middle)
            house.seconds_per_row = faded_minimum(house.seconds_per_row, each)
            self._own = (start, middle)
            self._pass_on()
            if now > until or any(lane.busy and lane.left == 0 for lane in self._lanes):
                return

    def _pass_on(self) -> None:
        """Let the lane below these rows have some of them if it will be done first."""
        start, stop = self._own
        for lane in self._lanes:
            more = min((stop - start - lane.ahead) // 2, lane.most - start)
            if lane.busy and lane.stop == start and more > 0:
                self._own = (start + more, stop)
                self._house.tally.rows_sent += more
                lane.end_at(start + more)

    def _feed(self) -> None:
        """Give work to every lane that has none, this process included."""
        for lane in self._lanes:
            if lane.busy or not lane.ready:
                continue
            if self._suspects:
                row = self._suspects.popleft()
                self._hand(lane, row, row + 1, alone=True)
            elif (found := self._next_range(here=False)) is not None:
                self._hand(lane, *found)
        if self._step_here is not None and self._own[0] >= self._own[1]:
            self._own = self._next_range(here=True) or self._own

    def _next_range(self, *, here: bool) -> tuple[int, int] | None:
        # Others than this process need a message, which a few rows are not worth.
        least = 1 if here else max(1, int(_SENDING_SECONDS / (self._house.seconds_per_row or 1.0)))
        for _ in range(len(self._pending)):
            start, stop = self._pending.popleft()
            if self._failure is not None:
                stop = min(stop, self._failure[0])
            if start < stop < start + least:
                self._pending.append((start, stop))
            elif start < stop:
                lanes = 1 + sum(not lane.busy and lane.ready for lane in self._lanes)
                middle = start + -(-(stop - start) // lanes)
                if middle < stop:
                    self._pending.appendleft((middle, stop))
                return start, middle
        return self._steal(least)

    def _steal(self, least: int) -> tuple[int, int] | None:
        """Take rows from the slowest, so that both end together; a lane keeps what it began."""
        # A thief and its victim may both step a row, which only an exact environment allows.
        exact = self._house.layout.exact
        lanes = self._lanes if exact else ()
        victim = max(lanes, key=lambda lane: lane.unbegun, default=None)
        theirs = 0 if victim is None or victim.alone else min(victim.unbegun, victim.ahead // 2)
        start, stop = self._own
        ours = (stop - start) // 2
        if max(ours, theirs) < least:
            return None
        self._house.tally.steals += 1
        if victim is None or ours >= theirs:
            self._own = (start + ours, stop)
            return start, start + ours
        victim.end_at(victim.stop - theirs)
        return victim.stop, victim.stop + theirs

    # Hearing from lanes

    def _settle_lanes(self) -> None:
        self._house.hear_late()
        for lane in self._lanes:
            if lane.job is not None:
                if lane.job.done():
                    self._hear(lane)
                elif self._house.step_timeout is not None:
                    self._watch(lane)
            elif not lane.ready:
                self._house.arrive(lane)
            elif lane.process.fileno() < 0:
                self._house.bury(lane)

    def _hear(self, lane: WorkerLane) -> None:
        stop = lane.stop
        try:
            report = lane.report()
        except WorkerDiedError as error:
            self._mourn(lane, error.with_traceback(None))
        except Exception as error:
            self._fail(max(lane.cursor, 0), error.with_traceback(None))
        else:
            self._note_alive(lane, report)
            for index, packed in report.errors.items():
                self._lose(index, cast(Exception, unpack_exception(packed)))
            if self._rows.infos is not None:
                self._rows.infos.update(report.infos)
            for index, value in report.observations.items():
                self._rows.observations[index] = value
            if report.stop < stop:
                self._pending.append((report.stop, stop))

    def _note_alive(self, lane: WorkerLane, report: Report) -> None:
        """Learn from a lane that has done its rows."""
        self._house.note_rows_done(report, report.stop - lane.start)
        if lane.alone and report.stop > lane.start:
            self._outran.discard(lane.start)
            if self._deaths[lane.start]:
                # The row was innocent: its worker was killed by something else.
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
        alone = (lane.start for lane in self._lanes if lane.busy and lane.alone)
        if row not in self._suspects and row not in alone:
            self._suspects.append(row)

    def _take_back(self, lane: WorkerLane) -> tuple[int, int, int]:
        """Return a lost lane's rows: the first to do again, the one it was in, and the end."""
        # What a lane would have told is lost, even of rows that are done in shared memory.
        return lane.start if self._told else lane.done, lane.cursor, lane.reach

    def _retry(self, start: int, row: int, stop: int) -> None:
        """Hand out again all rows from `start` to `stop` but `row`, and those that are lost."""
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
            self._failure = (row, error)
        last = self._failure[0]
        self._suspects = deque(row for row in self._suspects if row < last or row in self._outran)
        start, stop = self._own
        self._own = (start, min(stop, last)) if start < last and row != start else (0, 0)
        for lane in self._lanes:
            if lane.busy and lane.stop > last:
                lane.end_at(max(last, 0))

    def _below_failure(self) -> bool:
        """Return whether rows below the lowest failure are still on their way.

        All lanes are awaited, as they stop soon. But where the failure is a timeout, others may
        hang as well: then only rows that did so before are, to be told with it.
        """
        assert self._failure is not None
        row, error = self._failure
        hangs = isinstance(error, StepTimeoutError)
        also = self._outran if hangs else set()
        return (
            any(
                lane.busy and (not hangs or lane.done < row or lane.done in also)
                for lane in self._lanes
            )
            or any(start < row for start, _ in self._pending)
            or any(suspect < row or suspect in also for suspect in self._suspects)
        )

    def abandon(self) -> None:
        """Tell every lane to stop; what they still answer is no longer awaited."""
        for lane in self._lanes:
            if lane.busy:
                lane.end_at(0)

    def _nap(self) -> float:
        limit = self._house.step_timeout
        return _WAIT_SECONDS if limit is None else min(_LOOK_AT_CLOCK_SECONDS, limit / 8)
