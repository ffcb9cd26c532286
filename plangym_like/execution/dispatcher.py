"""`Dispatcher`: distributes the rows of one batch to workers and to this process.

Every process starts with a share of the rows. A process that has finished its share takes half of
the rows that the slowest process still has, and the slowest process's limit is lowered. No lock is
needed, so a killed worker cannot hold one. If two processes step the same row, they write the same
bytes, because a row's result depends only on its inputs. This process steps its rows in descending
order. So the worker whose range ends where this process's range begins can be given more rows by
raising its limit, which is cheaper than sending it a message.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from plangym_like.batches import split
from plangym_like.errors import WorkerDiedError
from plangym_like.execution.batch_costs import BatchCosts
from plangym_like.execution.costs import CostModel
from plangym_like.execution.job import Report
from plangym_like.execution.row_faults import RowFaults
from plangym_like.execution.row_pool import RowPool
from plangym_like.execution.row_worker import RowWorker
from plangym_like.execution.shared_batch import SharedBatch
from plangym_like.processes.messages import loads
from plangym_like.processes.remote_errors import unpack_exception
from plangym_like.row_errors import not_exiting

StepHere = Callable[[int, int], "dict[int, Exception] | None"]

# How long this process steps its own rows before it checks for dead workers
# (`benchmarks/constants.py`).
_LOOK_SECONDS = 6e-3
# The longest sleep between checks (replies and deaths end it earlier), and the least number of
# checks within a step timeout.
_SLEEP_SECONDS, _LOOKS_PER_TIMEOUT = 0.5, 16
# A worker can be given up to 1 / `_AHEAD` more rows than its share without another message
# (`benchmarks/never_slower.py`).
_AHEAD = 16
# The time limit for the second try of a row that hung. It is short, because the caller has already
# waited. If rows are slow, the limit is the time of `_SECOND_TRY_ROWS` rows.
_SECOND_TRY_SECONDS, _SECOND_TRY_ROWS = 0.2, 10
# How long a worker may take to begin its rows, in addition to the step timeout. A worker that takes
# longer was stopped or has no core; replacing it costs the start of a process.
_BEGIN_SECONDS = 3.0


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
        self._costs = BatchCosts(costs, batch.rows.inputs)
        # Audits cost little time, so they do not wait twice for a row that hangs.
        self._faults = RowFaults(
            pool.policy, pool.step_timeout, masked=batch.masked, tries_again=not batch.audit
        )
        # Identifies the batch in `RowWorker.owner`. The dispatcher itself would make a reference
        # cycle through pool and workers.
        self.owner = object()
        self.count = batch.rows.inputs.count
        self._pending: deque[tuple[int, int]] = deque()
        self._own = (0, 0)
        # Whether some results come in the workers' reports instead of in shared memory.
        self._reported = batch.masked or batch.rows.have_objects
        # Whether workers step one row at a time, because a worker has died.
        self._careful = False

    @property
    def failure(self) -> Exception | None:
        """The error that ends the batch (of the failed row with the lowest index), or ``None``."""
        return self._faults.failure

    @property
    def has_own_rows(self) -> bool:
        """Whether this process has rows to step."""
        return self._own[0] < self._own[1]

    def _held(self) -> list[RowWorker]:
        """Return the workers that are stepping rows of this batch."""
        return [worker for worker in self._pool.workers if worker.owner is self.owner]

    # Distributing rows

    def launch(self, *, here: bool) -> None:
        """Give every ready worker its share of the rows; if `here` is true, this process too.

        If `here` is true but the time per row is not known yet, this process steps one row first.

        Raises
        ------
        StateFormatError
            The checksum of a state is wrong.
        """
        here = here and self._step_here is not None
        count = self._probe() if here else self.count
        workers = [worker for worker in self._pool.workers if worker.free]
        if self._batch.audit and count < len(workers) and not self._batch.rows.inputs.horizon:
            # The first workers have probably stepped these rows before. Rollouts stay with them, so
            # that they are compared with single steps of other workers.
            workers.reverse()
        self._batch.begin(len(self._pool.workers), self._costs.seconds_per_row)
        if not (workers or here):
            self._pending.append((0, count))
        else:
            shares = list(split(count, len(workers) + here))
            self._own = shares[-1] if here else (0, 0)
            for worker, (start, stop) in zip(workers, shares, strict=False):
                if stop > start:
                    self._send(worker, start, stop)
        self._batch.supply_rest()

    def _probe(self) -> int:
        """Step the last row if the time per row is not known; return how many rows are left."""
        if self._costs.seconds_per_row:
            return self.count
        first = self.count - 1
        self._batch.verify_from(first)
        self._own = (first, self.count)
        self.step_own()
        return first

    def _send(self, worker: RowWorker, start: int, stop: int, *, alone: bool = False) -> None:
        worker.alone = alone
        most = stop
        if stop == self._own[0] and not alone:
            most = min(stop + (stop - start) // _AHEAD, self._own[1])
        self._batch.send(worker, self.owner, start, stop, most, careful=self._careful)
        self._pool.tally.rows_sent += stop - start

    def advance(self, *, here: bool) -> bool:
        """Read reports and distribute more rows, without waiting; return whether the batch is over.

        If `here` is true, this process may get rows too.
        """
        for worker in self._held():
            if worker.task is not None and worker.task.done():
                self._read_report(worker)
            elif self._pool.step_timeout is not None:
                self._check_progress(worker, self._pool.step_timeout)
        self._stop_above_failure()
        self._feed(here=here)
        if self.has_own_rows:
            return False
        if self._faults.lowest is not None:
            stepped = [worker.done for worker in self._held()]
            if not self._faults.waits_for(stepped, [start for start, _ in self._pending]):
                return True
        return not (self._pending or self._faults.suspects) and self._all_done()

    def _feed(self, *, here: bool) -> None:
        """Give rows to every worker that has none; if `here` is true, to this process too."""
        suspects, shared = self._faults.suspects, here and self._step_here is not None
        # A message to a worker is not worth its cost for a few rows that this process can step.
        least = self._costs.least if shared else 1
        for worker in self._pool.workers:
            if not worker.free:
                continue
            if suspects:
                row = suspects.popleft()
                self._send(worker, row, row + 1, alone=True)
            elif (found := self._next_range(least)) is not None:
                self._send(worker, *found)
        if shared and not self.has_own_rows:
            self._own = self._next_range(1) or self._own

    def _next_range(self, least: int) -> tuple[int, int] | None:
        lowest = self._faults.lowest
        for _ in range(len(self._pending)):
            start, stop = self._pending.popleft()
            if lowest is not None:
                stop = min(stop, lowest)
            if start < stop < start + least:
                self._pending.append((start, stop))
            elif start < stop:
                processes = 1 + sum(worker.free for worker in self._pool.workers)
                middle = start + -(-(stop - start) // processes)
                if middle < stop:
                    self._pending.appendleft((middle, stop))
                return start, middle
        return self._steal(least)

    def _steal(self, least: int) -> tuple[int, int] | None:
        """Take rows from the slowest process, for an idle process; return their range.

        At most half of the slowest process's remaining rows are taken, and none that it has begun,
        so both processes finish at about the same time. If there are fewer than `least` rows to
        take, take none and return ``None``.
        """
        # A row that is taken from a worker may be stepped twice: correct only if results are exact.
        workers = self._held() if self._batch.layout.exact else ()
        victim = max(workers, key=lambda worker: worker.unbegun, default=None)
        theirs = 0 if victim is None or victim.alone else min(victim.unbegun, victim.ahead // 2)
        start, stop = self._own
        ours = (stop - start) // 2
        if max(ours, theirs) < least:
            return None
        self._pool.tally.steals += 1
        if victim is None or ours >= theirs:
            self._own = (start + ours, stop)
            return start, start + ours
        victim.end_at(victim.stop - theirs)
        return victim.stop, victim.stop + theirs

    def _all_done(self) -> bool:
        """Return whether all rows are done; do not wait for reports that are not needed."""
        busy = self._held()
        done = all(worker.finished and not worker.owes_report for worker in busy)
        if self._needs_reports or not done:
            return not busy
        for worker in busy:
            worker.leave()
        return True

    @property
    def _needs_reports(self) -> bool:
        return self._reported or self._careful or self._faults.lowest is not None

    def watched(self) -> Sequence[RowWorker]:
        """Return the workers whose reports are not needed; shared memory tells when they finish."""
        return [] if self._needs_reports else self._held()

    def max_sleep(self) -> float:
        """Return the longest time, in seconds, between two checks of the workers."""
        limit = self._pool.step_timeout
        return _SLEEP_SECONDS if limit is None else min(_SLEEP_SECONDS, limit / _LOOKS_PER_TIMEOUT)

    # Stepping here

    def step_own(self) -> None:
        """Step this process's rows, from the last row down, until the workers must be checked."""
        until = time.perf_counter() + _LOOK_SECONDS
        while self.has_own_rows:
            start, stop = self._own
            middle = stop - self._costs.portion(start, stop, last=True)
            begun = time.perf_counter()
            assert self._step_here is not None
            try:
                self._faults.errors |= self._step_here(middle, stop) or {}
            except Exception as error:
                self._faults.fail(int(self._batch.rows.cursor[0]), error)
                self._stop_above_failure()
                return
            now = time.perf_counter()
            self._pool.tally.seconds_here += now - begun
            self._costs.note_portion(middle, stop, seconds=now - begun)
            self._own = (start, middle)
            self._pass_on()
            if now > until or any(worker.left == 0 for worker in self._held()):
                return

    def _pass_on(self) -> None:
        """Give rows to the worker whose range ends where this process's begins, if it has fewer."""
        start, stop = self._own
        for worker in self._held():
            more = min((stop - start - worker.ahead) // 2, worker.most - start)
            if worker.stop == start and more > 0:
                self._own = (start + more, stop)
                self._pool.tally.rows_sent += more
                worker.end_at(start + more)

    # Reports, and workers that fail

    def _read_report(self, worker: RowWorker) -> None:
        # The error's type does not show whether the worker died: a row may raise this type, too.
        died, stop = worker.died, worker.stop
        try:
            report = worker.report()
        except Exception as error:
            error = error.with_traceback(None)
            if died and isinstance(error, WorkerDiedError):
                self._replace_dead(worker, error)
            else:
                self._faults.fail(max(worker.cursor, 0), error)
            return
        self._note_done(worker, report)
        for index, packed in report.errors.items():
            self._faults.lose(index, cast(Exception, unpack_exception(packed)))
        try:
            infos, observations = loads(report.objects) if report.objects else ({}, {})
        except BaseException as error:
            self._find_unreadable(worker, report.stop, not_exiting(error))
        else:
            rows = self._batch.rows
            if rows.infos is not None:
                rows.infos.update(infos)
            for index, value in observations.items():
                rows.observations[index] = value
        if report.stop < stop:
            self._pending.append((report.stop, stop))

    def _note_done(self, worker: RowWorker, report: Report) -> None:
        count = report.stop - worker.start
        self._pool.note_rows_done(report, count)
        if worker.alone and count:
            self._faults.note_survived(worker.start)

    def _find_unreadable(self, worker: RowWorker, stop: int, error: Exception) -> None:
        """Find the row whose report cannot be unpickled: queue each row to be stepped alone."""
        rows = [row for row in range(worker.start, stop) if row not in self._faults.errors]
        if len(rows) == 1:
            error.add_note(f"(in row {rows[0]} of a batch of {self.count})")
            self._faults.lose(rows[0], error.with_traceback(None))
        elif self._faults.lowest is None:
            self._faults.suspects.extend(rows)

    def _replace_dead(self, worker: RowWorker, error: WorkerDiedError) -> None:
        """Replace a dead worker and requeue its unfinished rows.

        The row in which it died is tried again alone; if this row is to blame, it fails instead.
        """
        start, row, stop = self._unfinished(worker)
        in_row = start <= row < stop
        alone, progress = worker.alone, worker.done > worker.start
        self._pool.replace_dead(worker, idle=not in_row)
        self._careful = True
        if progress:
            self._pool.policy.note_progress()
        else:
            self._pool.policy.note_death_without_progress(error)
        if in_row:
            self._faults.note_death(row, error, alone=alone, tried=self._stepped_alone())
        self._retry(start, row if in_row else stop, stop)

    def _check_progress(self, worker: RowWorker, limit: float) -> None:
        """Replace `worker` if it hangs; its row is tried once more, with a short time limit."""
        start, row, stop = self._unfinished(worker)
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
        if begun:
            self._faults.note_timeout(row, tried=self._stepped_alone())
        self._retry(start, row if begun else stop, stop)

    def _unfinished(self, worker: RowWorker) -> tuple[int, int, int]:
        """Return ``(start, row, stop)``: the worker's unfinished rows, and its current row."""
        # If results come in reports, no row counts as finished: the worker's report is lost.
        return worker.start if self._reported else worker.done, worker.cursor, worker.reach

    def _stepped_alone(self) -> list[int]:
        return [worker.start for worker in self._held() if worker.alone]

    def _retry(self, start: int, row: int, stop: int) -> None:
        """Requeue the rows ``start:stop``, except `row` and rows that have failed."""
        first = start
        left_out = {row, *self._faults.errors} & set(range(start, stop))
        for last in (*sorted(left_out), stop):
            if first < last:
                self._pending.append((first, last))
            first = last + 1
        self._pool.tally.rows_retried += max(0, stop - start)

    def _stop_above_failure(self) -> None:
        """Stop stepping rows above the lowest row whose error ends the batch."""
        lowest = self._faults.lowest
        if lowest is None:
            return
        start, stop = self._own
        self._own = (start, min(stop, lowest)) if start < lowest else (0, 0)
        for worker in self._held():
            if worker.stop > lowest:
                worker.end_at(lowest)

    # The end

    def result(self) -> Any:
        """Return the result of a batch that is over."""
        self._costs.note_end()
        return self._batch.result(self._faults.errors)

    def abandon(self) -> None:
        """Tell the batch's workers to stop, and keep its memory until all of them have stopped."""
        for worker in self._held():
            worker.abandon()
        self._pool.keep_until_unused(self._batch.memory, self.owner)
