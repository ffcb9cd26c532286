"""`Dispatcher`: steps the rows of one batch on workers and in this process.

The rows are divided into ranges, which become smaller toward the end of the batch. Each process
takes the next range when it has finished its last one (see `Tokens`), and then marks its rows in
shared memory. If a worker dies or hangs, the rows that it had taken are put back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import single_steps, steps_of
from plangym_like.errors import WorkerDiedError
from plangym_like.execution.costs import CostModel
from plangym_like.execution.job import MORE
from plangym_like.execution.row_faults import RowFaults
from plangym_like.execution.row_pool import RowPool
from plangym_like.execution.row_worker import RowWorker
from plangym_like.execution.shared_batch import SharedBatch
from plangym_like.execution.tokens import Range, cut
from plangym_like.processes.remote_errors import unpack_exception
from plangym_like.processes.shared_memory import WRITES_IN_ORDER
from plangym_like.processes.wire import loads

StepHere = Callable[[int, int], "dict[int, Exception] | None"]

# How long this process steps rows before it checks for dead workers (`benchmarks/constants.py`).
_LOOK_SECONDS = 6e-3
# The longest sleep between checks (replies and deaths end it earlier), and the least number of
# checks within a step timeout.
_SLEEP_SECONDS, _LOOKS_PER_TIMEOUT = 0.5, 16
# The time limit for the second try of a row that hung. It is short, because the caller has already
# waited. If rows are slow, the limit is the time of `_SECOND_TRY_ROWS` rows.
_SECOND_TRY_SECONDS, _SECOND_TRY_ROWS = 0.2, 10
# How long a worker may take to begin its rows, in addition to the step timeout. A worker that takes
# longer was stopped or has no core; replacing it costs the start of a process.
_BEGIN_SECONDS = 3.0
# In `marks`: this process has stepped the row, or it is not to be stepped any more.
HERE = -1


class Dispatcher:
    """Steps one batch on the workers of a pool, and in this process.

    Parameters
    ----------
    pool : RowPool
        The workers.
    costs : CostModel
        The times measured in earlier batches.
    batch : SharedBatch
        The batch whose rows are stepped.
    step_here : callable or None
        ``step_here(start, stop)`` steps rows in this process. With ``on_error="mask"``, it returns
        the exceptions of rows that failed, instead of raising. ``None``: only workers step rows.
    """

    def __init__(
        self,
        pool: RowPool,
        costs: CostModel,
        batch: SharedBatch,
        step_here: StepHere | None,
    ) -> None:
        self._pool, self._batch, self._step_here = pool, batch, step_here
        self._costs, self._steps = costs, steps_of(batch.inputs)
        # Audits cost little time, so they do not wait twice for a row that hangs.
        self._faults = RowFaults(
            pool.policy, pool.step_timeout, masked=batch.masked, tries_again=not batch.audit
        )
        # Identifies the batch in `RowWorker.owner`. The dispatcher itself would make a reference
        # cycle through pool and workers.
        self.owner = object()
        self.count = batch.inputs.count
        self._marks = batch.marks
        # Ranges to be put into the pipe: it is full, or holds the tokens of another batch.
        self._waiting: list[Range] = []
        # Whether some results come in the workers' reports instead of in shared memory.
        self._reported = batch.masked or batch.rows.have_objects
        self._taken, self._seconds = 0.0, 0.0

    @property
    def failure(self) -> Exception | None:
        """The error that ends the batch (of the failed row with the lowest index), or ``None``."""
        return self._faults.failure

    def _held(self) -> list[RowWorker]:
        """Return the workers that are stepping rows of this batch."""
        return [worker for worker in self._pool.workers if worker.owner is self.owner]

    # Dealing rows

    def launch(self, *, here: bool) -> None:
        """Let every ready worker step rows of the batch; if `here` is true, this process too.

        If `here` is true but the time per row is not known yet, this process first steps one row,
        the last.

        Raises
        ------
        StateFormatError
            The checksum of a state is wrong.
        """
        self._pool.count_rows()
        count = self._probe() if here and self._step_here is not None else self.count
        workers = [worker for worker in self._pool.workers if worker.free]
        if self._batch.audit and count < len(workers) and not self._batch.inputs.horizon:
            # The first workers have probably stepped these rows before. Rollouts stay with them, so
            # that they are compared with single steps of other workers.
            workers = workers[::-1][:count]
        self._batch.begin()
        for start, stop in self._batch.parts():
            later = single_steps(self._batch.inputs, min(stop, count), count) / self._horizon
            self._deal(start, min(stop, count), later)
            if start == 0:
                self._begin(workers, more=stop < count)
        for worker in self._held():
            worker.slot[MORE] = 0

    def _begin(self, workers: Sequence[RowWorker], *, more: bool) -> None:
        """Let workers take the first tokens; `more` says that others will follow."""
        for worker in workers[: self.num_tokens]:
            worker.slot[MORE] = more
            self._batch.send(worker, self.owner, self._pool.tokens)

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the batch that no process has taken."""
        return len(self._pool.tokens) if self._pool.dealing is self.owner else 0

    def _probe(self) -> int:
        """Step the last row if the time per row is not known; return how many rows are left."""
        if self._costs.seconds_per_row(self._steps):
            return self.count
        first = self.count - 1
        self._batch.verify_from(first)
        self._step(first, self.count)
        return first

    @property
    def _processes(self) -> int:
        """The number of processes that step rows."""
        return len(self._pool.workers) + (self._step_here is not None)

    def _deal(self, start: int, stop: int, later: float = 0.0) -> None:
        """Divide rows into tokens, and put these into the pipe; `later` is as in `cut`."""
        seconds = self._costs.seconds_per_row(self._steps) / self._steps * self._horizon
        # On a cluster, there may be no process yet.
        processes = max(1, self._processes)
        self._put(cut(start, stop, self._batch.inputs.dt, seconds, processes, later))

    @property
    def _horizon(self) -> int:
        """The number of steps of each row of a rollout; 1 in ``step_batch``."""
        return max(1, self._batch.inputs.horizon)

    def _put(self, ranges: Iterable[Range]) -> None:
        """Put ranges into the pipe, or keep them until there is room.

        The pipe holds the tokens of one batch at a time: a worker steps one batch at a time.
        """
        pool = self._pool
        if pool.dealing is not self.owner:
            if pool.dealing is not None and len(pool.tokens):
                self._waiting += ranges
                return
            pool.dealing = self.owner
        self._waiting += pool.tokens.put(self._batch.number, ranges)

    def _put_waiting(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._put(waiting)

    def advance(self, *, here: bool) -> bool:
        """Read reports and deal more rows, without waiting; return whether the batch is over.

        If `here` is true, this process may step rows too.
        """
        self._put_waiting()
        for worker in self._held():
            if worker.task is not None and worker.task.done():
                self._read_report(worker)
            elif self._pool.step_timeout is not None:
                self._check_progress(worker, self._pool.step_timeout)
        if self._faults.errors:  # these rows are not stepped any more
            self._marks[list(self._faults.errors)] = HERE
        self._stop_above_failure()
        self._feed(here=here)
        self._put_back_lost()
        lowest = self._faults.lowest
        if lowest is not None:
            unstepped = not self._marks[:lowest].all()
            return not self._faults.waits_for(below=unstepped, busy=bool(self._held()))
        return not self._faults.suspects and self._all_done()

    def _feed(self, *, here: bool) -> None:
        """Let free workers step rows, suspects first.

        If `here` is true, this process takes the next token.
        """
        suspects = self._faults.suspects
        least = 1 + (here and self._step_here is not None)
        for worker in self._pool.workers:
            if not worker.free:
                continue
            if suspects:
                row = suspects.popleft()
                self._batch.send(worker, self.owner, self._pool.tokens, (row, row + 1))
            elif self.num_tokens >= least:
                worker.slot[MORE] = 0
                self._batch.send(worker, self.owner, self._pool.tokens)

    def _put_back_lost(self) -> None:
        """Put rows back whose token was lost: its worker died before it could say what it took."""
        if self._waiting or self.num_tokens:
            return
        elsewhere = self._elsewhere()
        # A worker without a range may just have taken a token.
        if any(start == stop for start, stop in elsewhere):
            return
        left = self._marks == 0
        for start, stop in elsewhere:
            left[start:stop] = False
        if self._faults.lowest is not None:
            left[self._faults.lowest :] = False
        if left.any():
            self._put_back(np.flatnonzero(left))

    def _elsewhere(self) -> list[Range]:
        """Return the ranges that workers have taken, and the rows that are to be tried alone."""
        held = [worker.range for worker in self._held() if worker.alone is None]
        alone = (*self._tried(), *self._faults.suspects)
        return held + [(row, row + 1) for row in alone]

    def _put_back(self, rows: Any) -> None:
        """Put single rows back, as one token each."""
        rows = [int(row) for row in rows if int(row) not in self._faults.errors]
        self._pool.tally.rows_retried += len(rows)
        self._put([(row, row + 1) for row in rows])

    def _all_done(self) -> bool:
        """Return whether all rows are done; do not wait for reports that are not needed."""
        if not self._marks.all():
            return False
        busy = self._held()
        if self._reported or not WRITES_IN_ORDER:
            return not busy
        for worker in busy:
            if worker.alone is None:
                worker.take_task()
        return not self._held()

    def done(self) -> bool:
        """Return whether shared memory tells that all rows are done."""
        return bool(WRITES_IN_ORDER and not self._reported and self._marks.all())

    def max_sleep(self) -> float:
        """Return the longest time, in seconds, between two checks of the workers."""
        limit = self._pool.step_timeout
        return _SLEEP_SECONDS if limit is None else min(_SLEEP_SECONDS, limit / _LOOKS_PER_TIMEOUT)

    # Stepping here

    @property
    def steps_next(self) -> bool:
        """Whether `step_own` would step rows now."""
        return self._step_here is not None and self.num_tokens > 0

    def step_own(self) -> bool:
        """Step rows in this process until the workers must be checked.

        Return whether there were any.
        """
        if self._step_here is None:
            return False
        until, stepped = time.perf_counter() + _LOOK_SECONDS, False
        while (found := self._pool.tokens.take_of(self._batch.number)) is not None:
            stepped = True
            if not self._step(*found) or time.perf_counter() > until:
                break
        return stepped

    def _step(self, start: int, stop: int) -> bool:
        """Step rows in this process; return whether none of them has failed the batch."""
        begun = time.perf_counter()
        assert self._step_here is not None
        try:
            self._faults.errors |= self._step_here(start, stop) or {}
        except Exception as error:
            row = int(self._batch.rows.cursor[0])
            self._marks[start:row] = HERE
            self._faults.fail(row, error)
            self._stop_above_failure()
            return False
        self._marks[start:stop] = HERE
        seconds = time.perf_counter() - begun
        self._pool.tally.seconds_here += seconds
        self._taken += single_steps(self._batch.inputs, start, stop)
        self._seconds += seconds
        if not self._costs.seconds_per_row(self._steps):
            self._note_costs()
        return True

    def _note_costs(self) -> None:
        if self._taken:
            self._costs.note(self._taken, self._steps, seconds=self._seconds)

    # Reports, and workers that fail

    def _read_report(self, worker: RowWorker) -> None:
        # The error's type does not show whether the worker died: a row may raise this type, too.
        died, alone = worker.died, worker.alone
        try:
            report = worker.report()
        except Exception as error:
            error = error.with_traceback(None)
            if died and isinstance(error, WorkerDiedError):
                self._replace_dead(worker, error)
            else:
                start, stop = worker.range
                row = max(worker.cursor, 0)
                if start <= row < stop:
                    self._marks[start:row] = HERE
                self._faults.fail(row, error)
            return
        if alone is not None:
            self._faults.note_survived(alone)
        for index, packed in report.errors.items():
            self._faults.lose(index, cast(Exception, unpack_exception(packed)))
        try:
            infos, observations = loads(report.objects) if report.objects else ({}, {})
        except Exception as error:
            self._find_unreadable(worker, error)
        else:
            rows = self._batch.rows
            if rows.infos is not None:
                rows.infos.update(infos)
            for index, value in observations.items():
                rows.observations[index] = value
            # Their results are here now, so they are not stepped again if the worker dies later.
            self._marks[self._stepped_by(worker)] = HERE

    def _stepped_by(self, worker: RowWorker) -> NDArray[np.bool_]:
        """Return a mask of the rows that `worker` has stepped and not reported yet, ``(N,)``."""
        mine: NDArray[np.bool_] = self._marks == worker.index + 1
        return mine

    def _find_unreadable(self, worker: RowWorker, error: Exception) -> None:
        """Find the row whose report cannot be unpickled: queue each row to be stepped alone."""
        mine = np.flatnonzero(self._stepped_by(worker))
        rows = [int(row) for row in mine if row not in self._faults.errors]
        if len(rows) == 1:
            error.add_note(f"(in row {rows[0]} of a batch of {self.count})")
            self._faults.lose(rows[0], error.with_traceback(None))
        elif self._faults.lowest is None:
            self._faults.suspects.extend(rows)
            self._marks[rows] = 0

    def _replace_dead(self, worker: RowWorker, error: WorkerDiedError) -> None:
        """Replace a dead worker, and put its unfinished rows back.

        The row in which it died is tried again alone; if this row is to blame, it fails instead.
        """
        (start, stop), row, alone = worker.range, worker.cursor, worker.alone
        in_row = start <= row < stop
        progress = bool(self._stepped_by(worker).any())
        self._pool.replace_dead(worker, idle=not in_row)
        if progress:
            self._pool.policy.note_progress()
        else:
            self._pool.policy.note_death_without_progress(error)
        if in_row:
            self._faults.note_death(row, error, alone=alone is not None, tried=self._tried())
        self._retry(worker, start, stop, row if in_row else None, alone)

    def _check_progress(self, worker: RowWorker, limit: float) -> None:
        """Replace `worker` if it hangs; its row is tried once more, with a short time limit."""
        (start, stop), row, alone = worker.range, worker.cursor, worker.alone
        begun, again = start <= row < stop, self._faults.is_slow(row)
        patience = limit
        if not begun:
            patience += _BEGIN_SECONDS
        elif again:
            short = max(_SECOND_TRY_SECONDS, _SECOND_TRY_ROWS * self._pool.slowest_row)
            patience = min(limit, short)
        if worker.idle_seconds() <= patience:
            return
        self._pool.tally.timeouts += 1
        self._pool.replace(worker)
        start, stop = worker.range  # it may have gone on until it was killed
        begun = begun and worker.cursor == row and start <= row < stop
        if begun:
            self._faults.note_timeout(row, tried=self._tried())
        self._retry(worker, start, stop, row if begun else None, alone)

    def _tried(self) -> list[int]:
        return [worker.alone for worker in self._held() if worker.alone is not None]

    def _retry(
        self, worker: RowWorker, start: int, stop: int, row: int | None, alone: int | None
    ) -> None:
        """Put back the rows of a replaced worker: its range, and rows whose report is lost.

        `row` is left out, because it is tried alone or has failed. `alone` is the row that the
        worker was to try alone.
        """
        mine = self._stepped_by(worker)
        if self._reported:
            self._marks[mine] = 0
            rows = mine.nonzero()[0].tolist()
        else:
            self._marks[mine] = HERE
            rows = []
        rows += [each for each in range(start, stop) if each != row and not self._marks[each]]
        if alone is not None and row is None and not self._marks[alone]:
            self._faults.suspects.append(alone)
            rows = [each for each in rows if each != alone]
        self._pool.tally.rows_retried += row is not None
        self._put_back(sorted(set(rows) - {row}))

    def _stop_above_failure(self) -> None:
        """Stop stepping rows above the lowest row whose error ends the batch."""
        lowest = self._faults.lowest
        if lowest is None:
            return
        tokens, self._waiting = self._waiting, []
        if self._pool.dealing is self.owner:
            tokens += self._pool.tokens.drain()
        self._put([(start, min(stop, lowest)) for start, stop in tokens if start < lowest])
        for worker in self._held():
            if worker.range[0] >= lowest:
                worker.cancel()

    # The end

    def result(self) -> Any:
        """Return the result of a batch that is over."""
        rows, seconds = self._pool.count_rows()
        if self._step_here is None and rows == self.count:  # no rows of other batches
            self._taken, self._seconds = rows * self._steps, seconds
        self._note_costs()
        self._end()
        return self._batch.result(self._faults.errors)

    def _end(self) -> None:
        """Leave the pipe to other batches."""
        if self._pool.dealing is self.owner:
            self._pool.tokens.drain()
            self._pool.dealing = None

    def abandon(self) -> None:
        """Tell the batch's workers to stop, and keep its memory until all of them have stopped."""
        self._waiting = []
        self._end()
        for worker in self._held():
            worker.abandon()
        self._pool.keep_until_unused(self._batch.memory, self.owner)
