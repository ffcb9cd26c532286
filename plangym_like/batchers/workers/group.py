"""`WorkerGroup`: hosts objects in workers, and runs their methods as jobs."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from plangym_like.batchers.workers.backend import (
    Backend,
    Call,
    GroupContext,
    LocalBackend,
    Workers,
)
from plangym_like.batchers.workers.remote import ProcessBackend, RayBackend
from plangym_like.errors import ClosedError, WorkerTimeoutError
from plangym_like.support.arguments import as_count

# How often to check that workers make progress.
_CHECK_SECONDS = 0.25


class Closable(abc.ABC):
    """A context manager with methods that raise `ClosedError` after it has been closed."""

    _end: str | None = None

    def _check_open(self) -> None:
        if self._end is not None:
            raise ClosedError(f"this {type(self).__name__} {self._end}")

    @abc.abstractmethod
    def _close(self) -> None:
        """End all workers, including hung ones. This may be called more than once."""

    def close(self) -> None:
        """End all workers within a few seconds; calling it again does nothing."""
        self._end = self._end or "has been closed; make another one"
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True, eq=False)
class Job:
    """One method call on a hosted object; `WorkerGroup.wait` sets `result`."""

    group: int
    method: str
    args: tuple[Any, ...]
    call: Call
    result: Any = None


class WorkerGroup:
    """Hosts one object for each group of lanes in workers, and runs the objects' methods as jobs.

    The constructor starts the workers. The jobs of a group run in the order of submission. If a job
    fails, or a worker dies or makes no progress, the next `wait` closes all workers and raises an
    exception that names the worker and the group.

    Parameters
    ----------
    make_object : callable
        Given a `GroupContext`, returns the object of its group. It is sent to the workers; lambdas
        and closures are fine.
    num_groups : int
    workers : Workers, optional
        With n workers, worker ``g % n`` hosts group g. With ``Workers(0)``, this process hosts all
        groups, and `wait` runs the jobs.
    name : str
        What to call workers in error messages; the number of the worker is appended.
    preload : sequence of str
        Modules that all workers use; a fork server imports them once.

    Raises
    ------
    InputError
        `num_groups` is less than 1.
    """

    def __init__(
        self,
        make_object: Callable[[GroupContext], Any],
        num_groups: int,
        workers: Workers | None = None,
        *,
        name: str = "collector",
        preload: Sequence[str] = (),
    ) -> None:
        num_groups = as_count("num_groups", num_groups)
        workers = workers or Workers()
        self.timeout = workers.timeout
        self._jobs: list[Job] = []
        self._end: str | None = None
        self._version = -1
        kind = RayBackend if workers.on_ray else LocalBackend if workers.n == 0 else ProcessBackend
        self._workers: Backend = kind(make_object, num_groups, workers, name, preload)
        # When each worker last made progress; whether it was ready then, and its heartbeat count.
        self._progress_at = [time.monotonic()] * self._workers.num_workers
        self._progress = [(False, -1)] * self._workers.num_workers
        self._checked_at = 0.0

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers, each valid on the machine where the worker runs."""
        return self._workers.pids

    def describe(self, group: int) -> str:
        """Return the name of the worker that hosts a group, for error messages."""
        return self._workers.describe(group % self._workers.num_workers)

    def publish(self, tree: Any) -> int:
        """Let hosted objects load the tree of tensors `tree` by ``context.load(known)``.

        A job that has begun already may still load the previous tree, but never a mixture.

        Returns
        -------
        int
            The version of the tree: 0 at first, and 1 more with each call.
        """
        self._check_usable()
        self._version += 1
        self._workers.publish(tree, self._version)
        return self._version

    def submit(self, group: int, method: str, *args: Any) -> Job:
        """Schedule a call of `method` on the object of `group`, and return the job.

        A large result of the job is valid until it is given to `release`.
        """
        self._check_usable()
        worker = group % self._workers.num_workers
        if not any(self._worker_of(job) == worker for job in self._jobs):
            self._progress_at[worker] = time.monotonic()
        job = Job(group, method, args, self._workers.call(group, method, args))
        self._jobs.append(job)
        return job

    def wait(self, timeout: float | None = None, job: Job | None = None) -> Job | None:
        """Wait for `job` (by default, any job) and return it, or ``None`` after `timeout` seconds.

        Without jobs, return ``None`` immediately.

        Raises
        ------
        BaseException
            The exception that the job raised, with its own type, the remote traceback as its cause,
            and a note that names the worker and the group.
        WorkerDiedError
            A worker has died.
        WorkerTimeoutError
            A worker that has jobs has made no progress for longer than the constructor's `timeout`.
        ClosedError
            The workers have been closed.
        """
        self._check_usable()
        if not self._jobs or not self.wait_until_done(job, timeout):
            return None
        done = self._next_done(job)
        assert done is not None
        return self._take(done)

    def release(self, job: Job) -> None:
        """Reuse the memory that the arrays in the job's result are in."""
        self._workers.release(job.call)

    def wait_until_done(self, job: Job | None = None, timeout: float | None = None) -> bool:
        """Wait until `wait` would return immediately. If the call is interrupted, no job is lost.

        Return False if `timeout` seconds have passed before.

        Raises
        ------
        WorkerTimeoutError, ClosedError
            As in `wait`.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        self._check_usable()
        while self._jobs and self._next_done(job) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._wait(min(left, _CHECK_SECONDS), job)
            self._check_usable()
        return True

    def run(self, group: int, method: str, *args: Any) -> Any:
        """Submit a job, wait for it, and return its result."""
        job = self.submit(group, method, *args)
        self.wait(job=job)
        self.release(job)
        return job.result

    def _next_done(self, wanted: Job | None) -> Job | None:
        """Return `wanted` if it is done, or any job that is done if `wanted` is ``None``.

        Return ``None`` if no such job is done yet. A job that has failed may be returned even if it
        is not `wanted`.
        """
        for job in self._jobs:
            if job.call.done():
                if wanted is None or job is wanted or job.call.exception() is not None:
                    return job
        return None

    def _take(self, job: Job) -> Job:
        self._jobs.remove(job)
        self._progress_at[self._worker_of(job)] = time.monotonic()
        try:
            job.result = self._workers.result(job.call)
        except BaseException as error:
            self._fail(error, job)
        return job

    def _wait(self, seconds: float, job: Job | None) -> None:
        self._workers.wait(seconds, None if job is None else job.group)
        now = time.monotonic()
        if now - self._checked_at >= min(_CHECK_SECONDS, self.timeout / 4):
            self._checked_at = now
            for worker in range(self._workers.num_workers):
                self._check_progress(worker, now)

    def _check_progress(self, worker: int, now: float) -> None:
        """Close all workers and raise an error if `worker` has jobs but makes no progress."""
        is_ready = self._workers.is_ready(worker)
        progress = is_ready, self._workers.beats(worker)
        if progress != self._progress[worker]:
            self._progress[worker], self._progress_at[worker] = progress, now
        jobs = [job for job in self._jobs if self._worker_of(job) == worker]
        if not jobs or any(job.call.done() for job in jobs):
            return
        doing, limit = f"doing {jobs[0].method!r}", self.timeout
        if not is_ready:
            doing, limit = "making its objects", max(limit, self._workers.start_seconds)
        if now - self._progress_at[worker] > limit:
            error = WorkerTimeoutError(
                f"{self._workers.describe(worker)} has made no progress for {limit:g} s while "
                f"{doing}; it was killed. Its environment may be waiting for something that never "
                "happens; if its steps take that long, increase timeout: Workers(n, timeout=300)"
            )
            self._fail(error, jobs[0])

    def _fail(self, error: BaseException, job: Job) -> None:
        """Close all workers; raise `error` with a note that names the job's worker and groups."""
        workers, worker = self._workers, self._worker_of(job)
        groups = f"group {job.group}"
        if not workers.is_ready(worker):
            groups = f"groups {workers.groups_of(worker)}"
        where = workers.describe(worker)
        self._end = f"they were closed when {groups} in {where} failed: {error}"
        error.add_note(f"in {where}, {groups}")
        try:
            self.close(timeout=1.0)
        except Exception as second:
            error.add_note(f"closing the environments failed, too: {second!r}")
        raise error

    def _worker_of(self, job: Job) -> int:
        return job.group % self._workers.num_workers

    def _check_usable(self) -> None:
        if self._end is not None:
            name = self._workers.name
            raise ClosedError(f"these {name}s cannot be used any more: {self._end}")

    def close(self, timeout: float = 3.0) -> None:
        """Close all workers; kill those still running after about `timeout` seconds.

        Calling it again does nothing.
        """
        if self._end is None:
            self._end = "they have been closed"
        self._jobs.clear()
        self._workers.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
