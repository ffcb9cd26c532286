"""`WorkerPool`: worker processes that are watched, replaced and closed."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from plangym_like.errors import WorkerDiedError, WorkerTimeoutError
from plangym_like.processes.retry_policy import RetryPolicy
from plangym_like.processes.worker_handle import WorkerHandle

logger = logging.getLogger("plangym_like")

# How long a worker may go on with a task that was abandoned before it is replaced.
_GRACE_SECONDS = 1.0

Handle = TypeVar("Handle", bound=WorkerHandle)


class PoolCounts(Protocol):
    """What a pool counts.

    Attributes
    ----------
    deaths, restarts : int
        Workers that died, and workers that were started again.
    """

    deaths: int
    restarts: int


class WorkerPool(Generic[Handle]):
    """Worker processes that host any object, and do any task.

    The pool does not know what the tasks are, and has no reference to its owner, which gives them
    out. The owner works in a loop: give each worker that is `WorkerHandle.free` a task
    (`WorkerHandle.start_task`); `wait`; look at the tasks that are done; call `tend`. What the pool
    does for it:

    - It waits for replies and deaths of all workers at once (`wait`).
    - It replaces workers that die without a task, that fail to start, and that do not stop a task
      that was abandoned (`tend`). A worker that dies in its task is the owner's to judge, by
      `WorkerHandle.died`: to replace it (`replace_dead`), or to close the pool if what it hosted
      cannot be made again.
    - It raises an error where replacing workers leads nowhere (`RetryPolicy`).
    - It closes all workers within a given time (`close`).

    Parameters
    ----------
    workers : sequence of WorkerHandle
        The pool's from now on, with their processes.
    start_timeout : float, optional
        Seconds that a process may take to become ready before it is replaced. Left out: no limit.
    spin_seconds : float
        How long `wait` looks again and again before it sleeps. Waking up costs as much as a short
        task, so this should be about what the last tasks of several workers differ by.
    counts : PoolCounts, optional
        Where deaths and restarts are counted.

    Attributes
    ----------
    policy : RetryPolicy
        What has failed so far.
    """

    def __init__(
        self,
        workers: Sequence[Handle],
        *,
        start_timeout: float | None = None,
        spin_seconds: float = 0.0,
        counts: PoolCounts | None = None,
    ) -> None:
        self.workers = workers
        self.start_timeout = start_timeout
        self.policy = RetryPolicy()
        self._counts = counts
        self._spin_seconds = spin_seconds
        self._poller = select.poll()
        self._watched: dict[int, tuple[int, Handle]] = {}
        self._start_over = False

    def wait(self, seconds: float, stop: Callable[[], bool] | None = None) -> float:
        """Wait until a worker replies or dies, for `seconds` at most; return how long it was.

        The replies and deaths are taken in. While it does not sleep yet, the wait also ends when
        ``stop()`` returns True.
        """
        self._watch_all()
        begun = time.perf_counter()
        until = begun + min(seconds, self._spin_seconds)
        while not (events := self._poller.poll(0)):
            if stop is not None and stop():
                break
            if time.perf_counter() > until:
                events = self._poller.poll(max(0.0, seconds - self._spin_seconds) * 1000)
                break
        waited = time.perf_counter() - begun
        for descriptor, _ in events:
            self._watched[descriptor][1].process.drain()
        return waited

    def _watch_all(self) -> None:
        watched: dict[int, tuple[int, Handle]] = {}
        for worker in self.workers:
            process = worker.process
            wanted = select.POLLIN | select.POLLOUT if process.unsent else select.POLLIN
            watched[process.fileno()] = wanted, worker
            watched[process.sentinel or -1] = select.POLLIN, worker
        watched.pop(-1, None)
        if watched != self._watched:
            self._poller = select.poll()
            for descriptor, (mask, _) in watched.items():
                self._poller.register(descriptor, mask)
            self._watched = watched

    def replace(self, worker: Handle) -> None:
        """Replace the worker's process, dead or alive; its task is forgotten."""
        worker.restart()
        if self._counts is not None:
            self._counts.restarts += 1

    def replace_dead(self, worker: Handle, *, idle: bool) -> None:
        """Replace the process of a worker that died; `idle`: no task was to blame for its death."""
        if self._counts is not None:
            self._counts.deaths += 1
        if idle:
            self.policy.note_idle_death()
        self.replace(worker)

    def prepare(self) -> None:
        """Replace workers that died since the last task, and then do what `tend` does.

        If a constructor has raised, workers that are not ready start again.
        """
        start_over, self._start_over = self._start_over, False
        for worker in self.workers:
            if start_over and not worker.ready:
                self.replace(worker)
            elif worker.free and not worker.process.is_alive():
                self.replace_dead(worker, idle=True)
        self.tend()

    def tend(self) -> None:
        """Look after workers that have no task, or one that was abandoned; never waits.

        Raises
        ------
        WorkerStartError
            Processes die or hang again and again before they are ready.
        Exception
            What the constructor of a hosted object raised.
        """
        for worker in self.workers:
            if worker.send_interrupted:
                self.replace(worker)
            elif worker.task is None:
                if not worker.ready:
                    self._tend_starting(worker)
                elif worker.process.fileno() < 0:
                    self.replace_dead(worker, idle=True)
            elif worker.abandoned_at is not None:
                self._tend_abandoned(worker, worker.abandoned_at)

    def _tend_starting(self, worker: Handle) -> None:
        try:
            ready = worker.become_ready()
        except Exception as error:
            # Asked only now: it may have died just before.
            if worker.died_starting and isinstance(error, WorkerDiedError):
                self.replace_dead(worker, idle=True)
                self.policy.note_failed_start(error, len(self.workers))
                return
            # Workers with the same constructor would raise the same, so nothing is retried now.
            self._start_over = True
            raise
        limit = self.start_timeout
        if ready:
            self.policy.note_ready()
        elif limit is not None and time.monotonic() - worker.started_at > limit:
            late = WorkerTimeoutError(
                f"the worker with pid {worker.process.pid} was not ready after "
                f"start_timeout={limit:g} seconds; its constructor hangs, or needs a larger "
                "start_timeout"
            )
            logger.warning("%s", late)
            self.replace(worker)
            self.policy.note_failed_start(late, len(self.workers))

    def _tend_abandoned(self, worker: Handle, abandoned_at: float) -> None:
        if worker.task is not None and worker.task.done():
            worker.take_task()
            if worker.process.fileno() < 0:
                self.replace_dead(worker, idle=False)
        elif time.monotonic() - abandoned_at > _GRACE_SECONDS:
            logger.warning(
                "the worker with pid %d did not stop a task that was given up within %g seconds; "
                "it is replaced",
                worker.process.pid,
                _GRACE_SECONDS,
            )
            self.replace(worker)

    def close(self, seconds: float) -> None:
        """Ask all workers to end, and kill those that have not ended after `seconds`."""
        until = time.monotonic() + seconds
        for worker in self.workers:
            worker.process.begin_close()
        for worker in self.workers:
            worker.process.close(max(0.0, until - time.monotonic()))
