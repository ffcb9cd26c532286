"""`RowPool`: the workers of a `ProcessExecutor`, and the rows that they are stepping."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import WorkerDiedError
from plangym_like.execution.row_server import (
    BATCH,
    BUSY,
    CURSOR,
    NANOSECONDS,
    SLOT_WORDS,
    START,
    STEPPED,
    STOP,
    Order,
    Report,
    greet,
    serve,
)
from plangym_like.execution.shared_batch import Range, SharedBatch, Tokens
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.pool import WorkerHandle, WorkerPool
from plangym_like.processes.remote_errors import is_remote, portable_result
from plangym_like.processes.shared_memory import SharedBlock, alive, as_bytes
from plangym_like.results import Future, Stats

logger = logging.getLogger("plangym_like")

# How long to poll for the last rows before sleeping; workers usually finish theirs shortly after
# this process.
_SPIN_SECONDS = 3e-4
# How long workers may go on stepping batches that have ended before they are replaced, and how
# often this is checked.
_GRACE_SECONDS, _CHECK_SECONDS = 1.0, 1e-3


class Outcome(NamedTuple):
    """How a worker's serving ended.

    Attributes
    ----------
    worker : int
        The worker's index.
    batch : int
        The number of the batch whose rows it stepped.
    report : Report or None
        Its report; ``None`` if there is an error.
    error : Exception or None
        Why the worker could not step rows, or how it died. If there is neither a report nor an
        error, its process was replaced, and rows that it had not reported are lost.
    died : bool
        Whether it has died, and was replaced.
    row : int
        If it died, the row that it was stepping; -1 if it had not begun a row.
    range : (int, int)
        If it died, the range that it had taken and not finished.
    """

    worker: int
    batch: int
    report: Report | None
    error: Exception | None = None
    died: bool = False
    row: int = -1
    range: Range = (0, 0)

    @property
    def in_row(self) -> bool:
        """Whether the worker died while it was stepping `row`."""
        return self.range[0] <= self.row < self.range[1]


class RowWorker(WorkerHandle):
    """A process that hosts a `PlanEnv`, and the rows that it is stepping.

    A worker that is ready serves; see `plangym_like.execution.row_server`.

    Parameters
    ----------
    process : ExternalProcess
    index : int
        The worker's index in the pool, and the number of its progress slot.
    slots : SharedBlock
        The progress slots of all workers.
    slot : array
        The worker's own, ``(SLOT_WORDS,) int64``.
    tokens : Tokens
        Where it takes rows from.
    done_fd : int
        The descriptor of the event that tells the owner that a batch is done.
    signature : int
        The signature of the layout of batches.

    Attributes
    ----------
    known : set of int
        The numbers of the shared memory blocks that the process has received.
    left_at : ((int, int), int, int)
        The range and the row at which its last process was when it ended, and their batch.
    """

    def __init__(
        self,
        process: ExternalProcess,
        index: int,
        slots: SharedBlock,
        slot: NDArray[np.int64],
        tokens: Tokens,
        done_fd: int,
        signature: int,
    ) -> None:
        self._slots, self._tokens, self._done_fd = slots, tokens, done_fd
        self._signature = signature
        super().__init__(process, index)
        self.slot = slot
        self.known: set[int] = set()
        self._attached: Sequence[int] = ()
        # Its requests to serve, each with the number of the batch whose blocks were sent along.
        self._servings: deque[tuple[Future[Any], int]] = deque()
        self._pid = process.pid
        self.progress_at = 0.0
        self._progress: tuple[int, ...] = ()
        self.left_at: tuple[Range, int, int] = (0, 0), -1, 0

    def _greet(self) -> None:
        fds = [self._slots.fd, self._tokens.read_fd, self._tokens.write_fd, self._done_fd]
        settings = self.index, self.process.linger, self._signature
        self._greeting = self.process.apply(greet, *settings, fds=fds, patient=True)
        self.started_at = time.monotonic()

    # What it is doing

    @property
    def batch(self) -> int:
        """The number of the batch whose rows it may be writing; 0 if there is none."""
        return int(self.slot[BATCH]) if self.slot[BUSY] else 0

    @property
    def busy(self) -> bool:
        """Whether the worker is stepping rows."""
        return bool(self.slot[BUSY])

    @property
    def free(self) -> bool:
        """Whether the worker waits for rows."""
        return super().free and not self.slot[BUSY]

    @property
    def may_have_taken(self) -> bool:
        """Whether the worker may just have taken a token that its slot does not show yet."""
        return bool(self.slot[BUSY] and self.slot[START] >= self.slot[STOP])

    def may_write(self, batch: int) -> bool:
        """Return whether the worker may still write results of rows of `batch`."""
        if not self.process.awaited():  # it has ended
            return False
        return bool(self.slot[BUSY] and (self.slot[BATCH] == batch or self.may_have_taken))

    @property
    def cursor(self) -> int:
        """The row that the worker steps, or was stepping when it died; -1 before the first row."""
        return int(self.slot[CURSOR])

    @property
    def range(self) -> Range:
        """The range of rows that the worker has taken and not finished; ``(n, n)`` if none."""
        return int(self.slot[START]), int(self.slot[STOP])

    def idle_seconds(self) -> float:
        """Return how many seconds ago the worker last began a row or a range."""
        now = time.monotonic()
        progress = tuple(self.slot[[CURSOR, START, BUSY, BATCH]].tolist())
        if progress != self._progress:
            self._progress, self.progress_at = progress, now
        return now - self.progress_at

    # Orders

    def keep_serving(self, batch: SharedBatch | None) -> None:
        """Let the worker serve, if it does not, and send it the blocks of `batch` that it lacks."""
        if not self.ready or self.interrupted:
            return
        if self.process.pid != self._pid:  # other code has restarted it
            self.interrupted = True
            return
        if self._servings and (batch is None or batch.block_numbers <= self.known):
            return
        self.interrupted = True
        order, fds = self._order(batch)
        serving = self.process.apply(serve, order, fds=fds, patient=True)
        self._servings.append((serving, 0 if batch is None else batch.key[1]))
        self.interrupted = False

    def _order(self, batch: SharedBatch | None) -> tuple[Order, Sequence[int]]:
        """Return an order, and the descriptors of the blocks that the worker lacks."""
        blocks = () if batch is None else batch.blocks
        fresh = [block for block in blocks if block.number not in self.known]
        dropped = tuple(self.known - alive)
        self._attached = [block.number for block in fresh]
        self.known.difference_update(dropped)
        self.known.update(self._attached)
        return Order(self._attached, dropped), [block.fd for block in fresh]

    def outcome(self) -> Outcome | None:
        """Return how its serving ended, or ``None`` if there is nothing to say."""
        while self._servings and self._servings[0][0].settled:
            found = self._outcome_of(*self._servings.popleft())
            if found is not None:
                return found
        return None

    def _outcome_of(self, future: Future[Any], batch: int) -> Outcome | None:
        """Return how a request ended that was sent for `batch`."""
        try:
            report: Report = portable_result(future)
        except Exception as error:
            told = error.with_traceback(None)
            if isinstance(error, WorkerDiedError) and not is_remote(error):
                # It may have died while it sent a report, after its last row.
                number = int(self.slot[BATCH])
                return Outcome(self.index, number, None, told, True, self.cursor, self.range)
            # The worker may lack the blocks that were sent along, so they will be sent again.
            self.known.difference_update(self._attached)
            return Outcome(self.index, batch, None, told)
        return Outcome(self.index, report.batch, report) if report.batch else None

    def restart(self) -> None:
        """Replace a dead or hung process with a new one, which has no rows."""
        super().restart()
        # Read only now, because the old process may have gone on until it was killed.
        self.left_at = self.range, self.cursor, int(self.slot[BATCH])
        self._lose_process()

    def _lose_process(self) -> None:
        self.known.clear()
        self._servings.clear()
        # A row that is tried again in the new process may leave the slot as it was.
        self._progress, self.progress_at = (), time.monotonic()
        slot = self.slot
        slot[CURSOR], slot[START], slot[STOP], slot[BUSY], slot[BATCH] = -1, 0, 0, 0, 0
        self._pid = self.process.pid  # last: if this is interrupted, the process is replaced


class RowPool(WorkerPool[RowWorker]):
    """Workers that step rows, and counts of what happened to them.

    Parameters
    ----------
    envs : sequence of ExternalProcess
        The processes; each hosts a `PlanEnv`.
    signature : int
        The signature of the layout of batches.
    step_timeout, start_timeout : float, optional
        As in `ProcessExecutor`.
    stats : Stats, optional
        The counters to update.

    Attributes
    ----------
    tokens : Tokens
        The rows of one batch that no process has begun.
    dealing : SharedBatch or None
        The batch whose rows these are.
    stats : Stats
        Counters of what has happened so far.
    outcomes : list of Outcome
        The outcomes that no batch has taken in.
    """

    def __init__(
        self,
        envs: Sequence[ExternalProcess],
        signature: int,
        step_timeout: float | None,
        start_timeout: float | None,
        stats: Stats | None = None,
    ) -> None:
        self.step_timeout = step_timeout
        self._slots = SharedBlock(8 * SLOT_WORDS * max(1, len(envs)))
        self.tokens = Tokens()
        self.dealing: SharedBatch | None = None
        self.stats = Stats() if stats is None else stats
        self._done_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if envs else -1
        self._finalizer = weakref.finalize(self, os.close, self._done_fd) if envs else None
        if self._finalizer is not None:
            self._finalizer.atexit = False
        table = as_bytes(self._slots.memory).view(np.int64)[: SLOT_WORDS * len(envs)]
        slots = table.reshape(-1, SLOT_WORDS)
        shared = self.tokens, self._done_fd, signature
        workers: list[RowWorker] = []
        for index, process in enumerate(envs):
            workers.append(RowWorker(process, index, self._slots, slots[index], *shared))
        super().__init__(
            workers,
            start_timeout=start_timeout,
            spin_seconds=_SPIN_SECONDS,
            counts=self.stats,
            event_fd=self._done_fd,
        )
        # The nanoseconds and rows of each worker so far, now and at the last `count_rows`.
        self._counters = slots[:, NANOSECONDS : STEPPED + 1]
        self._counted = self._counters.copy()
        # Blocks that all workers that are ready have received.
        self._common: set[int] = set()
        self.outcomes: list[Outcome] = []
        # How long `abandon` may still wait, until the next batch begins.
        self._grace = _GRACE_SECONDS

    def deal(self, batch: SharedBatch) -> None:
        """Let the tokens of `batch` be the next ones; all workers that are ready get its blocks."""
        self.dealing = batch
        if not batch.block_numbers <= self._common:
            for worker in self.workers:
                worker.keep_serving(batch)
            self._common |= batch.block_numbers

    def count_rows(self) -> tuple[int, float]:
        """Return how many rows the workers have stepped since the last call, and their seconds."""
        counts = self._counters.copy()
        more, self._counted = counts - self._counted, counts
        nanoseconds, rows = more.sum(axis=0).tolist()
        if not rows:
            return 0, 0.0
        if self.policy.deaths_without_progress:
            self.policy.note_progress()
        self.stats.seconds_on_workers += nanoseconds * 1e-9
        self.stats.rows_sent += rows
        return rows, nanoseconds * 1e-9

    def _tend(self, worker: RowWorker) -> None:
        """Collect an outcome, or do what `WorkerPool._tend` does; let the worker serve."""
        self._common.clear()
        super()._tend(worker)
        worker.keep_serving(self.dealing)

    def replace(self, worker: RowWorker) -> None:
        """Replace a worker's process; the batch that it was stepping gets an `Outcome`."""
        super().replace(worker)
        _, _, batch = worker.left_at
        if batch:
            self.outcomes.append(Outcome(worker.index, batch, None))

    def _tend_ready(self, worker: RowWorker) -> None:
        outcome = worker.outcome()
        if outcome is not None:
            self.outcomes.append(outcome)
            self._changed.add(worker.index)  # there may be another one
            if outcome.died:
                self.replace_dead(worker)
        else:
            super()._tend_ready(worker)

    def outcomes_of(self, batch: int) -> list[Outcome]:
        """Remove and return the outcomes of a batch."""
        mine = [outcome for outcome in self.outcomes if outcome.batch == batch]
        self.outcomes = [outcome for outcome in self.outcomes if outcome.batch != batch]
        return mine

    def abandon(self, batch: SharedBatch) -> None:
        """Release the memory of a batch that has ended, once no worker writes to it.

        Workers finish the ranges that they have taken. Those that do not do so within a second are
        replaced; this second is for all batches that are pending together. A worker may put back a
        token later, which means nothing then.
        """
        batch.void()
        until = time.monotonic() + self._grace
        while left := [worker for worker in self.workers if worker.may_write(batch.number)]:
            if time.monotonic() < until:
                self.wait(_CHECK_SECONDS)
                continue
            for worker in left:
                logger.warning(
                    "the worker with pid %d did not finish its rows of an abandoned batch in time; "
                    "it is replaced",
                    worker.process.pid,
                )
                self.replace(worker)
        self._grace = max(0.0, until - time.monotonic())
        self.outcomes_of(batch.number)
        batch.release()

    def prepare(self) -> None:
        """Process what has arrived before a new batch; `abandon` may then wait again."""
        super().prepare()
        self._grace = _GRACE_SECONDS

    def close(self, seconds: float) -> None:
        """Ask all workers to exit, and kill them if they are still running after `seconds`."""
        if self.dealing is not None:  # otherwise workers would step its rows first
            self.tokens.drain(None)
        super().close(seconds)
        self._slots.close()
        self.tokens.close()
        if self._finalizer is not None:
            self._finalizer()
