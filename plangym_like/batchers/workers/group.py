"""`WorkerGroup`: hosts objects in workers, and runs their methods as jobs.

`Workers` is the user's choice of their number and kind. A worker is this process (`LocalWorkers`),
another process, or an actor on a Ray cluster (`workers.remote`). It hosts `HostedObjects`.
"""

from __future__ import annotations

import abc
import concurrent.futures
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from plangym_like.batchers.trees import clone_tree
from plangym_like.batchers.workers.hosted import GroupContext, HostedObjects
from plangym_like.cluster import ray_session
from plangym_like.cluster.sites import check_resources
from plangym_like.errors import ClosedError, InputError, WorkerTimeoutError
from plangym_like.processes.shared_memory import SharedBlock
from plangym_like.processes.start_methods import check_start_method
from plangym_like.results import Future
from plangym_like.support.arguments import as_count, check_seconds

# How often to check that workers make progress.
_CHECK_SECONDS = 0.25
_RAY_OPTIONS = ("address", "resources", "runtime_env")


@dataclass(frozen=True)
class Workers:
    """How many workers a batcher has, where they run, and when one counts as hung.

    Parameters
    ----------
    n : int, optional
        The number of workers; ``None`` starts one per core of this machine or of the cluster. There
        are never more than there are groups of environments. With 0, this process does the work.
    start_method : {"forkserver", "spawn", "fork"}
        How processes are started; see `plangym_like.ExternalProcess`.
    timeout : float
        Seconds without a step after which a worker counts as hung.
    ray : bool or dict
        ``True`` starts actors on a Ray cluster instead of processes. A dict does the same, with
        the options ``address``, ``resources`` and ``runtime_env`` of `plangym_like.RayEnv`. By
        default, each actor claims one core, or none if this program starts a local Ray.

    Raises
    ------
    InputError
        An argument is invalid.
    MissingExtraError
        `ray` is true, but Ray is not installed.

    Examples
    --------
    >>> Workers(4, timeout=120.0)
    Workers(n=4, start_method='forkserver', timeout=120.0, ray=False)
    """

    n: int | None = None
    start_method: str = "forkserver"
    timeout: float = 30.0
    ray: bool | Mapping[str, Any] = False

    def __post_init__(self) -> None:
        if self.n is not None:
            as_count("the number of workers", self.n, 0)
        check_start_method(self.start_method)
        check_seconds("timeout", self.timeout)
        if not isinstance(self.ray, bool | Mapping):
            raise InputError(f"ray must be True, False or a dict of options, got {self.ray!r}")
        if unknown := self.ray_options.keys() - set(_RAY_OPTIONS):
            raise InputError(f"ray takes {', '.join(_RAY_OPTIONS)}, got {sorted(unknown)}")
        check_resources(self.ray_options.get("resources"))
        if self.on_ray:
            if self.n == 0:
                raise InputError("actors on Ray need at least 1 worker, got 0")
            ray_session.import_ray()

    @classmethod
    def of(cls, given: Self | int | None) -> Self:
        """Return `given` if it is `Workers` already; a number or ``None`` is their number."""
        return given if isinstance(given, cls) else cls(given)  # type: ignore[arg-type]

    @property
    def on_ray(self) -> bool:
        """Whether workers are actors on a Ray cluster; an empty dict means so, too."""
        return self.ray is not False

    @property
    def ray_options(self) -> Mapping[str, Any]:
        """The options for Ray that were given."""
        return self.ray if isinstance(self.ray, Mapping) else {}


class Closable(abc.ABC):
    """A context manager with methods that raise `ClosedError` after it has been closed."""

    _end: str | None = None
    # What users call this object, if it is not the name of its class.
    _called: str | None = None

    def _check_open(self) -> None:
        if self._end is not None:
            raise ClosedError(f"this {self._called or type(self).__name__} {self._end}")

    @abc.abstractmethod
    def _close(self, timeout: float) -> None:
        """End all workers; kill those still running after about `timeout` seconds.

        This may be called more than once.
        """

    def close(self, timeout: float = 3.0) -> None:
        """End all workers; kill those still running after about `timeout` seconds.

        Calling it again does nothing. Results that were returned before stay valid.
        """
        self._end = self._end or "has been closed; make another one"
        self._close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True, eq=False)
class Job:
    """The running `call` of a `method` of the object of `group`, which `worker` hosts.

    `result` is set by `WorkerGroup.wait`. `block` is memory that is lent to the worker for the
    arrays of the result.
    """

    group: int
    worker: int
    method: str
    call: Future[Any] | concurrent.futures.Future[Any] = field(init=False)
    result: Any = None
    block: SharedBlock | None = None


class WorkerGroup(Closable):
    """Hosts one object for each group of lanes in workers, and runs the objects' methods as jobs.

    There is a subclass for each kind of worker; `start_workers` chooses it. The constructor starts
    the workers. The jobs of a group run in the order of submission. If a job fails, or a worker
    dies or makes no progress, the next `wait` closes all workers and raises an exception that names
    the worker and the group.

    Parameters
    ----------
    make_object : callable
        Given a `GroupContext`, returns the object of its group. It is sent to the workers; lambdas
        and closures are fine.
    num_groups : int
        Worker ``g % num_workers`` hosts the object of group g.
    options : Workers
    name : str
        What to call workers in error messages; the number of the worker is appended.
    preload : sequence of str
        Modules that all workers use; a fork server imports them once.

    Attributes
    ----------
    num_workers : int
    start_seconds : float
        How many seconds a worker may take to make its objects, unless the timeout is longer.

    Raises
    ------
    InputError
        `num_groups` is less than 1.
    """

    num_workers = 1
    start_seconds = 60.0

    def __init__(
        self,
        make_object: Callable[[GroupContext], Any],
        num_groups: int,
        options: Workers,
        name: str,
        preload: Sequence[str],
    ) -> None:
        self.num_groups = as_count("num_groups", num_groups)
        self.make_object, self.options = make_object, options
        self.name = self._called = name
        self.preload = preload
        self._jobs: list[Job] = []
        self._version = -1
        self._start()
        # The published version that each worker has been sent.
        self._known = [-1] * self.num_workers
        # When each worker last made progress; whether it was ready then, and its heartbeat count.
        self._progress_at = [time.monotonic()] * self.num_workers
        self._progress = [(False, -1)] * self.num_workers
        self._checked_at = 0.0

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers, each valid on its machine; empty without workers."""
        return []

    def _start(self) -> None:
        """Start the workers."""

    @abc.abstractmethod
    def describe(self, worker: int) -> str:
        """Return the name of a worker for error messages."""

    @abc.abstractmethod
    def _is_ready(self, worker: int) -> bool:
        """Return whether the worker is known to have made its objects."""

    @abc.abstractmethod
    def _publish(self, tree: Any, version: int) -> None: ...

    @abc.abstractmethod
    def _send(self, job: Job, args: tuple[Any, ...]) -> None:
        """Set ``job.call`` to the call of the job's method with `args`."""

    def _result(self, job: Job) -> Any:
        """Return the result of a job that is done, or raise its exception."""
        return job.call.result()

    def release(self, job: Job) -> None:
        """Reuse the memory that the arrays in the job's result are in."""

    @abc.abstractmethod
    def _wait(self, seconds: float, group: int | None) -> None:
        """Wait at most `seconds` for a job to be done.

        If this process is the worker, run a job instead: one of `group`, if `group` is given.
        """

    def _beats(self, worker: int) -> int:
        """Return how many times the worker has reported progress, as far as is known."""
        return 0

    def count_workers(self, num_cores: int) -> int:
        """Return how many workers to start on a machine or cluster with `num_cores` cores."""
        wanted = num_cores if self.options.n is None else self.options.n
        return min(wanted, self.num_groups)

    def groups_of(self, worker: int) -> list[int]:
        """Return the groups that `worker` hosts."""
        return list(range(worker, self.num_groups, self.num_workers))

    def publish(self, tree: Any) -> int:
        """Let the jobs submitted from now on load a copy of `tree` by ``context.load(known)``.

        `tree` is a tree of tensors on any device. Jobs that were submitted before load what was
        published then.

        Returns
        -------
        int
            The version of the tree: 0 at first, and 1 more with each call.
        """
        self._check_open()
        self._version += 1
        self._publish(tree, self._version)
        return self._version

    def _lacks_weights(self, worker: int) -> bool:
        """Return whether what was published last has not been sent to `worker`."""
        return self._known[worker] != self._version

    def submit(self, group: int, method: str, *args: Any) -> Job:
        """Schedule a call of `method` on the object of `group`, and return the job.

        A large result of the job is valid until it is given to `release`.
        """
        self._check_open()
        job = Job(group, group % self.num_workers, method)
        if not any(other.worker == job.worker for other in self._jobs):
            self._progress_at[job.worker] = time.monotonic()
        self._send(job, args)
        self._known[job.worker] = self._version
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
            A worker that has jobs has made no progress for longer than the timeout of `Workers`.
        ClosedError
            The workers have been closed.
        """
        self._check_open()
        if not self._jobs or not self.wait_until_done(job, timeout):
            return None
        done = self._next_done(job)
        assert done is not None
        return self._take(done)

    def wait_until_done(self, job: Job | None = None, timeout: float | None = None) -> bool:
        """Wait until `wait` would return immediately. If the call is interrupted, no job is lost.

        Return False if `timeout` seconds have passed before.

        Raises
        ------
        WorkerTimeoutError, ClosedError
            As in `wait`.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        self._check_open()
        while self._jobs and self._next_done(job) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._wait(min(left, _CHECK_SECONDS), None if job is None else job.group)
            self._check_all_progress()
            self._check_open()
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
        self._progress_at[job.worker] = time.monotonic()
        try:
            job.result = self._result(job)
        except BaseException as error:
            self._fail(error, job)
        return job

    def _check_all_progress(self) -> None:
        now = time.monotonic()
        if now - self._checked_at >= min(_CHECK_SECONDS, self.options.timeout / 4):
            self._checked_at = now
            for worker in range(self.num_workers):
                self._check_progress(worker, now)

    def _check_progress(self, worker: int, now: float) -> None:
        """Close all workers and raise an error if `worker` has jobs but makes no progress."""
        is_ready = self._is_ready(worker)
        progress = is_ready, self._beats(worker)
        if progress != self._progress[worker]:
            self._progress[worker], self._progress_at[worker] = progress, now
        jobs = [job for job in self._jobs if job.worker == worker]
        if not jobs or any(job.call.done() for job in jobs):
            return
        doing, limit = f"doing {jobs[0].method!r}", self.options.timeout
        if not is_ready:
            doing, limit = "making its objects", max(limit, self.start_seconds)
        if now - self._progress_at[worker] > limit:
            error = WorkerTimeoutError(
                f"{self.describe(worker)} has made no progress for {limit:g} s while {doing}; it "
                "was killed. Its environment may be waiting for something that never happens; if "
                "its steps take that long, increase timeout: Workers(n, timeout=300)"
            )
            self._fail(error, jobs[0])

    def _fail(self, error: BaseException, job: Job) -> None:
        """Close all workers; raise `error` with a note that names the job's worker and groups."""
        if isinstance(error, StopIteration) or not isinstance(error, Exception):
            # Raised unchanged, it would end the caller's loop, or the program.
            text = f"an environment, actor or factory raised {error!r}"
            error, error.__cause__ = RuntimeError(text), error
        groups, where = f"group {job.group}", self.describe(job.worker)
        if not self._is_ready(job.worker):
            groups = f"groups {self.groups_of(job.worker)}"
        self._end = f"was closed when {groups} in {where} failed: {error}"
        error.add_note(f"in {where}, {groups}")
        try:
            self.close(timeout=1.0)
        except Exception as second:
            error.add_note(f"closing the environments failed, too: {second!r}")
        raise error


class LocalWorkers(WorkerGroup):
    """A single worker: the caller's own process, in which waiting executes the jobs.

    All objects are made when the first job is executed.
    """

    def _start(self) -> None:
        self._published: tuple[int, Any] = (-1, None)
        self._hosted: HostedObjects | None = None
        # Each job with its arguments, and what was published when it was submitted.
        self._waiting: list[tuple[Job, tuple[Any, ...], tuple[int, Any]]] = []

    def describe(self, worker: int) -> str:
        return "this process"

    def _is_ready(self, worker: int) -> bool:
        return True

    def _publish(self, tree: Any, version: int) -> None:
        self._published = version, clone_tree(tree)

    def _send(self, job: Job, args: tuple[Any, ...]) -> None:
        job.call = concurrent.futures.Future()
        self._waiting.append((job, args, self._published))

    def _wait(self, seconds: float, group: int | None) -> None:
        chosen = next((each for each in self._waiting if group in (None, each[0].group)), None)
        if chosen is None:
            return
        # The job is done already if an interrupt came before it was removed from the list.
        if not chosen[0].call.done():
            self._execute(*chosen)
        self._waiting.remove(chosen)

    def _execute(self, job: Job, args: tuple[Any, ...], published: tuple[int, Any]) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            if self._hosted is None:
                groups = range(self.num_groups)
                self._hosted = HostedObjects(self.make_object, groups, own_process=False)
            self._hosted.published = published
            job.call.set_result(self._hosted.call(job.group, job.method, *args))
        except Exception as error:
            job.call.set_exception(error)
        finally:
            torch.set_num_threads(threads)

    def _close(self, timeout: float) -> None:
        self._waiting.clear()
        hosted, self._hosted = self._hosted, None
        if hosted is not None:
            hosted.close()
