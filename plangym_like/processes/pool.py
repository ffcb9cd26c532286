"""`WorkerPool`: workers that are replaced when they die or hang.

Each of them has a `WorkerHandle`. `RetryPolicy` decides when to stop replacing workers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from plangym_like.errors import WorkerDiedError, WorkerError, WorkerStartError, WorkerTimeoutError
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.remote_errors import is_remote, portable_result
from plangym_like.results import Future, Stats

logger = logging.getLogger("plangym_like")

# The longest time between two checks of workers that are starting; a reply ends it earlier.
_LOOK_SECONDS = 0.5
# The number of failed starts in succession, per worker, that raises an error.
_FAILED_STARTS = 5
# The number of deaths in succession, without any progress, that raises an error.
_DEATHS_WITHOUT_PROGRESS = 64


@dataclass(slots=True)
class RetryPolicy:
    """Counts the failures of one pool's workers, and raises an error if there are too many.

    Attributes
    ----------
    deaths_without_progress : int
        How many workers have died in succession without any progress.
    """

    deaths_without_progress: int = 0
    _failed_starts: int = field(default=0, init=False)

    def note_ready(self) -> None:
        """Record that a worker has made the object that it hosts."""
        self._failed_starts = 0

    def note_failed_start(self, error: WorkerError, num_workers: int) -> None:
        """Record that a worker died before its object was made, or took too long to make it.

        Raises
        ------
        WorkerStartError
            This has happened too often without any worker becoming ready in between.
        """
        self._failed_starts += 1
        if self._failed_starts >= _FAILED_STARTS * num_workers:
            failed, self._failed_starts = self._failed_starts, 0
            raise WorkerStartError(
                f"workers died {failed} times in a row before they were ready, the last time "
                f"because: {error}"
            ) from error

    def note_progress(self) -> None:
        """Record that a worker has made progress."""
        self.deaths_without_progress = 0

    def note_death_without_progress(self, error: WorkerDiedError) -> None:
        """Record that a worker died before it made any progress.

        Raises
        ------
        WorkerDiedError
            This has happened too often in succession.
        """
        self.deaths_without_progress += 1
        if self.deaths_without_progress >= _DEATHS_WITHOUT_PROGRESS:
            died, self.deaths_without_progress = self.deaths_without_progress, 0
            raise WorkerDiedError(
                f"{died} workers died in succession without any progress, the last one because: "
                f"{error}; each worker dies before it has finished a row",
                error.pid,
                error.exitcode,
            ) from error


class WorkerHandle:
    """A worker process.

    Parameters
    ----------
    process : ExternalProcess
    index : int
        The worker's index in its pool.

    Attributes
    ----------
    started_at : float
        When the process was started.
    changed : set of int
        The indexes of workers that their pool has to look at.
    """

    def __init__(self, process: ExternalProcess, index: int) -> None:
        self.process = process
        self.index = index
        self._interrupted = False
        self.changed: set[int] = set()
        self._greet()

    @property
    def interrupted(self) -> bool:
        """True while a request is sent or the process is restarted.

        If Ctrl-C or another exception interrupts this, it stays true, and the pool replaces the
        process before its next request. It is also true if the hosted object could not be made.
        """
        return self._interrupted

    @interrupted.setter
    def interrupted(self, value: bool) -> None:
        self._interrupted = value
        if value:
            self.changed.add(self.index)

    def _greet(self) -> None:
        """Send the first request to a new process; the worker is ready when it is answered."""
        self._greeting: Future[Any] | None = self.process.apply(_do_nothing, patient=True)
        self.started_at = time.monotonic()

    @property
    def ready(self) -> bool:
        """Whether the hosted object is known to be ready."""
        return self._greeting is None

    @property
    def free(self) -> bool:
        """Whether the worker is ready, and is not to be replaced."""
        return self._greeting is None and not self.interrupted

    def become_ready(self) -> bool:
        """Return whether the hosted object has become ready since the last call.

        Raises
        ------
        Exception
            Any error that the constructor raised, or the error for a process that has ended.
        """
        if self._greeting is None or not self._greeting.settled:
            return False
        portable_result(self._greeting)
        self._greeting = None
        return True

    def restart(self) -> None:
        """Kill the process if it is still running, and start a new one."""
        self.interrupted = True
        self.process.restart()
        self._greet()
        self.interrupted = False


def _do_nothing(hosted: Any) -> None:
    pass


Handle = TypeVar("Handle", bound=WorkerHandle)


class PoolCounts(Protocol):
    """The counters of a pool.

    Attributes
    ----------
    deaths, restarts : int
        Workers that died, and workers that were restarted.
    """

    deaths: int
    restarts: int


class WorkerPool(Generic[Handle]):
    """Worker processes that host any object.

    The pool is independent of what the workers do, and has no reference to its owner. The owner
    works in a loop: send requests to workers; call `wait`; read the replies; call `tend`. The pool
    does the following:

    - It waits for replies and deaths of all workers at once (`wait`).
    - It replaces workers that die, or that fail to start (`tend`).
    - It raises an error if replacing workers does not help (`RetryPolicy`).
    - It closes all workers within a given time (`close`).

    Parameters
    ----------
    workers : sequence of WorkerHandle
        The workers; from now on, the pool owns them and their processes.
    start_timeout : float, optional
        Seconds that a process may take to become ready before it is replaced; by default no limit.
    spin_seconds : float
        How long `wait` polls before it sleeps, if it is called with `stop`. Waking up takes as long
        as a short request, so this should be at least the usual time between the replies of two
        workers.
    counts : PoolCounts, optional
        Where deaths and restarts are counted.
    event_fd : int
        The descriptor of an `os.eventfd` whose events end `wait`; -1 if there is none.

    Attributes
    ----------
    policy : RetryPolicy
        Counts the failures so far.
    """

    # The option that limits the time of starts, for messages.
    _limit_name = "start_timeout"

    def __init__(
        self,
        workers: Sequence[Handle],
        *,
        start_timeout: float | None = None,
        spin_seconds: float = 0.0,
        counts: PoolCounts | None = None,
        event_fd: int = -1,
    ) -> None:
        self.workers = workers
        self.start_timeout = start_timeout
        self.policy = RetryPolicy()
        self._counts: PoolCounts = Stats() if counts is None else counts
        self._spin_seconds = spin_seconds
        self._event_fd = event_fd
        self._poller = select.poll()
        self._watched: dict[int, tuple[int, Handle]] = {}
        # The indexes of workers to look at: something has been sent to them or received from them,
        # or they are starting. Most batches are stepped without that.
        self._changed: set[int] = set()
        self._is_stale = True
        for worker in workers:
            worker.changed = self._changed
            # A reference to the handle would keep the process alive.
            worker.process.on_change = partial(self._changed.add, worker.index)
            self._changed.add(worker.index)

    def wait(self, seconds: float, stop: Callable[[], bool] | None = None) -> float:
        """Wait at most `seconds` until a worker replies or dies; return the seconds waited.

        Replies and deaths are processed. With `stop`, this polls before it sleeps, and while it
        polls, it also returns when ``stop()`` is true. With 0 seconds, it only processes what has
        arrived.
        """
        if self._is_stale or self._changed:
            self._watch_all()
        begun = time.perf_counter()
        until = begun if stop is None else begun + min(seconds, self._spin_seconds)
        while not (events := self._poller.poll(0)):
            if stop is not None and stop():
                break
            if time.perf_counter() >= until:
                left = begun + seconds - time.perf_counter()
                if left > 0 and not (events := self._poller.poll(left * 1000)):
                    # An interrupt may have come before a change was noted.
                    self._changed.update(range(len(self.workers)))
                break
        waited = time.perf_counter() - begun
        for descriptor, _ in events:
            if descriptor == self._event_fd:
                with contextlib.suppress(OSError):  # another thread has read or closed it
                    os.eventfd_read(descriptor)
            else:
                self._is_stale = True
                self._watched[descriptor][1].process.drain()
        return waited

    def _watch_all(self) -> None:
        watched: dict[int, tuple[int, Handle]] = {}
        for worker in self.workers:
            for descriptor, mask in worker.process.awaited().items():
                watched[descriptor] = mask, worker
        if watched != self._watched:
            poller = select.poll()
            if self._event_fd >= 0:
                poller.register(self._event_fd, select.POLLIN)
            for descriptor, (mask, _) in watched.items():
                poller.register(descriptor, mask)
            self._poller, self._watched = poller, watched
        self._is_stale = False

    def wait_ready(self) -> None:
        """Wait until all workers are ready; raise the error of one that fails, as in `tend`."""
        while not all(worker.ready for worker in self.workers):
            self.wait(_LOOK_SECONDS)
            self.tend()

    def replace(self, worker: Handle) -> None:
        """Kill the worker's process if it still runs, and start a new one."""
        worker.restart()
        self._counts.restarts += 1

    def replace_dead(self, worker: Handle) -> None:
        """Replace the process of a worker that died."""
        self._counts.deaths += 1
        self.replace(worker)

    def prepare(self) -> None:
        """Process what has arrived and call `tend`, before a new request."""
        self.wait(0.0)
        self.tend()

    def tend(self) -> None:
        """Check the workers that have changed, and replace them if needed.

        This never waits. Call `wait` before, which processes the replies that have arrived.

        Raises
        ------
        WorkerStartError
            Processes die or hang repeatedly before they are ready.
        Exception
            Any error of the constructor of a hosted object. The next call tries it again.
        """
        left: list[int] = []
        try:
            while self._changed:
                self._is_stale = True
                worker = self.workers[next(iter(self._changed))]
                left.append(worker.index)  # it is looked at again, also after an exception
                self._changed.discard(worker.index)
                self._tend(worker)
                if worker.ready and not worker.interrupted:  # until it changes again
                    left.pop()
        finally:
            self._changed.update(left)

    def _tend(self, worker: Handle) -> None:
        if worker.interrupted:
            self.replace(worker)
        elif not worker.ready:
            self._tend_starting(worker)
        else:
            self._tend_ready(worker)

    def _tend_ready(self, worker: Handle) -> None:
        if not worker.process.awaited():
            self.replace_dead(worker)

    def _tend_starting(self, worker: Handle) -> None:
        try:
            ready = worker.become_ready()
        except Exception as error:
            if isinstance(error, WorkerDiedError) and not is_remote(error):
                self.replace_dead(worker)
                self.policy.note_failed_start(error, len(self.workers))
                return
            # The others, with the same constructor, would raise the same error one after the other.
            for each in self.workers:
                each.interrupted = each.interrupted or not each.ready
            raise
        limit = self.start_timeout
        if ready:
            self.policy.note_ready()
        elif limit is not None and time.monotonic() - worker.started_at > limit:
            late = WorkerTimeoutError(
                f"the worker with pid {worker.process.pid} was not ready after "
                f"{self._limit_name}={limit:g} seconds; its constructor hangs, or needs a larger "
                f"{self._limit_name}"
            )
            logger.warning("%s", late)
            self.replace(worker)
            self.policy.note_failed_start(late, len(self.workers))

    def close(self, seconds: float) -> None:
        """Ask all workers to exit, and kill them if they are still running after `seconds`."""
        until = time.monotonic() + seconds
        for worker in self.workers:
            worker.process.begin_close()
        for worker in self.workers:
            worker.process.close(max(0.0, until - time.monotonic()))
