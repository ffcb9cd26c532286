"""Workers for a batcher: objects hosted in processes, jobs for them, and what can go wrong."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import torch

from plangym_like.batchers.engine.residents import (
    CONTROL,
    Residents,
    Workplace,
    control_layout,
)
from plangym_like.batchers.engine.shared_nest import SharedNest
from plangym_like.errors import ClosedError, InputError, WorkerTimeoutError
from plangym_like.parallel.external_process import ExternalProcess
from plangym_like.parallel.promise import Promise

# Imported once in the nursery from which workers are forked.
_PRELOAD = ("torch", "plangym_like.batchers.engine.residents")
# A worker may import and construct for this many seconds before it counts as hung.
_START_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 0.25


class Job:
    """One call of a resident's method, and its result once `Crew.wait` has returned the job."""

    __slots__ = ("args", "done", "group", "method", "promise", "result")

    def __init__(self, group: int, method: str, args: tuple[Any, ...]) -> None:
        self.group = group
        self.method = method
        self.args = args
        self.promise: Promise | None = None
        self.done = False
        self.result: Any = None


class Crew:
    """Hosts one object for each group of lanes, in worker processes or in this one.

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
    start_method : {"forkserver", "spawn", "fork"}
    timeout : float
        Seconds without progress (see `Workplace.beat`) after which a worker counts as hung.
    name : str
        What errors call the workers, with a number.
    preload : sequence of str
        Modules that ``"forkserver"`` imports once for all workers.

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
        start_method: str = "forkserver",
        timeout: float = 30.0,
        name: str = "collector",
        preload: Sequence[str] = (),
    ) -> None:
        if num_groups < 1 or (num_workers is not None and num_workers < 0) or not timeout > 0:
            raise InputError(
                "a crew needs at least 1 group, at least 0 workers and a timeout above 0, got "
                f"{num_groups}, {num_workers} and {timeout}"
            )
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
        self.num_workers = min(cores if num_workers is None else num_workers, num_groups)
        self.timeout = timeout
        self._make_resident = make_resident
        self._num_groups = num_groups
        self._name = name
        self._preload = (*_PRELOAD, *preload)
        self._jobs: list[Job] = []
        self._shared: dict[str, Any] = {}
        self._here: Residents | None = None
        self._end: str | None = None
        self._control = SharedNest(control_layout(num_groups))
        self._processes: list[ExternalProcess] = []
        try:
            for worker in range(self.num_workers):
                self._processes.append(self._launch(worker, start_method))
            self._moved = [time.monotonic()] * self.num_workers
            self._beats = [-1] * self.num_workers
            self._looked = 0.0
            # Its answer comes when the residents have been made.
            self._settled = self._send(CONTROL, self._control)
        except BaseException:
            self.close()
            raise

    def _launch(self, worker: int, start_method: str) -> ExternalProcess:
        make_resident, groups = self._make_resident, self.groups_of(worker)
        return ExternalProcess(
            lambda: Residents(make_resident, groups),
            start_method=start_method,
            preload=self._preload,
            name=f"{self._name}-{worker}",
        )

    def groups_of(self, worker: int) -> list[int]:
        """Return the groups that `worker` hosts."""
        return list(range(worker, self._num_groups, max(self.num_workers, 1)))

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [process.pid for process in self._processes]

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
        self._shared[name] = shared
        if self._here is not None:
            self._here.memory[name] = shared.tensors
        for worker, promise in enumerate(self._send(name, shared)):
            self._jobs_aside(worker, promise)

    def _send(self, name: str, shared: Any) -> list[Promise]:
        return [
            process.apply(_attach, name, shared.layout, fds=[shared.fd])
            for process in self._processes
        ]

    def _jobs_aside(self, worker: int, promise: Promise) -> None:
        job = Job(worker, "attach", ())
        job.promise = promise
        self._jobs.append(job)

    def submit(self, group: int, method: str, *args: Any) -> Job:
        """Have `method` of the object of `group` called, and return the job."""
        self._usable()
        job = Job(group, method, args)
        if self._processes:
            worker = group % self.num_workers
            if not any(self._worker_of(other) == worker for other in self._jobs):
                self._moved[worker] = time.monotonic()
            job.promise = self._processes[worker].call("do", group, method, *args)
        self._jobs.append(job)
        return job

    def _worker_of(self, job: Job) -> int:
        return job.group % self.num_workers

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
            if not self._processes:
                return self._do_here(self._jobs[0] if job is None else job)
            done = self._first_settled(job)
            if done is not None:
                return done
            left = _LOOK_AGAIN_SECONDS
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
            if left <= 0 and deadline is not None:
                return None
            self._listen(left)

    def run(self, group: int, method: str, *args: Any) -> Any:
        """Submit a job, wait for it alone, and return its result."""
        job = self.submit(group, method, *args)
        self.wait(job=job)
        return job.result

    def _first_settled(self, wanted: Job | None) -> Job | None:
        for job in list(self._jobs):
            assert job.promise is not None
            if not job.promise.settled:
                continue
            if job.method != "attach" and wanted is not None and job is not wanted:
                if not self._failed(job):
                    continue
            self._jobs.remove(job)
            worker = self._worker_of(job)
            self._moved[worker] = time.monotonic()
            try:
                job.result = job.promise()
            except BaseException as error:
                self._give_up(error, worker, job)
            if job.method != "attach":
                return job
        return None

    @staticmethod
    def _failed(job: Job) -> bool:
        assert job.promise is not None
        try:
            job.promise()
        except BaseException:
            return True
        return False

    def _listen(self, seconds: float) -> None:
        """Wait until some worker says something or ends, and now and then look after them."""
        poller = select.poll()
        speakers: dict[int, ExternalProcess] = {}
        for process in self._processes:
            for descriptor in (process.fileno(), process.sentinel):
                if descriptor is not None and descriptor >= 0:
                    speakers[descriptor] = process
                    poller.register(descriptor, select.POLLIN)
        for descriptor, _ in poller.poll(max(0.0, seconds) * 1000):
            speakers[descriptor].drain()
        now = time.monotonic()
        if now - self._looked >= min(_LOOK_AGAIN_SECONDS, self.timeout / 4):
            self._looked = now
            self._look_after(now)

    def _look_after(self, now: float) -> None:
        """Find out which workers have made progress, and end it where one has not for too long."""
        beats = self._control.tensors["beats"].tolist()
        for worker, process in enumerate(self._processes):
            process.drain()
            count = sum(beats[group] for group in self.groups_of(worker))
            if count != self._beats[worker]:
                self._beats[worker], self._moved[worker] = count, now
            jobs = [job for job in self._jobs if self._worker_of(job) == worker]
            if not jobs or any(job.promise is None or job.promise.settled for job in jobs):
                continue
            starting = not self._settled[worker].done()
            patience = max(self.timeout, _START_SECONDS) if starting else self.timeout
            if now - self._moved[worker] > patience:
                doing = "being made" if starting else f"doing {jobs[0].method!r}"
                error = WorkerTimeoutError(
                    f"worker {process!r} has made no progress for {patience:g} s while "
                    f"{doing}; it was killed. Its environment may wait for something that does "
                    "not come; if its steps just take that long, raise timeout="
                )
                self._give_up(error, worker, jobs[0])

    def _give_up(self, error: BaseException, worker: int, job: Job) -> None:
        process = self._processes[worker]
        if job.method == "attach" or not self._settled[worker].done():
            what = f"groups {self.groups_of(worker)}"
        else:
            what = f"group {job.group}"
        note = f"in worker {self._name}-{worker} (pid {process.pid}), {what}"
        self._end = f"it was closed when worker {self._name}-{worker} failed: {error}"
        self.close(timeout=1.0)
        error.add_note(note)
        raise error

    def _do_here(self, wanted: Job) -> Job:
        """Do `wanted` in this process, after what was asked of its group before."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for job in [job for job in self._jobs if job.group == wanted.group]:
                if not job.done:
                    job.result = self._hosted().do(job.group, job.method, *job.args)
                    job.done = True
                if job is wanted:
                    break
        except Exception as error:
            self._end = f"it was closed when group {wanted.group} failed: {error}"
            self.close()
            error.add_note(f"in this process, group {wanted.group}")
            raise
        finally:
            torch.set_num_threads(threads)
        self._jobs.remove(wanted)
        return wanted

    def _hosted(self) -> Residents:
        if self._here is None:
            memory = {name: shared.tensors for name, shared in self._shared.items()}
            groups = range(self._num_groups)
            self._here = Residents(self._make_resident, groups, memory, alone=False)
        return self._here

    def _usable(self) -> None:
        if self._end is not None:
            raise ClosedError(f"these {self._name}s cannot be used any more: {self._end}")

    def close(self, timeout: float = 3.0) -> None:
        """End all workers within little more than `timeout` seconds; calling it again is fine.

        They are asked to, and close what they host; who does not is killed.
        """
        if self._end is None:
            self._end = "it has been closed"
        self._jobs.clear()
        if self._here is not None:
            here, self._here = self._here, None
            here.close()
        processes, self._processes = self._processes, []
        self._control.tensors["stop"].fill_(1)
        deadline = time.monotonic() + timeout
        with suppress(Exception):
            farewells = [process.call("close") for process in processes]
            for farewell in farewells:
                with suppress(Exception):
                    farewell(max(0.0, deadline - time.monotonic()))
        for process in processes:
            process.close(0.2 if time.monotonic() < deadline else 0.0)
        self._control.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _attach(residents: Residents, name: str, layout: Any, *, fds: Sequence[int]) -> None:
    residents.attach(name, layout, fds=fds)
