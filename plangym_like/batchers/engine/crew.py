"""Workers for a batcher: objects hosted somewhere, jobs for them, and what can go wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from plangym_like.batchers.engine.backend import Backend
from plangym_like.batchers.engine.hosts import Call, Host, Staff
from plangym_like.batchers.engine.pools import Pool
from plangym_like.batchers.engine.residents import Workplace
from plangym_like.errors import ClosedError, InputError, WorkerTimeoutError

_LOOK_AGAIN_SECONDS = 0.25
# The method of jobs that nobody has submitted: workers take over what is shared with them.
_ATTACH = "attach"


class Job:
    """One call of a resident's method, and its result once `Crew.wait` has returned the job."""

    __slots__ = ("args", "call", "group", "method", "result")

    def __init__(self, group: int, method: str, args: tuple[Any, ...], call: Call) -> None:
        self.group = group
        self.method = method
        self.args = args
        self.call = call
        self.result: Any = None


class Crew:
    """Hosts one object for each group of lanes, and has them do jobs.

    Workers start at once. Jobs of one worker are done in the order in which they were submitted;
    more than one may be outstanding, so that a worker need not wait for its next. A job that fails,
    a worker that dies and one that makes no progress all come out of the next `wait`, as an
    exception that names worker and group; the crew is closed then, and no process is left.

    Parameters
    ----------
    make_resident : callable
        Given a `Workplace`, returns the object of its group. It is sent to the workers; lambdas
        and closures are fine.
    num_groups : int
    num_workers : int, optional
        Processes; group g lives in worker ``g % num_workers``. 0 hosts all in this process, where
        jobs are done by `wait`. ``None``: one a core, and no more than groups.
    backend : Backend, optional
        Where workers are; processes of this machine unless given.
    timeout : float
        Seconds without progress (see `Workplace.beat`) after which a worker counts as hung.
    name : str
        What errors call the workers, with a number.
    preload : sequence of str
        Modules that all workers need.

    Raises
    ------
    InputError
        A number does not make sense.
    """

    def __init__(
        self,
        make_resident: Callable[[Workplace], Any],
        num_groups: int,
        *,
        num_workers: int | None = None,
        backend: Backend | None = None,
        timeout: float = 30.0,
        name: str = "collector",
        preload: Sequence[str] = (),
    ) -> None:
        if num_groups < 1 or (num_workers is not None and num_workers < 0) or not timeout > 0:
            raise InputError(
                "a crew needs at least 1 group, at least 0 workers and a timeout above 0, got "
                f"{num_groups}, {num_workers} and {timeout}"
            )
        self.timeout = timeout
        self._staff = Staff(make_resident, num_groups, num_workers, timeout, name, preload)
        self._jobs: list[Job] = []
        self._end: str | None = None
        self._host: Host = (backend or Backend()).host(self._staff)
        self._moved = [time.monotonic()] * self._host.num_workers
        self._beats = [-1] * self._host.num_workers
        self._looked = 0.0

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers, on their machines."""
        return self._host.pids

    @property
    def num_pending(self) -> int:
        """How many jobs `wait` has yet to return."""
        return len(self._jobs)

    def share(self, name: str, shared: Any) -> None:
        """Let all workers see `shared` as ``workplace.memory[name]``.

        Parameters
        ----------
        name : str
        shared : SharedNest or SharedActor
            Anything with a ``layout``, an ``fd`` and ``tensors``. It stays the caller's.
        """
        self._usable()
        self._watch(self._host.share(name, shared))

    def renew(self, name: str) -> None:
        """Let jobs from now on see what was shared under `name` as it is now.

        Workers that share memory with this process see it anyway.
        """
        self._usable()
        self._host.renew(name)

    def make_pool(self, name: str, layout: Any, count: int, group: int | None = None) -> Pool:
        """Make pieces of memory that residents fill, as ``workplace.memory[name]``.

        Parameters
        ----------
        name : str
        layout : nest of Leaf
            Of one piece.
        count : int
        group : int, optional
            The only one that fills them. Else all do, one piece in each job.

        Returns
        -------
        Pool
            The caller's to close.
        """
        self._usable()
        pool, calls = self._host.make_pool(name, layout, count, group)
        self._watch(calls)
        return pool

    def _watch(self, calls: Iterable[Call]) -> None:
        self._jobs += [Job(worker, _ATTACH, (), call) for worker, call in enumerate(calls)]

    def submit(self, group: int, method: str, *args: Any) -> Job:
        """Have `method` of the object of `group` called, and return the job."""
        self._usable()
        worker = group % self._host.num_workers
        if not any(self._worker_of(other) == worker for other in self._jobs):
            self._moved[worker] = time.monotonic()
        job = Job(group, method, args, self._host.call(group, method, args))
        self._jobs.append(job)
        return job

    def _worker_of(self, job: Job) -> int:
        return job.group % self._host.num_workers

    def wait(self, timeout: float | None = None, job: Job | None = None) -> Job | None:
        """Return the next job that is done, or `job` when it is; ``None`` after `timeout` seconds.

        Raises
        ------
        BaseException
            What the job raised, as its own type, caused by the remote traceback and with a note
            that names worker and group.
        WorkerDiedError
            A worker has died.
        WorkerTimeoutError
            A worker that has something to do has made no progress for the crew's timeout.
        ClosedError
            The crew has been closed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._usable()
            if not self._jobs:
                return None
            done = self._first_settled(job)
            if done is not None:
                return done
            left = _LOOK_AGAIN_SECONDS
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
            if left <= 0 and deadline is not None:
                return None
            self._listen(left, job)

    def settle(self, job: Job | None = None) -> None:
        """Wait until there is something for `wait` to do without waiting, or no job is left.

        Nothing is taken, so an interrupt loses nothing.

        Raises
        ------
        WorkerTimeoutError, ClosedError
            As `wait` does.
        """
        while True:
            self._usable()
            if not self._jobs or any(
                other.call.settled and (job is None or other is job or self._failed(other))
                for other in self._jobs
            ):
                return
            self._listen(_LOOK_AGAIN_SECONDS, job)

    def _listen(self, seconds: float, job: Job | None) -> None:
        self._host.listen(seconds, None if job is None else job.call)
        now = time.monotonic()
        if now - self._looked >= min(_LOOK_AGAIN_SECONDS, self.timeout / 4):
            self._looked = now
            self._look_after(now)

    def run(self, group: int, method: str, *args: Any) -> Any:
        """Submit a job, wait for it alone, and return its result."""
        job = self.submit(group, method, *args)
        self.wait(job=job)
        return job.result

    def _first_settled(self, wanted: Job | None) -> Job | None:
        for job in list(self._jobs):
            if not job.call.settled:
                continue
            if job.method != _ATTACH and wanted is not None and job is not wanted:
                if not self._failed(job):
                    continue
            self._jobs.remove(job)
            self._moved[self._worker_of(job)] = time.monotonic()
            try:
                job.result = job.call()
            except BaseException as error:
                self._give_up(error, job)
            if job.method != _ATTACH:
                return job
        return None

    @staticmethod
    def _failed(job: Job) -> bool:
        try:
            job.call()
        except BaseException:
            return True
        return False

    def _look_after(self, now: float) -> None:
        """Find out which workers have made progress, and end it where one has not for too long."""
        for worker in range(self._host.num_workers):
            beats = self._host.beats(worker)
            if beats != self._beats[worker]:
                self._beats[worker], self._moved[worker] = beats, now
            jobs = [job for job in self._jobs if self._worker_of(job) == worker]
            if not jobs or any(job.call.settled for job in jobs):
                continue
            starting = not self._host.stands(worker)
            patience = max(self.timeout, self._host.start_seconds) if starting else self.timeout
            if now - self._moved[worker] > patience:
                doing = "being made" if starting else f"doing {jobs[0].method!r}"
                error = WorkerTimeoutError(
                    f"{self._host.where(worker)} has made no progress for {patience:g} s while "
                    f"{doing}; it was killed. Its environment may wait for something that does "
                    "not come; if its steps just take that long, raise timeout="
                )
                self._give_up(error, jobs[0])

    def _give_up(self, error: BaseException, job: Job) -> None:
        worker = self._worker_of(job)
        if job.method == _ATTACH or not self._host.stands(worker):
            what = f"groups {self._staff.groups_of(worker, self._host.num_workers)}"
        else:
            what = f"group {job.group}"
        where = self._host.where(worker)
        self._end = f"it was closed when {what} in {where} failed: {error}"
        self.close(timeout=1.0)
        error.add_note(f"in {where}, {what}")
        raise error

    def _usable(self) -> None:
        if self._end is not None:
            raise ClosedError(f"these {self._staff.name}s cannot be used any more: {self._end}")

    def close(self, timeout: float = 3.0) -> None:
        """End all workers within little more than `timeout` seconds; calling it again is fine.

        They are asked to, and close what they host; who does not is killed.
        """
        if self._end is None:
            self._end = "it has been closed"
        self._jobs.clear()
        self._host.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
