"""`BatchRun`: one batch that is being stepped, by workers and by this process.

The rows are divided into ranges, which become smaller toward the end of the batch. Each process
takes the next range when it has finished its last one (see `Tokens`), and then marks its rows in
shared memory. If a worker dies or hangs, the rows that it had taken are put back.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import numpy as np

from plangym_like.batch.arrays import single_steps, steps_of
from plangym_like.batch.row_stepper import RowStepper
from plangym_like.errors import ClosedError, WorkerDiedError
from plangym_like.execution.row_faults import RowFaults
from plangym_like.execution.row_pool import Outcome, RowPool, RowWorker
from plangym_like.execution.row_server import Report, unreported
from plangym_like.execution.shared_batch import FINE_SECONDS, Range, SharedBatch, cut
from plangym_like.processes.remote_errors import portable, unpack_exception
from plangym_like.processes.wire import loads
from plangym_like.results import Future

# How long this process steps rows before it checks for dead workers.
_LOOK_SECONDS = 6e-3
# If the rest of a batch takes less time, this process polls for its end instead of sleeping.
_SOON_SECONDS = 1e-3
# How long a worker may take to begin its rows, in addition to the step timeout. A worker that takes
# longer was stopped or has no core; replacing it costs the start of a process.
_BEGIN_SECONDS = 3.0
# How long this process measures rows whose time is not known: at least, and at most. It goes on
# while a step takes less than `_EVEN` of the time of a step in a range of half the size.
_MEASURE_SECONDS, _SLOW_SECONDS, _EVEN = 5e-4, 5e-3, 0.8
# In `marks`: this process has stepped the row, or it is not to be stepped any more.
HERE = -1
_INTERRUPTED = "this batch was interrupted, so it has no results: step again"


class BatchRun:
    """Steps one batch on the workers of a pool, and in this process; the source of its `Future`.

    Parameters
    ----------
    owner : ProcessExecutor
        Advances the batch; referenced weakly, since it refers to its batches.
    batch : SharedBatch
        The batch whose rows are stepped.
    stepper : RowStepper or None
        Steps rows in this process; ``None`` leaves all rows to workers.

    Attributes
    ----------
    result, error
        The result of the batch, or the error that ended it.
    done : bool
        Whether the batch is over.
    interrupted : bool
        Whether an interrupt, such as Ctrl-C, came while the batch was advanced. Its state may be
        inconsistent, so it is then dropped.
    ends_soon : bool
        Whether to expect the last rows within about a millisecond.
    """

    # The least seconds of a token.
    _fine_seconds = FINE_SECONDS

    def __init__(self, owner: Any, batch: SharedBatch, stepper: RowStepper | None) -> None:
        self._owner = weakref.proxy(owner)
        self._pool: RowPool = owner.pool
        self._batch, self._stepper = batch, stepper
        self._pool.stats.bytes_shared += batch.nbytes
        self._marks, self._steps = batch.marks, steps_of(batch.inputs)
        self._horizon = max(1, batch.inputs.horizon)
        self.number, self.count = batch.number, batch.inputs.count
        seconds = self.count * owner.costs.seconds_per_row(self._steps)
        # If this process steps rows, the workers end when it does.
        self.ends_soon = stepper is not None or seconds < _SOON_SECONDS * self._processes
        self._faults = RowFaults(masked=batch.masked)
        # Ranges to be put into the pipe: it is full, or holds the tokens of another batch.
        self._waiting: list[Range] = []
        # When the batch last made progress, as far as this is known.
        self._progress_at = self._begun_at = time.monotonic()
        # The single steps taken in this process, and their seconds.
        self._taken, self._seconds = 0.0, 0.0
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = self.interrupted = False
        self._future: weakref.ref[Future[Any]] | None = None

    # The future of the batch

    def future(self, owner: Any = None) -> Future[Any]:
        """Make the batch's future, which keeps `owner` alive until the batch is over.

        Call this only once.
        """
        future: Future[Any] = Future(self, owner)
        self._future = weakref.ref(future)
        return future

    @property
    def what(self) -> str:
        """The name of the batch in error messages."""
        return f"a batch of {self.count} rows"

    @property
    def settled(self) -> bool:
        """Whether the batch is known to be over."""
        return self.done

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return ``(result, None)`` or ``(None, error)``; the batch must be over."""
        return self.result, self.error

    def seconds(self) -> float:
        """Return how long ago the batch was made."""
        return time.monotonic() - self._begun_at

    @property
    def dropped(self) -> bool:
        """Whether nobody can get the result: it was interrupted, or its `Future` is gone."""
        return self.interrupted or (self._future is not None and self._future() is None)

    def settle(self, timeout: float | None) -> bool:
        """Wait at most `timeout` seconds, and return whether the batch is over."""
        if self.done:
            return True
        if timeout is None:
            with self._owner.lock:
                self._drive(math.inf)
            return self.done
        until = time.monotonic() + timeout if timeout > 0 else -math.inf
        # Another thread may hold the lock for longer than `timeout`.
        if self._owner.lock.acquire(timeout=max(timeout, 0.0)):
            try:
                self._drive(until)
            finally:
                self._owner.lock.release()
        return self.done

    def _drive(self, until: float) -> None:
        if not self.done:
            with self._owner.alone():
                self.attempt(partial(self._owner.drive, self, until))

    def cancel(self, error: BaseException) -> bool:
        """Stop the batch; its future then raises `error`. Return False if it was already over."""
        with self._owner.lock:
            if self.done:
                return False
            with self._owner.alone():
                self.drop(error)
            return True

    def drop(self, error: BaseException) -> None:
        """Do what `cancel` does; the caller must already hold the owner's locks."""
        self.attempt(partial(self._fail, error))

    def attempt(self, advance: Callable[[], bool]) -> bool:
        """Call `advance`, and return whether the batch is over; an error ends the batch.

        An `Exception` is stored, and raised by the batch's `Future`. Any other error, such as
        `KeyboardInterrupt`, is raised here, and the batch's `Future` then raises `ClosedError`.
        """
        try:
            return self._attempt(advance)
        except BaseException:
            self.interrupted = True
            # If this is interrupted too, the owner drops the batch before the next one.
            self._attempt(advance)
            raise

    def _attempt(self, advance: Callable[[], bool]) -> bool:
        try:
            if self.done:  # an interrupt came before the owner recorded it
                over = True
            elif self.interrupted:
                over = self._fail(ClosedError(_INTERRUPTED))
            else:
                over = advance()
                if over and self.error is None:
                    self._finish()
        except Exception as error:
            over = self._fail(error)
        if over:
            self.done = True
            self._owner.note_done(self)
            # Only the caller keeps the memory of the result in use.
            for name in ("_batch", "_marks"):
                vars(self).pop(name, None)
        return over

    # Dealing rows

    def launch(self, *, here: bool) -> bool:
        """Deal the rows of the batch; if `here` is true, this process may step some of them.

        If `here` is true but the time per row is not known yet, this process first steps the last
        rows. Return whether the batch is over.

        Raises
        ------
        StateFormatError
            The checksum of a state is wrong.
        """
        self._pool.prepare()
        self._pool.count_rows()
        count = self.count
        known = self._owner.costs.seconds_per_row(self._steps)
        if here and self._stepper is not None and not known:
            count = self._measure()
        self._batch.begin()
        for start, stop in self._batch.parts():
            stop = min(stop, count)
            if start < stop:
                later = single_steps(self._batch.inputs, stop, count) / self._horizon
                self._deal(start, stop, later)
        return False

    def _measure(self) -> int:
        """Step the last rows in this process, to learn their time; return how many are left.

        The first range is one row, and may be slow because much happens for the first time. Each
        range is twice as large as the last one, until rows of larger ranges take hardly less time.
        """
        count, size, latest, seconds = self.count, 1, math.inf, 0.0
        while count:
            before, stop = self._seconds, count
            count -= min(size, count)
            if not self._step(count, stop):
                break
            taken = self._seconds - before
            if stop == self.count and taken > _SLOW_SECONDS:
                break
            if stop < self.count:
                steps = single_steps(self._batch.inputs, count, stop)
                self._owner.costs.note(steps, self._steps, seconds=taken)
                previous, latest, seconds = latest, taken / steps, seconds + taken
                is_even = latest > _EVEN * previous and seconds > _MEASURE_SECONDS
                if is_even or seconds > _SLOW_SECONDS:
                    break
                size *= 2
        return count

    @property
    def _processes(self) -> int:
        """The number of processes that step rows."""
        return len(self._pool.workers) + (self._stepper is not None)

    def _deal(self, start: int, stop: int, later: float = 0.0) -> None:
        """Divide rows into tokens, and put these into the pipe; `later` is as in `cut`."""
        seconds = self._owner.costs.seconds_per_row(self._steps) / self._steps * self._horizon
        # On a cluster, there may be no process yet.
        processes = max(1, self._processes)
        steps, fine = self._batch.inputs.dt, self._fine_seconds
        self._put(cut(start, stop, steps, seconds, processes, later, fine))

    def _put(self, ranges: Iterable[Range]) -> None:
        """Put ranges into the pipe, or keep them until there is room.

        The pipe holds the tokens of one batch at a time: a worker steps one batch at a time.
        """
        pool = self._pool
        self._waiting += ranges
        if pool.dealing is not self._batch:
            if pool.dealing is not None and len(pool.tokens):
                return
            pool.deal(self._batch)  # workers need the batch's blocks before its tokens
        self._waiting = pool.tokens.put(self._batch.key, self._waiting)

    def _put_back(self, rows: Any) -> None:
        """Put rows back that have not failed, as one token each."""
        rows = [int(row) for row in rows if self._faults.is_left(int(row))]
        self._pool.stats.rows_retried += len(rows)
        self._put([(row, row + 1) for row in rows])

    def _put_back_lost(self) -> None:
        """Put rows back whose token was lost: its worker died before it could say what it took."""
        # The order matters: a worker shows its range before it marks the rows, and gives the range
        # up only after that.
        if any(worker.may_have_taken for worker in self._pool.workers):
            return
        taken = self._taken_ranges()
        left = self._marks == 0
        for start, stop in taken:
            left[start:stop] = False
        if left.any() and not self.num_tokens:
            self._put_back(np.flatnonzero(left))

    def _taken_ranges(self) -> list[Range]:
        """Return the ranges that workers have taken."""
        return [each.range for each in self._pool.workers if each.batch == self.number]

    @property
    def has_more(self) -> bool:
        """Whether there are tokens for which the pipe has no room."""
        return bool(self._waiting) and self._pool.dealing is self._batch

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the batch that no process has taken."""
        return len(self._pool.tokens) if self._pool.dealing is self._batch else 0

    # Stepping

    def advance(self) -> bool:
        """Read reports and deal more rows, without waiting; return whether the batch is over."""
        if self._pool.outcomes:
            for outcome in self._pool.outcomes_of(self.number):
                self._take_in(outcome)
        if self._pool.step_timeout is not None:
            self._check_progress(self._pool.step_timeout)
        faults = self._faults
        if faults.errors:  # these rows are not stepped any more
            self._marks[list(faults.errors)] = HERE
        if faults.lowest is None and self.is_done():
            return True
        if faults.lowest is not None:
            self._stop_above(faults.lowest)
        if self._waiting:
            self._put(())
        if not (self._waiting or self.num_tokens or self._marks.all()):
            self._put_back_lost()
        # Rows below may still fail.
        return faults.lowest is not None and self.is_done(faults.lowest)

    def is_done(self, count: int | None = None) -> bool:
        """Return whether the results of all rows, or the first `count`, are in memory."""
        marks = self._marks[:count]
        return bool(marks.all() and (marks >= HERE).all())

    @property
    def steps_next(self) -> bool:
        """Whether `step_own` would step rows now."""
        return self._stepper is not None and self.num_tokens > len(self._faults.suspects)

    def step_own(self) -> bool:
        """Step rows in this process until the workers must be checked.

        Return whether there were any.
        """
        if self._stepper is None:
            return False
        until, stepped = time.perf_counter() + _LOOK_SECONDS, False
        while True:
            rows = self._pool.tokens.take_of(self._batch.key)
            if rows is None:
                return stepped
            if rows[0] in self._faults.suspects:  # it could end this process
                self._pool.tokens.put_back(self._batch.key, rows)
                return stepped
            stepped = True
            if not self._step(*rows) or time.perf_counter() > until:
                return True

    def _step(self, start: int, stop: int) -> bool:
        """Step rows in this process; return whether none of them has failed the batch."""
        begun, batch = time.perf_counter(), self._batch
        assert self._stepper is not None
        batch.rows.cursor[0] = start
        try:
            batch.verify(start, stop)
            errors = self._stepper.run_rows(batch.rows, start, stop, masked=batch.masked)
            self._faults.errors |= errors or {}
        except Exception as error:
            row = int(batch.rows.cursor[0])
            self._marks[start:row] = HERE
            self._faults.fail(row, error)
            self._stop_above(row)
            return False
        self._marks[start:stop] = HERE
        seconds = time.perf_counter() - begun
        self._pool.stats.seconds_here += seconds
        self._taken += single_steps(batch.inputs, start, stop)
        self._seconds += seconds
        if not self._owner.costs.seconds_per_row(self._steps):
            self._owner.costs.note(self._taken, self._steps, seconds=self._seconds)
        return True

    # Reports, and workers that fail

    def _take_in(self, outcome: Outcome) -> None:
        """Take in a worker's report, or put back what it had taken if it has died."""
        report, index = outcome.report, outcome.worker
        if outcome.died:
            self._retry_of_dead(outcome)
            return
        if outcome.error is not None:
            self._faults.fail(0, outcome.error)
            return
        if report is None:
            self._marks[self._marks == unreported(index)] = 0
            return
        if report.failure:
            self._marks[report.start : report.row] = HERE
            error = unpack_exception(report.failure)
            self._faults.fail(report.row, portable(error).with_traceback(None))
        for row, packed in report.errors.items():
            self._faults.lose(row, cast(Exception, unpack_exception(packed)))
        self._read_objects(index, report)

    def _read_objects(self, worker: int, report: Report) -> None:
        reported = np.zeros(self.count, bool)
        for start, stop in report.stepped:
            reported[start:stop] = True
        # The worker may have stepped more rows since.
        reported &= self._marks == unreported(worker)
        rows = self._batch.rows
        for row, packed in report.objects.items():
            if not reported[row]:
                continue
            try:
                info, observations = loads(packed)
            except Exception as error:
                error.add_note(f"(in row {row} of a batch of {self.count})")
                self._faults.lose(row, error.with_traceback(None))
                continue
            if info is not None:
                assert rows.infos is not None
                rows.infos[row] = info
            for array, observation in zip(rows.objects, observations, strict=True):
                array[row] = observation
        self._marks[reported] = worker + 1

    def _retry_of_dead(self, outcome: Outcome) -> None:
        """Put the unfinished rows of a dead worker back, unless the row in it is to blame."""
        row, (start, stop) = outcome.row, outcome.range
        error = cast(WorkerDiedError, outcome.error)
        mine = self._marks == outcome.worker + 1
        if mine.any() or (self._marks == unreported(outcome.worker)).any():
            self._marks[mine] = HERE
            self._pool.policy.note_progress()
        elif not (stop - start == 1 and row in self._faults.suspects):  # their deaths are counted
            self._pool.policy.note_death_without_progress(error)
        if outcome.in_row:
            self._faults.note_death(row, error, alone=stop - start == 1)
        self._retry(outcome.range)

    def _check_progress(self, limit: float) -> None:
        """Replace workers that hang; their rows are tried once more."""
        busy = False
        for worker in self._pool.workers:
            if worker.batch == self.number or worker.may_have_taken:
                busy = True
                self._check_worker(worker, limit)
        if busy or not self.num_tokens or self._stepper is not None:
            self._progress_at = time.monotonic()
        elif time.monotonic() - self._progress_at > limit + _BEGIN_SECONDS:
            # No worker takes a token: all of them were stopped.
            self._progress_at = time.monotonic()
            for worker in self._pool.workers:
                if worker.free:
                    self._pool.stats.timeouts += 1
                    self._pool.replace(worker)

    def _check_worker(self, worker: RowWorker, limit: float) -> None:
        (start, stop), row = worker.range, worker.cursor
        begun = start <= row < stop
        if worker.idle_seconds() <= limit + (not begun) * _BEGIN_SECONDS:
            return
        self._pool.stats.timeouts += 1
        self._pool.replace(worker)
        left, last, batch = worker.left_at
        if batch != self.number:
            return
        if begun and last == row and left[0] <= row < left[1]:
            self._faults.note_timeout(row, limit)
        self._retry(left)

    def _retry(self, left: Range) -> None:
        """Put back the rows of a replaced worker that are left of its range."""
        self._put_back(row for row in range(*left) if not self._marks[row])

    def _stop_above(self, lowest: int) -> None:
        """Deal no rows above `lowest`, the lowest row whose error ends the batch."""
        above = self._marks[lowest:]
        above[above == 0] = HERE
        tokens, self._waiting = self._waiting, []
        if self._pool.dealing is self._batch:
            tokens += self._pool.tokens.drain(self._batch.key)
        self._put([(start, min(stop, lowest)) for start, stop in tokens if start < lowest])

    # The end

    def _finish(self) -> None:
        """Set the result, or the error, of a batch whose rows are done."""
        if self._faults.lowest is not None:
            self._batch.verify()  # its error names the first damaged row of the batch
            self._fail(self._faults.failure)
            return
        batch = self._batch
        rows, seconds = self._pool.count_rows()
        if self._stepper is None and rows == self.count:  # no rows of other batches
            self._taken, self._seconds = rows * self._steps, seconds
        if self._taken:
            self._owner.costs.note(self._taken, self._steps, seconds=self._seconds)
        self._leave_pipe()
        self.result = batch.result(dict(sorted(self._faults.errors.items())))

    def _fail(self, error: BaseException) -> bool:
        """End the batch with an error, once no worker steps its rows any more.

        In a forked copy of this process, only the future ends: the workers, their pipe, and the
        memory that they read belong to the original, which is still stepping the batch.
        """
        if not self.done:
            self.error = error
            self._waiting = []
            if self._owner.is_original():
                self._leave_pipe()
                self._pool.abandon(self._batch)
                self._pool.count_rows()
        return True

    def _leave_pipe(self) -> None:
        """Leave the pipe to other batches."""
        if self._pool.dealing is self._batch:
            self._pool.tokens.drain(self._batch.key)
            self._pool.dealing = None
