"""`RowWorker`: one worker of a `ProcessExecutor`, and the rows that it is stepping."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from plangym_like.execution.job import (
    CANCELLED,
    CURSOR,
    NANOSECONDS,
    START,
    STEPPED,
    STOP,
    Job,
    Report,
    compare_with_caller,
    greet,
    progress_slot,
    run_job,
)
from plangym_like.execution.short_episode import ShortEpisode
from plangym_like.execution.tokens import Range, Tokens
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.pool import WorkerHandle
from plangym_like.processes.remote_errors import portable_result
from plangym_like.processes.shared_memory import SharedBlock
from plangym_like.results import Future


class RowWorker(WorkerHandle):
    """A process that hosts a `PlanEnv`, and the rows that it is stepping.

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
    alone : int or None
        The only row of its task, which is tried alone because it may be at fault.
    known : set of int
        The numbers of the shared memory blocks that the process has received; 0 is the pipe of
        tokens.
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
        self.alone: int | None = None
        self.known: set[int] = set()
        self._attached: Sequence[int] = ()
        self._pid = process.pid
        self.progress_at = 0.0
        self._progress = (-1, -1)
        self._counted = (0, 0)
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
    def cursor(self) -> int:
        """The row that the worker steps, or was stepping when it died; -1 before the first row."""
        return int(self.slot[CURSOR])

    @property
    def range(self) -> Range:
        """The range of rows that the worker has taken and not finished; ``(n, n)`` if none."""
        return int(self.slot[START]), int(self.slot[STOP])

    def send(self, owner: Any, make_job: Any, tokens: Tokens, blocks: list[SharedBlock]) -> None:
        """Let the worker step rows of the batch `owner`.

        `make_job` is called with the fields of `Job` that depend on the worker, and returns a job.
        """
        if self.process.pid != self._pid:  # other code has restarted it
            self._pid = self.process.pid
            self.known.clear()
        slot = self.slot
        slot[CURSOR], slot[START], slot[STOP], slot[CANCELLED] = -1, 0, 0, 0
        fds = [] if 0 in self.known else [tokens.read_fd, tokens.write_fd]
        fresh = [block for block in (self._slots, *blocks) if block.number not in self.known]
        attached = tuple(([0] if fds else []) + [block.number for block in fresh])
        job: Job = make_job(worker=self.index, slots=self._slots.number, attached=attached)
        self.alone = None if job.rows is None else job.rows[0]
        self.progress_at = time.monotonic()
        self._progress = (-1, 0)
        self._owner = owner
        self.start_task(run_job, job, fds=[*fds, *(block.fd for block in fresh)])
        self.known.difference_update(job.dropped)
        self.known.update(attached)
        self._attached = attached

    def counts(self) -> tuple[int, float]:
        """Return how many rows it has stepped since the last call, and their seconds."""
        slot = self.slot
        now = int(slot[STEPPED]), int(slot[NANOSECONDS])
        before, self._counted = self._counted, now
        return now[0] - before[0], (now[1] - before[1]) * 1e-9

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
        self.cancel()

    def cancel(self) -> None:
        """Let the worker take no more ranges."""
        self.slot[CANCELLED] = 1

    def idle_seconds(self) -> float:
        """Return how many seconds ago the worker last began a row or was sent rows."""
        now = time.monotonic()
        progress = (self.cursor, int(self.slot[START]))
        if progress != self._progress:
            self._progress, self.progress_at = progress, now
        return now - self.progress_at

    def restart(self) -> None:
        """Replace a dead or hung process with a new one, which has no rows."""
        self.known.clear()
        super().restart()
        self._owner = None
