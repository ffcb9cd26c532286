"""`RowPool`: the workers of a `ProcessExecutor`, and measurements of the rows they stepped."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from plangym_like.execution.batch_memory import BatchMemory
from plangym_like.execution.job import SLOT_WORDS, Report
from plangym_like.execution.row_worker import RowWorker
from plangym_like.execution.short_episode import ShortEpisode
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.shared_memory import SharedBlock
from plangym_like.processes.worker_pool import WorkerPool
from plangym_like.stats import Stats

# How long to poll for the last rows before sleeping; workers usually finish theirs shortly after
# this process (`benchmarks/constants.py`).
_SPIN_SECONDS = 3e-4


class RowPool(WorkerPool[RowWorker]):
    """Workers that step rows, and counts of what happened to them.

    Parameters
    ----------
    envs : sequence of ExternalProcess
        The processes; each hosts a `PlanEnv`.
    step_timeout, start_timeout : float, optional
        As in `ProcessExecutor`.
    stats : Stats, optional
        The counters to update.
    expected : ShortEpisode, optional
        As in `RowWorker`.

    Attributes
    ----------
    tally : Stats
        Counters of what has happened so far.
    slowest_row : float
        The longest recent time per row in a worker, in seconds; 0 if not known.
    """

    def __init__(
        self,
        envs: Sequence[ExternalProcess],
        step_timeout: float | None,
        start_timeout: float | None,
        stats: Stats | None = None,
        expected: ShortEpisode | None = None,
    ) -> None:
        self.step_timeout = step_timeout
        self._expected = expected
        self._slots = SharedBlock(8 * SLOT_WORDS * max(1, len(envs)))
        self.tally = Stats() if stats is None else stats
        super().__init__(
            [
                RowWorker(process, index, self._slots, expected)
                for index, process in enumerate(envs)
            ],
            start_timeout=start_timeout,
            spin_seconds=_SPIN_SECONDS,
            counts=self.tally,
        )
        self.slowest_row = 0.0
        self._leftover: list[tuple[BatchMemory, object]] = []

    def wait_for_rows(self, seconds: float, finished: Sequence[RowWorker]) -> None:
        """Wait as `WorkerPool.wait` does.

        While this polls, it also returns when a worker in `finished` has done its rows.
        """
        self.tally.seconds_waiting += self.wait(
            seconds, lambda: any(worker.finished for worker in finished)
        )

    def hear_late(self, *, patient: bool = False) -> None:
        """Read the reports that batches did not wait for; if `patient` is true, wait for them."""
        for worker in self.workers:
            if (late := worker.late_report(patient=patient)) is not None:
                self.note_rows_done(*late)

    def note_rows_done(self, report: Report, count: int) -> None:
        """Record the report of a worker that has done `count` rows."""
        if not count:
            return
        self.policy.note_progress()
        self.tally.seconds_on_workers += report.seconds
        self.slowest_row = max(self.slowest_row * 0.9, report.seconds / count)

    def abandon_all_but(self, owners: Collection[object]) -> None:
        """Tell each worker to stop if its rows belong to a batch that is not in `owners`.

        This is needed only if a second Ctrl-C interrupted the cancellation of a batch.
        """
        for worker in self.workers:
            if worker.owner is not None and worker.owner not in owners:
                if worker.abandoned_at is None:
                    worker.abandon()

    def tend(self) -> None:
        """Read the reports of earlier tasks, and do what `WorkerPool.tend` does."""
        self.hear_late()
        super().tend()

    def keep_until_unused(self, memory: BatchMemory, owner: object) -> None:
        """Keep the memory of a cancelled batch until no worker writes to it any more."""
        self._leftover.append((memory, owner))

    def release_unused(self) -> None:
        """Release memory that no worker writes to any more."""
        if not self._leftover:
            return
        owners = [worker.owner for worker in self.workers]
        for left in tuple(self._leftover):
            if left[1] not in owners:
                self._leftover.remove(left)
                left[0].release()

    def close(self, seconds: float) -> None:
        """Ask all workers to exit, and kill them if they are still running after `seconds`."""
        for worker in self.workers:
            if worker.busy:
                worker.end_at(0)
        super().close(seconds)
        while self._leftover:
            self._leftover.pop()[0].release()
        self._slots.close()
