"""`RowWorker`: one worker of a `ProcessExecutor`, and the range of rows that it is stepping."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from plangym_like.execution.job import (
    CURSOR,
    DONE,
    LEFT,
    LIMIT,
    REACH,
    Job,
    Report,
    compare_with_caller,
    greet,
    progress_slot,
    run_job,
)
from plangym_like.execution.short_episode import ShortEpisode
from plangym_like.future import Future
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.remote_errors import portable_result
from plangym_like.processes.shared_memory import WRITES_IN_ORDER, SharedBlock
from plangym_like.processes.worker_handle import WorkerHandle

# How long a worker that has finished its rows may take to report.
_SAY_SECONDS = 1.0


class RowWorker(WorkerHandle):
    """A process that hosts a `PlanEnv`, and the range of rows that it is stepping.

    Parameters
    ----------
    process : ExternalProcess
    index : int
        The worker's index in the pool, and the number of its progress slot.
    slots : SharedBlock
        The progress slots of all workers.
    expected : ShortEpisode, optional
        A short episode of the caller, which each new process has to repeat.

    Attributes
    ----------
    start, stop, most : int
        The worker's rows are ``start:stop``. `stop` is lowered when rows are taken from the worker,
        and may be raised to `most`.
    alone : bool
        Whether the worker has only one row, which is tried alone because it may be at fault.
    known : set of int
        The numbers of the shared memory blocks that the process has received.
    """

    def __init__(
        self,
        process: ExternalProcess,
        index: int,
        slots: SharedBlock,
        expected: ShortEpisode | None = None,
    ) -> None:
        super().__init__(process, index, greet)
        self._expected = expected
        self._slots = slots
        self.slot = progress_slot(slots.array(), index)
        self.start = self.stop = self.most = 0
        self.alone = False
        self._late: tuple[Future[Any], int] | None = None
        self.known: set[int] = set()
        self._attached: Sequence[int] = ()
        self._pid = process.pid
        self.progress_at = 0.0
        self._progress = (-1, -1)
        self._owner: Any = None

    def _greet(self) -> None:
        super()._greet()
        self._is_compared = False

    def become_ready(self) -> bool:
        """Return whether the worker has become ready since the last call.

        It is ready once it has made its environment and has repeated the caller's episode.
        """
        if not super().become_ready():
            return False
        if self._expected is None or self._is_compared:
            return True
        self._is_compared = True
        compare = partial(compare_with_caller, expected=self._expected)
        self._greeting = self.process.apply(compare, patient=True)
        self.started_at = time.monotonic()
        return False

    @property
    def owner(self) -> Any:
        """The batch whose rows this worker may be writing, or ``None``."""
        return self._owner if self.task is not None or self.send_interrupted else None

    @property
    def done(self) -> int:
        """The index after the last row that the worker has finished."""
        return int(self.slot[DONE])

    @property
    def cursor(self) -> int:
        """The row that the worker steps, or was stepping when it died; -1 before the first row."""
        return int(self.slot[CURSOR])

    @property
    def reach(self) -> int:
        """The index after the last row that the worker may have written or still has to step."""
        return max(self.stop, int(self.slot[REACH]))

    @property
    def left(self) -> int:
        """The number of rows that the worker has not finished."""
        return max(0, self.stop - self.done) if self.busy else 0

    @property
    def finished(self) -> bool:
        """Whether shared memory shows that all its rows are done, even without a report."""
        slot = self.slot
        return WRITES_IN_ORDER and self.busy and bool(slot[LEFT]) and int(slot[DONE]) >= self.stop

    @property
    def unbegun(self) -> int:
        """The number of rows that the worker has not begun; these may be taken away."""
        return max(0, self.stop - int(self.slot[REACH])) if self.busy else 0

    @property
    def ahead(self) -> int:
        """An estimate of the number of rows that the worker has not stepped yet.

        Some families step a whole range of rows at once; such a range counts as half done.
        """
        done, cursor = self.done, self.cursor
        return self.stop - (cursor if cursor > done else (done + int(self.slot[REACH])) // 2)

    def send(
        self,
        owner: Any,
        make_job: Any,
        blocks: list[SharedBlock],
        start: int,
        stop: int,
        most: int,
    ) -> None:
        """Send the worker the rows ``start:stop`` of the batch `owner`.

        `make_job` is called with the fields of `Job` that depend on the worker, and returns a job.
        """
        if self.process.pid != self._pid:  # other code has restarted it
            self._pid = self.process.pid
            self.known.clear()
        self.start, self.stop, self.most = start, stop, most
        slot = self.slot
        slot[CURSOR], slot[LIMIT], slot[DONE], slot[REACH], slot[LEFT] = -1, stop, start, start, 0
        fresh = [block for block in (self._slots, *blocks) if block.number not in self.known]
        job: Job = make_job(
            worker=self.index,
            slots=self._slots.number,
            start=start,
            stop=most,
            attached=tuple(block.number for block in fresh),
        )
        self.progress_at = time.monotonic()
        self._progress = (-1, start)
        self._owner = owner
        self.start_task(run_job, job, fds=[block.fd for block in fresh])
        self.known.difference_update(job.dropped)
        self.known.update(job.attached)
        self._attached = job.attached

    def end_at(self, stop: int) -> None:
        """Set the end of the worker's range to `stop`; this takes rows away or adds rows."""
        if stop < self.stop:
            self.most = stop
        self.stop = stop
        self.slot[LIMIT] = stop

    def leave(self) -> None:
        """Free the worker, which has finished its rows, without waiting for its report."""
        assert self.task is not None
        self._late = self.task, self.start
        self.take_task()

    @property
    def owes_report(self) -> bool:
        """Whether a report is still to be read, because `leave` did not wait for it."""
        return self._late is not None

    def late_report(self, *, patient: bool) -> tuple[Report, int] | None:
        """Return the report that `leave` did not wait for, and the number of rows that it covers.

        If the report has not arrived, return ``None``; if `patient` is true, wait up to a second
        for it first. A worker that died after `leave` never reports, although it stepped its rows.
        """
        if self._late is not None and (patient or self._late[0].done()):
            (task, start), self._late = self._late, None
            with contextlib.suppress(Exception):
                report: Report = task.result(_SAY_SECONDS)
                return report, report.stop - start
        return None

    def report(self) -> Report:
        """Return the worker's report on its rows, or raise the error of a row that failed."""
        task = self.take_task()
        try:
            report: Report = portable_result(task)
        except Exception:
            # The worker may lack the blocks that were sent along, so they will be sent again.
            self.known.difference_update(self._attached)
            raise
        return report

    def take_task(self) -> Future[Any]:
        """Return the future of the worker's report; the worker is then free."""
        task = super().take_task()
        self._owner = None
        return task

    def abandon(self) -> None:
        """Tell the worker to stop, because its rows are not needed any more."""
        super().abandon()
        self.end_at(0)

    def idle_seconds(self) -> float:
        """Return how many seconds ago the worker last began a row or was sent rows."""
        now = time.monotonic()
        progress = (self.cursor, self.done)
        if progress != self._progress:
            self._progress, self.progress_at = progress, now
        return now - self.progress_at

    def restart(self) -> None:
        """Replace a dead or hung process with a new one, which has no rows."""
        self._late = None
        self.known.clear()
        super().restart()
        self._owner = None
