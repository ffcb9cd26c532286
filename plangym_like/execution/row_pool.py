"""`RowPool`: the workers of a `ProcessExecutor`, and measurements of the rows they stepped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from plangym_like.execution.job import SLOT_WORDS
from plangym_like.execution.row_worker import RowWorker
from plangym_like.execution.shared_batch import BatchMemory
from plangym_like.execution.short_episode import ShortEpisode
from plangym_like.execution.tokens import Tokens
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.pool import WorkerPool
from plangym_like.processes.shared_memory import SharedBlock
from plangym_like.results import Stats

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
    tokens : Tokens
        The rows of one batch that no process has begun.
    dealing : object
        The owner of these rows; see `RowWorker.owner`.
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
        self._slots = SharedBlock(8 * SLOT_WORDS * max(1, len(envs)))
        self.tokens = Tokens()
        self.dealing: object = None
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

    def wait_for_rows(self, seconds: float, done: Callable[[], bool]) -> None:
        """Wait as `WorkerPool.wait` does; while this polls, return once ``done()`` is true."""
        self.tally.seconds_waiting += self.wait(seconds, done)

    def count_rows(self) -> tuple[int, float]:
        """Return how many rows the workers have stepped since the last call, and their seconds."""
        rows, seconds = 0, 0.0
        for worker in self.workers:
            more, took = worker.counts()
            if more:
                rows, seconds = rows + more, seconds + took
                self.slowest_row = max(self.slowest_row * 0.9, took / more)
        if rows:
            self.policy.note_progress()
            self.tally.seconds_on_workers += seconds
            self.tally.rows_sent += rows
        return rows, seconds

    def abandon_all_but(self, owners: Collection[object]) -> None:
        """Tell each worker to stop if its rows belong to a batch that is not in `owners`.

        This is needed only if a second Ctrl-C interrupted the cancellation of a batch.
        """
        for worker in self.workers:
            if worker.owner is not None and worker.owner not in owners:
                if worker.abandoned_at is None:
                    worker.abandon()

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
            worker.cancel()
        super().close(seconds)
        while self._leftover:
            self._leftover.pop()[0].release()
        self._slots.close()
        self.tokens.close()
