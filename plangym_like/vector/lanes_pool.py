"""`LanesPool`: the processes that step lanes. A process that dies or hangs is replaced."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from plangym_like.errors import WorkerDiedError
from plangym_like.processes.pool import WorkerPool
from plangym_like.processes.remote_errors import portable_result
from plangym_like.processes.wire import loads
from plangym_like.vector.hosted_lanes import HostedLanes
from plangym_like.vector.lane_memory import LaneMemory
from plangym_like.vector.lane_stats import LaneStats
from plangym_like.vector.lanes import seed_after_loss
from plangym_like.vector.lanes_worker import Job, KeptCall, LanesWorker, Loss, Outcome
from plangym_like.vector.tree import tree_map

logger = logging.getLogger("plangym_like")

# How long to poll for replies before sleeping, and how many of the next waits sleep at once if no
# reply came. All parts take about the same time, so polling is short (`benchmarks/constants.py`).
# With three times as many busy processes as cores, sleeping at once cuts the time of CartPole's
# steps to a third.
_SPIN_SECONDS, _WAITS_WITHOUT_SPIN = 3e-4, 16
# The longest sleep (a reply or a death ends it), and the most time between two calls of `look` that
# counts towards `timeout`.
_SLEEP_SECONDS, _AWAY_SECONDS = 0.5, 1.0
# How many times a job is tried on a new process. In the last try, lanes begin new episodes even if
# there are saved states, because continuing from these states may kill the processes.
_ATTEMPTS = 3

# How long a process that uses the processor may take to make its environments: it may be importing
# modules on a busy machine. One that does nothing is late after `start_timeout` seconds.
_BUSY_START_SECONDS = 60.0


class _LostWorkerError(Exception):
    """A process died, or hung."""


class LanesPool(WorkerPool[LanesWorker]):
    """Runs jobs in all processes at once, and replaces processes that die or hang.

    After an interrupt, the next call first waits until every process has done its pending work.
    Otherwise, a reply to the interrupted call could be taken for a reply to the next call.

    Parameters
    ----------
    workers : sequence of LanesWorker
    timeout : float
        Seconds after which a process that does not reply is replaced.
    start_timeout : float
        Seconds for which a process that makes its environments may be idle. If it is not idle, it
        may take a minute.
    checkpoint_every : int, optional
        The number of jobs after which states are saved, so that lanes can be restored.
    stats : LaneStats

    Attributes
    ----------
    memory : LaneMemory or None
        See `share`.
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
        checkpoint_every: int | None,
        stats: LaneStats,
    ) -> None:
        super().__init__(workers, start_timeout=start_timeout, counts=stats)
        self.timeout = timeout
        self.memory: LaneMemory | None = None
        self.attributes: dict[str, Sequence[Any]] = {}
        self._checkpoint_every = checkpoint_every
        self._stats = stats
        self._running = False
        self._waits_to_sleep = 0
        self._looked_at = time.monotonic()

    def _is_late(self, worker: LanesWorker, limit: float) -> bool:
        now = time.monotonic()
        if now - worker.started_at > max(limit, _BUSY_START_SECONDS):
            return True
        return now - max(worker.started_at, worker.last_ran_at()) > limit

    def share(self, memory: LaneMemory) -> None:
        """Attach the processes to `memory`; if `checkpoint_every` is given, save states."""
        self.settle()
        self._running = True
        for worker in self.workers:
            worker.fresh = True
        self.memory = memory
        for worker in self.workers:
            part = memory.arrays.part(worker.start, worker.stop)
            worker.bell = part.bell() if memory.shares_observations else None
            worker.columns = part.columns()
            with contextlib.suppress(_LostWorkerError):  # the next job replaces the process
                self._attach(worker, save=self._checkpoint_every is not None)
                worker.fresh = False
        self._running = False

    def run(
        self,
        jobs: Sequence[tuple[LanesWorker, Job]],
        here: Callable[[], None],
        *,
        publish: bool = False,
    ) -> tuple[list[Outcome], Exception | None]:
        """Run `jobs` in their processes, and meanwhile call `here` in this process.

        Parameters
        ----------
        jobs : sequence of (LanesWorker, Job)
            In the order of the lanes.
        here : callable
        publish : bool
            See `HostedLanes.perform`.

        Returns
        -------
        list of Outcome
            One for each job.
        Exception or None
            The exception that `here` raised.

        Raises
        ------
        WorkerStartError, WorkerDiedError
            Processes died repeatedly.
        """
        self.settle()
        self._running = True
        for worker, job in jobs:
            usable = worker.task is None and (not worker.fresh or self.memory is None)
            if usable and not self._ring(worker, job, publish):
                self._send(worker, job, publish)
        failure = None
        try:
            here()
        except Exception as error:
            failure = error
        outcomes = [self._outcome(worker, job, publish) for worker, job in jobs]
        self._running = False
        return outcomes, failure

    def begin(self, worker: LanesWorker, job: Job) -> None:
        """Start a job without waiting for it; call `end` for it before the next `run`.

        Jobs of other processes may run at the same time, and may be ended in any order.
        """
        self._running = True
        if worker.is_unsettled:
            self._settle([worker])
        if worker.task is None and not worker.fresh:
            self._send(worker, job, publish=False)

    def is_over(self, worker: LanesWorker) -> bool:
        """Return whether the worker's job is done or has timed out, so that `end` need not wait."""
        task = worker.task
        return task is None or task.done() or time.monotonic() >= worker.sent_at + self.timeout

    def end(self, worker: LanesWorker, job: Job) -> Outcome:
        """Return the outcome of a job that `begin` has started; see `run`."""
        outcome = self._outcome(worker, job, publish=False)
        self._running = any(each.is_unsettled for each in self.workers)
        return outcome

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

    def settle(self) -> None:
        """After an interrupt, wait until all processes have done their pending work."""
        if self._running:
            self._settle(self.workers)
            self._running = False

    def _settle(self, workers: Sequence[LanesWorker]) -> None:
        for worker in workers:
            worker.interrupted = worker.rung = False
            if worker.task is None and worker.ready:
                worker.start_task(HostedLanes.pass_by)
        for worker in workers:
            if worker.task is not None:
                if self._wait_for_task(worker):
                    worker.take_task()
                else:
                    self.replace_dead(worker)
            if worker.busy_with_job:
                # It is unknown whether its last job was done.
                worker.log, worker.busy_with_job = None, False

    def _ring(self, worker: LanesWorker, job: Job, publish: bool) -> bool:
        """Request a job through shared memory; return False if that is impossible."""
        if worker.bell is None or not job.is_shared or self._is_saved_after(worker, job):
            return False
        worker.saving, worker.busy_with_job = False, True
        worker.rung = worker.bell.ring(job.args[0], 1 - worker.slot, publish)
        return worker.rung

    def _send(self, worker: LanesWorker, job: Job, publish: bool) -> None:
        worker.saving = self._is_saved_after(worker, job)
        worker.busy_with_job = not job.reads
        save = 1 - worker.saved if worker.saving else -1
        worker.start_task(HostedLanes.perform, job.method, job.args, 1 - worker.slot, publish, save)

    def _is_saved_after(self, worker: LanesWorker, job: Job) -> bool:
        every = self._checkpoint_every
        if every is None or job.reads or self.memory is None:
            return False
        return job.saves or worker.log is None or len(worker.log) + 1 >= every

    def _outcome(self, worker: LanesWorker, job: Job, publish: bool) -> Outcome:
        if worker.rung and worker.bell is not None:
            worker.rung = False
            if self._look_for(worker.bell.is_done) and (reply := worker.bell.reply()):
                return self._take(worker, job, reply)
            worker.start_task(HostedLanes.collect)
        if worker.task is not None and self._wait_for_task(worker):
            return self._take(worker, job)
        return self._recover(worker, job, publish)

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

    def _take(self, worker: LanesWorker, job: Job, reply: Any = None) -> Outcome:
        """Return the outcome of a finished job; record what is needed to restore the lanes."""
        self.policy.note_progress()
        # Outside the `try`: an exception that a signal handler raises must not become the outcome.
        task = worker.take_task() if reply is None else None
        try:
            reply = worker.unpickled(reply if task is None else portable_result(task))
        except Exception as error:
            if job.saves:
                worker.log = None
            elif worker.log is not None and not job.reads:
                # Repeating the job raises the same error, and leaves the lanes in the same states.
                worker.log.append(job.kept(raised=True))
            worker.busy_with_job = False
            return Outcome(error=error)
        if job.starts:
            worker.fresh = False
        if job.writes:
            worker.slot = 1 - worker.slot
        if worker.saving:
            worker.saved, worker.log = 1 - worker.saved, []
        elif worker.log is not None and not job.reads:
            worker.log.append(job.kept(raised=False))
        worker.busy_with_job = False
        return Outcome(reply)

    # Deaths

    def _recover(self, worker: LanesWorker, job: Job, publish: bool) -> Outcome:
        """Replace a process that has died or hung, restore its lanes, and repeat the job."""
        worker.busy_with_job = False
        last = None if self.memory is None else self._observations(worker, worker.slot)
        for attempt in range(_ATTEMPTS):
            if attempt == _ATTEMPTS - 1:
                worker.log = None
            with contextlib.suppress(_LostWorkerError):
                self._renew(worker)
                return self._repeat(worker, job, publish, last)
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
            self.policy.note_death_without_progress(
                WorkerDiedError(f"process {pid} ended with exit status {exitcode}", pid, exitcode)
            )
        while not worker.ready:
            self.wait(_SLEEP_SECONDS)
            self.tend()

    def _repeat(self, worker: LanesWorker, job: Job, publish: bool, last: Any) -> Outcome:
        """Restore the lanes in a new process, or begin new episodes; repeat the job if possible."""
        loss = None
        try:
            self._attach(worker, save=False)
            if not job.starts and worker.log is not None:
                self._restore(worker, worker.log)
            elif not job.starts and self.memory is not None:
                loss = self._begin_again(worker, last)
        except _LostWorkerError:
            raise
        except Exception as error:
            return Outcome(error=error)
        worker.fresh = job.starts
        if loss is None or job.repeats:
            self._send(worker, job, publish)
            if not self._wait_for_task(worker):
                raise _LostWorkerError
            return self._take(worker, job)._replace(loss=loss)
        if job.reads or job.saves:
            died = WorkerDiedError(
                f"the process of lanes {worker.start} to {worker.stop - 1} died; their episodes "
                "end with their next step"
            )
            return Outcome(error=died, loss=loss)
        return Outcome(loss=loss)

    def _restore(self, worker: LanesWorker, log: list[KeptCall]) -> None:
        try:
            slots = 1 - worker.slot, worker.saved
            self._ask(worker, HostedLanes.restore, *slots, log, worker.seeds)
        except _LostWorkerError:
            raise
        except Exception as error:
            logger.warning(
                "lanes %d to %d cannot be restored: %r", worker.start, worker.stop - 1, error
            )
            worker.log = None
            raise _LostWorkerError from error
        self._stats.lanes_restored += worker.num_lanes

    def _begin_again(self, worker: LanesWorker, last: Any) -> Loss:
        worker.num_losses += 1
        seeds = [seed_after_loss(seed, worker.num_losses) for seed in worker.seeds]
        assert self.memory is not None
        slot = 1 - worker.slot
        job = "start", (seeds, None), slot, False, -1
        _, obs, infos = loads(self._ask(worker, HostedLanes.perform, *job))
        if obs is None:
            obs = self._observations(worker, slot)
        worker.slot = slot
        worker.loss = Loss(last, obs, infos)
        return worker.loss

    def _observations(self, worker: LanesWorker, slot: int) -> Any:
        """Return a copy of the observations of the worker's lanes in slot `slot`."""
        assert self.memory is not None
        return tree_map(lambda rows: rows[worker.rows].copy(), self.memory.arrays.recent[slot])

    def _attach(self, worker: LanesWorker, *, save: bool) -> None:
        memory = self.memory
        form, fds = (None, []) if memory is None else (memory.form, [memory.fd])
        attributes = {name: values[worker.rows] for name, values in self.attributes.items()}
        slot = 1 - worker.saved if save else -1
        self._ask(worker, HostedLanes.attach, form, attributes, slot, fds=fds)
        if save:
            worker.saved, worker.log = slot, []

    def _ask(
        self, worker: LanesWorker, fn: Callable[..., Any], *args: Any, fds: Sequence[int] = ()
    ) -> Any:
        worker.start_task(fn, *args, fds=fds)
        if not self._wait_for_task(worker):
            raise _LostWorkerError
        return portable_result(worker.take_task())
