"""`LanesPool`: the processes that step lanes. A process that dies or hangs is replaced."""

from __future__ import annotations

import contextlib
import logging
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import WorkerDiedError
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.pool import WorkerHandle, WorkerPool
from plangym_like.processes.remote_errors import is_remote, portable_result
from plangym_like.results import Future
from plangym_like.vector.hosted_lanes import HostedLanes, LaneChannel, Reply
from plangym_like.vector.lanes import LaneStats, Seeds, Which, seed_after_loss
from plangym_like.vector.tree import SharedArrays, take

logger = logging.getLogger("plangym_like")

# How long to poll for replies before sleeping, and how many of the next waits sleep at once if no
# reply came. All parts take about the same time, so polling is short.
# With three times as many busy processes as cores, sleeping at once cuts the time of CartPole's
# steps to a third.
_SPIN_SECONDS, _WAITS_WITHOUT_SPIN = 3e-4, 16
# The longest sleep (a reply or a death ends it), and the most time between two calls of `look` that
# counts towards `timeout`.
_SLEEP_SECONDS, _AWAY_SECONDS = 0.5, 1.0
# How many times a job is tried on a new process.
_ATTEMPTS = 3

# The dtypes that NumPy gives to Python's own numbers.
_PYTHONS = (np.dtype(float), np.dtype(int), np.dtype(bool))


class _LostWorkerError(Exception):
    """A process died, or hung."""


class Job(NamedTuple):
    """One call of `HostedLanes.run`."""

    method: str
    args: tuple[Any, ...] = ()


class JobResult(NamedTuple):
    """The value that a job returned, or the exception that it raised."""

    reply: Any = None
    error: Exception | None = None


class LanesWorker(WorkerHandle):
    """A process that hosts the lanes ``start:stop``, and what is needed to replace it.

    A worker has one task at a time: a call in its process.

    Attributes
    ----------
    task : Future or None
        The future of the worker's current task.
    start, stop : int
    rows : slice
        The same lanes as a slice.
    job : Job or None
        The job that was submitted and has not been collected yet.
    fresh : bool
        Whether the process has to be prepared before its next job, because it is new.
    sent_at : float
        When the task was sent.
    channel : LaneChannel or None
        Carries requests to the process through shared memory.
    rung : bool
        Whether the job was requested through `channel`.
    info_columns : dict of str to array, or None
        The infos of the lanes as arrays, if they all come from the last step.
    seeds : list of int or None
        The last seed that each lane was given.
    num_losses : int
        How often the lanes had to begin new episodes.
    """

    def __init__(self, process: ExternalProcess, index: int, start: int, stop: int) -> None:
        super().__init__(process, index)
        self.task: Future[Any] | None = None
        self.start, self.stop = start, stop
        self.rows = slice(start, stop)
        self.job: Job | None = None
        self.fresh = self.rung = False
        self.sent_at = 0.0
        self.channel: LaneChannel | None = None
        self.info_columns: dict[str, NDArray[Any]] | None = None
        self._infos: list[dict[str, Any]] = [{} for _ in range(self.num_lanes)]
        self.seeds: list[int | None] = [None] * self.num_lanes
        self.num_losses = 0

    @property
    def num_lanes(self) -> int:
        """The number of lanes that the process hosts."""
        return self.stop - self.start

    def own(self, lanes: Which) -> Sequence[int]:
        """Return which of `lanes` this process hosts, counted from 0; ``None`` means all."""
        if lanes is None:
            return range(self.num_lanes)
        return [int(lane) - self.start for lane in lanes if self.start <= lane < self.stop]

    def keep_seeds(self, lanes: Sequence[int], seeds: Seeds) -> None:
        """Record the seeds of a reset of `lanes`, counted from 0 in all processes together."""
        for lane, seed in zip(lanes, seeds or (), strict=False):
            if seed is not None and self.start <= lane < self.stop:
                self.seeds[lane - self.start] = seed

    @property
    def infos(self) -> list[dict[str, Any]]:
        """The info from the last reset or step of each lane."""
        columns, self.info_columns = self.info_columns, None
        if columns is not None:
            self._infos = [{} for _ in range(self.num_lanes)]
            for name, column in columns.items():
                plain = column.ndim == 1 and column.dtype in _PYTHONS
                values = column.tolist() if plain else column.copy()
                for info, value in zip(self._infos, values, strict=True):
                    info[name] = value
        return self._infos

    def take_infos(self, own: Sequence[int] | None, reply: Reply) -> None:
        """Replace the infos of the lanes `own` (``None``: all) with those in `reply`."""
        if reply.columns:
            self.info_columns = reply.columns
            return
        if own is None:
            own, self.info_columns = range(self.num_lanes), None
        infos = self.infos
        for lane in own:
            infos[lane] = reply.infos.get(lane) or {}

    def start_task(self, fn: Callable[..., Any], *args: Any, fds: Sequence[int] = ()) -> None:
        """Call ``fn(hosted, *args)`` in the process; see `ExternalProcess.apply`."""
        self.sent_at = time.monotonic()
        self.interrupted = True
        self.task = self.process.apply(fn, *args, fds=fds, patient=True)
        self.interrupted = False

    def take_task(self) -> Future[Any]:
        """Return the future of the task, which may still be pending; there is then no task."""
        task = self.task
        assert task is not None
        self.task = None
        return task

    @property
    def died(self) -> bool:
        """Whether the process ended before it replied to its task."""
        error = None if self.task is None or not self.task.settled else self.task.exception()
        return error is not None and not is_remote(error)

    def restart(self) -> None:
        """Replace the process with a new one, whose lanes have not been started."""
        self.interrupted = self.fresh = True
        self.rung, self.task = False, None
        super().restart()


class LanesPool(WorkerPool[LanesWorker]):
    """Runs jobs in processes, and replaces processes that die or hang.

    `submit` starts a job of one process, and `collect` returns its result. Jobs of several
    processes run at the same time, and may be collected in any order. If a job was never collected,
    because the caller was interrupted, the next `submit` for this process waits until it is over.
    Otherwise, its reply could be taken for that of the next job.

    Parameters
    ----------
    workers : sequence of LanesWorker
    timeout : float
        Seconds after which a process that does not reply is replaced.
    start_timeout : float
        Seconds in which a process has to make its environments.
    stats : LaneStats

    Attributes
    ----------
    memory : SharedArrays or None
        `LaneArrays` of all lanes; ``None`` before `share`.
    objects : tree of array ``(n,) object`` or None
        The last observations of all lanes, if they are not in `memory`.
    attributes : dict of str to list
        Attributes to set in the environments of new processes, with one value per lane.
    """

    _limit_name = "timeout"

    def __init__(
        self,
        workers: Sequence[LanesWorker],
        *,
        timeout: float,
        start_timeout: float,
        stats: LaneStats,
    ) -> None:
        super().__init__(workers, start_timeout=start_timeout, counts=stats)
        self.timeout = timeout
        self.memory: SharedArrays | None = None
        self.objects: Any = None
        self.attributes: dict[str, Sequence[Any]] = {}
        self._stats = stats
        # Whether a process has died since a job was last done.
        self._has_deaths = False
        self._waits_to_sleep = 0
        self._looked_at = time.monotonic()

    def share(self, memory: SharedArrays) -> None:
        """Attach the processes to `memory`, the `LaneArrays` of all lanes."""
        self.memory = memory
        for worker in self.workers:
            worker.fresh = True
            worker.channel = LaneChannel(take(memory.arrays, worker.rows))
            with contextlib.suppress(_LostWorkerError):  # the next job replaces the process
                self._attach(worker)
                worker.fresh = False

    # Jobs

    def submit(self, worker: LanesWorker, job: Job) -> None:
        """Start a job; do not wait for it, unless an earlier one has not been collected."""
        if worker.job is not None or worker.task is not None:
            self.drop(worker)
        worker.job = job
        if worker.fresh:
            return  # `collect` prepares the process first
        if worker.channel is not None and job.method == "step":
            worker.rung = worker.channel.ring(*job.args)
        if not worker.rung:
            self._send(worker, job)

    def _send(self, worker: LanesWorker, job: Job) -> None:
        worker.start_task(HostedLanes.perform, job.method, job.args)

    def collect(self, worker: LanesWorker) -> JobResult:
        """Wait until the worker's job is done, and return its result.

        Raises
        ------
        WorkerStartError, WorkerDiedError
            Processes died repeatedly.
        """
        channel, rung, worker.rung = worker.channel, worker.rung, False
        if rung and channel is not None:
            if self._look_for(channel.is_done) and (reply := channel.reply()):
                return self._take(worker, reply)
            worker.start_task(HostedLanes.collect)
        if worker.task is None or not self._wait_for_task(worker):
            return self._recover(worker)
        result = self._take(worker, None)
        if rung and channel is not None and result.error is None:
            channel.note(result.reply)
        return result

    def is_over(self, worker: LanesWorker) -> bool:
        """Return whether the worker's job is done or has timed out: `collect` would not wait."""
        task = worker.task
        return task is None or task.done() or time.monotonic() >= worker.sent_at + self.timeout

    def look(self, seconds: float = 0.0) -> None:
        """Wait up to `seconds` for a reply or death; replace processes that died without a job."""
        # Large replies arrive only while they are read, so other time does not count as waiting.
        away = time.monotonic() - self._looked_at - _AWAY_SECONDS
        if away > 0:
            for worker in self.workers:
                worker.sent_at += away
        self.wait(seconds)
        self.tend()
        self._looked_at = time.monotonic()

    def drop(self, worker: LanesWorker) -> None:
        """If a job was never collected, wait until it is over, and ignore its result."""
        if worker.job is None and worker.task is None:
            return
        worker.interrupted = worker.rung = False
        if worker.task is None and worker.ready:
            worker.start_task(HostedLanes.collect)
        if worker.task is not None:
            if self._wait_for_task(worker):
                worker.take_task()
            else:
                self.replace_dead(worker)
        worker.job = None

    def _wait_for_task(self, worker: LanesWorker) -> bool:
        """Wait for the worker's task; return False if the process has died or takes too long."""
        task = worker.task
        assert task is not None
        self._look_for(task.done)
        try:
            task.exception(max(0.0, worker.sent_at + self.timeout - time.monotonic()))
        except TimeoutError:
            self._stats.timeouts += 1
            logger.warning(
                "the process of lanes %d to %d (pid %d) has not replied within timeout=%g "
                "seconds; it is replaced",
                worker.start,
                worker.stop - 1,
                worker.process.pid,
                self.timeout,
            )
            return False
        return not worker.died

    def _look_for(self, is_done: Callable[[], bool]) -> bool:
        """Poll for a short while if ``is_done()`` is likely to become true; return its result."""
        if self._waits_to_sleep:
            self._waits_to_sleep -= 1
            return is_done()
        until = time.perf_counter() + _SPIN_SECONDS
        while not is_done():
            if time.perf_counter() > until:
                self._waits_to_sleep = _WAITS_WITHOUT_SPIN
                return False
        return True

    def _take(self, worker: LanesWorker, reply: Any) -> JobResult:
        """Return the result of a finished job.

        `reply` is that from the channel; ``None`` means that of the worker's task.
        """
        if self._has_deaths:
            self.policy.note_progress()
            self._has_deaths = False
        job = worker.job
        assert job is not None
        # Outside the `try`: an exception that a signal handler raises must not become the result.
        task = worker.take_task() if reply is None else None
        error, value = None, reply
        try:
            if task is not None:
                value = pickle.loads(portable_result(task))
        except Exception as failure:
            error = failure
        worker.job = None
        return JobResult(value, error)

    # Deaths

    def _tend_ready(self, worker: LanesWorker) -> None:
        # A process that dies in its task is replaced when the task is collected or dropped.
        if worker.task is None:
            super()._tend_ready(worker)

    def _recover(self, worker: LanesWorker) -> JobResult:
        """Replace a process that has died or hung, and repeat the job."""
        job = worker.job
        assert job is not None
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(_LostWorkerError):
                self._renew(worker)
                return self._repeat(worker, job)
        worker.job = None
        raise WorkerDiedError(
            f"the process of lanes {worker.start} to {worker.stop - 1} died {_ATTEMPTS} times in "
            f"{job.method!r}; its input seems to be the cause",
            worker.process.pid,
            worker.process.exitcode,
        )

    def _renew(self, worker: LanesWorker) -> None:
        """Replace the process if it has died or hung, and wait until the new one is ready."""
        if worker.task is not None or not worker.process.is_alive():
            pid, exitcode = worker.process.pid, worker.process.exitcode
            self.replace_dead(worker)
            self._has_deaths = True
            self.policy.note_death_without_progress(
                WorkerDiedError(f"process {pid} ended with exit status {exitcode}", pid, exitcode)
            )
        while not worker.ready:
            self.wait(_SLEEP_SECONDS)
            self.tend()

    def _repeat(self, worker: LanesWorker, job: Job) -> JobResult:
        """Begin new episodes in a new process, and repeat the job."""
        try:
            if self.memory is not None:  # otherwise no episode has begun
                self._attach(worker)
                if job.method != "start":
                    worker.num_losses += 1
                    seeds = [seed_after_loss(seed, worker.num_losses) for seed in worker.seeds]
                    objects = None if self.objects is None else take(self.objects, worker.rows)
                    self._ask(worker, HostedLanes.begin_again, seeds, objects)
        except _LostWorkerError:
            raise
        except Exception as error:
            worker.job = None
            return JobResult(error=error)
        worker.fresh = False
        self._send(worker, job)
        if not self._wait_for_task(worker):
            raise _LostWorkerError
        return self._take(worker, None)

    def _attach(self, worker: LanesWorker) -> None:
        attributes = {name: values[worker.rows] for name, values in self.attributes.items()}
        memory = self.memory
        assert memory is not None
        self._ask(worker, HostedLanes.attach, memory.layout, attributes, fds=[memory.fd])

    def _ask(
        self, worker: LanesWorker, fn: Callable[..., Any], *args: Any, fds: Sequence[int] = ()
    ) -> Any:
        worker.start_task(fn, *args, fds=fds)
        if not self._wait_for_task(worker):
            raise _LostWorkerError
        return portable_result(worker.take_task())
