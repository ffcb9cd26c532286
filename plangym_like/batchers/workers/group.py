"""`WorkerGroup`: hosts objects in workers, and runs their methods as jobs."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from plangym_like.batchers.workers.backend import (
    Call,
    GroupContext,
    LocalWorkers,
    PoolOptions,
    Workers,
)
from plangym_like.batchers.workers.processes import ProcessWorkers
from plangym_like.cluster import ray_session
from plangym_like.cluster.sites import check_resources
from plangym_like.errors import ClosedError, InputError, WorkerTimeoutError
from plangym_like.processes.start_methods import check_start_method
from plangym_like.support.arguments import as_count, check_seconds
from plangym_like.vector.make_lanes import Sample


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


_NAMES = ("process", "ray")


class Backend:
    """Where workers run, as chosen by the user.

    Parameters
    ----------
    name : {"process", "ray"}
        Processes on this machine, or actors on a Ray cluster.
    start_method : {"forkserver", "spawn", "fork"}
        How processes are started; see `plangym_like.ExternalProcess`.
    address, resources, runtime_env
        Options for the Ray cluster and its actors; see `plangym_like.RayEnv`.

    Raises
    ------
    InputError
        `name` or `start_method` is unknown, `name` does not take an option that was given, or
        `resources` is not a dict.
    MissingExtraError
        `name` is ``"ray"``, but Ray is not installed.
    """

    def __init__(
        self,
        name: str = "process",
        *,
        start_method: str = "forkserver",
        address: str | None = None,
        resources: dict[str, Any] | None = None,
        runtime_env: dict[str, Any] | None = None,
    ) -> None:
        if name not in _NAMES:
            raise InputError(f"backend must be one of {', '.join(map(repr, _NAMES))}, got {name!r}")
        check_start_method(start_method)
        cluster: dict[str, Any] = {
            "address": address,
            "resources": resources,
            "runtime_env": runtime_env,
        }
        if name == "ray":
            ray_session.import_ray()
        elif given := [option for option, value in cluster.items() if value is not None]:
            raise InputError(f"only backend='ray' takes {', '.join(given)}, got {name!r}")
        check_resources(resources)
        self._name = name
        self._start_method = start_method
        self._cluster = cluster

    def workers(self, options: PoolOptions) -> Workers:
        """Start workers and return them."""
        if self._name == "ray":
            from plangym_like.batchers.workers.ray import RayWorkers

            return RayWorkers(options, **self._cluster)
        if options.num_workers == 0:
            return LocalWorkers(options)
        return ProcessWorkers(options, self._start_method)


# How often to check that workers make progress.
_CHECK_SECONDS = 0.25


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
    num_workers : int, optional
        The number of workers, reduced to `num_groups` if it is larger. ``None`` starts one per
        core. Worker ``g % num_workers`` hosts group g. With 0, this process hosts all groups, and
        `wait` runs the jobs.
    backend : Backend, optional
        Where workers run; by default, in processes on this machine.
    timeout : float
        Seconds without progress (see `GroupContext.beat`) after which a worker counts as hung.
    name : str
        What to call workers in error messages; the number of the worker is appended.
    preload : sequence of str
        Modules that all workers use; a fork server imports them once.
    sample : callable, optional
        Returns a new environment like those of the objects, and a function that closes it. Workers
        compare it with one in a copy of this process (see `plangym_like.vector.make_lanes`).

    Raises
    ------
    InputError
        `num_groups` is less than 1, `num_workers` is negative, or `timeout` is not positive.
    """

    def __init__(
        self,
        make_object: Callable[[GroupContext], Any],
        num_groups: int,
        *,
        num_workers: int | None = None,
        backend: Backend | None = None,
        timeout: float = 30.0,
        name: str = "collector",
        preload: Sequence[str] = (),
        sample: Sample | None = None,
    ) -> None:
        num_groups = as_count("num_groups", num_groups)
        if num_workers is not None:
            num_workers = as_count("num_workers", num_workers, 0)
        check_seconds("timeout", timeout)
        self.timeout = timeout
        options = PoolOptions(make_object, num_groups, num_workers, timeout, name, preload, sample)
        self._jobs: list[Job] = []
        self._end: str | None = None
        self._workers: Workers = (backend or Backend()).workers(options)
        # When each worker last made progress; whether it was ready then, and its heartbeat count.
        self._progress_at = [time.monotonic()] * self._workers.num_workers
        self._progress = [(False, -1)] * self._workers.num_workers
        self._checked_at = 0.0

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers, each valid on the machine where the worker runs."""
        return self._workers.pids

    @property
    def num_pending(self) -> int:
        """The number of jobs that `wait` has not returned yet."""
        return len(self._jobs)

    def share(self, name: str, shared: Any) -> None:
        """Make `shared` available in all workers as ``context.memory[name]``.

        Parameters
        ----------
        name : str
        shared : SharedArrays
            Shared memory with tensors as its `arrays`. The caller closes it.
        """
        self._check_usable()
        self._workers.share(name, shared)

    def mark_changed(self, name: str) -> None:
        """Let later jobs see the new content of the memory shared as `name`.

        This call is needed for workers that hold a copy. Workers that share memory with this
        process see every change even without it.
        """
        self._check_usable()
        self._workers.mark_changed(name)

    def make_buffers(self, name: str, layout: Any, count: int, group: int | None = None) -> Any:
        """Make `count` buffers for hosted objects to fill, as their ``context.memory[name]``.

        Parameters
        ----------
        name : str
        layout : tree of Leaf
            The layout of one buffer.
        count : int
        group : int, optional
            The only group that fills the buffers. By default, all groups do, and each job fills one
            buffer.

        Returns
        -------
        sequence or dict of tree of Tensor
            Item i is the content that was last written to buffer i.
        """
        self._check_usable()
        return self._workers.make_buffers(name, layout, count, group)

    def submit(self, group: int, method: str, *args: Any) -> Job:
        """Schedule a call of `method` on the object of `group`, and return the job."""
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
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._check_usable()
            if not self._jobs:
                return None
            done = self._next_done(job)
            if done is not None:
                return self._take(done)
            left = _CHECK_SECONDS
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
                if left <= 0:
                    return None
            self._wait(left, job)

    def wait_until_done(self, job: Job | None = None) -> None:
        """Wait until `wait` would return immediately. If the call is interrupted, no job is lost.

        Raises
        ------
        WorkerTimeoutError, ClosedError
            As in `wait`.
        """
        self._check_usable()
        while self._jobs and self._next_done(job) is None:
            self._wait(_CHECK_SECONDS, job)
            self._check_usable()

    def run(self, group: int, method: str, *args: Any) -> Any:
        """Submit a job, wait for it, and return its result."""
        job = self.submit(group, method, *args)
        self.wait(job=job)
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
            job.result = job.call.result()
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
                "happens; if its steps take that long, increase timeout="
            )
            self._fail(error, jobs[0])

    def _fail(self, error: BaseException, job: Job) -> None:
        """Close all workers; raise `error` with a note that names the job's worker and groups."""
        workers, worker = self._workers, self._worker_of(job)
        groups = f"group {job.group}"
        if not workers.is_ready(worker):
            groups = f"groups {workers.options.groups_of(worker, workers.num_workers)}"
        where = workers.describe(worker)
        self._end = f"they were closed when {groups} in {where} failed: {error}"
        self.close(timeout=1.0)
        error.add_note(f"in {where}, {groups}")
        raise error

    def _worker_of(self, job: Job) -> int:
        return job.group % self._workers.num_workers

    def _check_usable(self) -> None:
        if self._end is not None:
            name = self._workers.options.name
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
