"""`ProcessExecutor`: steps the rows of a batch in many processes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from plangym_like.batch.arrays import Inputs, steps_of
from plangym_like.batch.current_state import not_in_use
from plangym_like.batch.layout import Layout
from plangym_like.batch.row_stepper import RowStepper
from plangym_like.errors import (
    ClosedError,
    PoisonInputError,
    StepTimeoutError,
    WorkerDiedError,
    WorkerTimeoutError,
)
from plangym_like.execution.batch_run import BatchRun
from plangym_like.execution.costs import CostModel
from plangym_like.execution.dispatcher import Dispatcher, StepHere
from plangym_like.execution.executor import SerialExecutor, SubmitOptions
from plangym_like.execution.placement import REGIONS
from plangym_like.execution.row_pool import RowPool
from plangym_like.execution.shared_batch import SharedBatch
from plangym_like.execution.short_episode import ShortEpisode
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.remote_errors import is_remote, portable_result
from plangym_like.processes.shared_memory import BlockPool
from plangym_like.results import Future, Stats
from plangym_like.support.fork_safety import forget_after_fork

_CLOSE_SECONDS = 2.0
# How many times a call is tried before it is blamed for the deaths of its workers, and for hanging
# in them; and the longest time between two checks of its worker (replies and deaths end the wait).
_CALLS, _TIMEOUTS, _CALL_LOOK_SECONDS = 3, 2, 0.5

# After a batch was not worth sending, so many batches of the same size are not considered, because
# this would take a tenth of the time of a CartPole row (`benchmarks/never_slower.py`).
_SAME = 32


class ProcessExecutor:
    """Steps batches in this process and on workers that each host the same environment.

    Parameters
    ----------
    workers : sequence of ExternalProcess
        Each hosts a `PlanEnv`. Iterating over the executor yields them.
    layout : Layout
        The layout of batches.
    stepper : RowStepper or None
        Steps rows in this process too; ``None`` leaves all rows to the workers.
    step_timeout : float, optional
        Limit in seconds for one row; a worker that exceeds it is replaced.
    start_timeout : float, optional
        Seconds that a worker may take to make its environment before it is replaced.
    stats : Stats, optional
        The counters to update.
    expected : ShortEpisode, optional
        A short episode of the caller's environment. A worker that gives other results is not used;
        the next batch raises `DifferentWorkerError`.

    Attributes
    ----------
    isolated : bool
        Whether only other processes step rows.
    """

    def __init__(
        self,
        workers: Sequence[ExternalProcess],
        layout: Layout,
        stepper: RowStepper | None = None,
        *,
        step_timeout: float | None = None,
        start_timeout: float | None = None,
        stats: Stats | None = None,
        expected: ShortEpisode | None = None,
    ) -> None:
        self._processes = list(workers)
        self.layout = layout
        self._stepper = stepper
        self._costs = CostModel()
        self.pool = RowPool(self._processes, step_timeout, start_timeout, stats, expected)
        self.workers, self.tally = self.pool.workers, self.pool.tally
        self.isolated = stepper is None
        # Steps the batches that are not worth sending.
        self._here = None if stepper is None else SerialExecutor(stepper, self.tally)
        # The size of the last batch that was not, and how many of this size to step here.
        self._small: tuple[Any, ...] = ()
        self._same = 0
        self._pools = {region: BlockPool() for region in REGIONS}
        # Audits are small: in the batches' own pools, their blocks would displace larger ones.
        # Their results are copied, because some are kept for long.
        self._audit_pools = dict.fromkeys(REGIONS, BlockPool(most_lent=0, most_idle=len(REGIONS)))
        self.lock, self._in_use = threading.RLock(), threading.Lock()
        self._runs: list[BatchRun] = []
        self._closed = False
        self._closed_because = "this environment has been closed: make another one"
        forget_after_fork(self)

    def __len__(self) -> int:
        return len(self._processes)

    def __getitem__(self, index: int) -> ExternalProcess:
        return self._processes[index]

    @property
    def n_workers(self) -> int:
        """The number of processes that step rows, including this one if it steps any."""
        return len(self._processes) + (self._stepper is not None)

    @property
    def can_audit(self) -> bool:
        """Whether an audit can step a row in another process than the batch did.

        While the second of several isolated workers starts, it cannot. An audit would then find
        little, and what audits may take at first would be spent.
        """
        if not self.isolated or len(self.workers) < 2:
            return True
        return sum(worker.ready for worker in self.workers) >= 2

    def submit(self, inputs: Inputs, options: SubmitOptions) -> Any:
        """Step a batch of checked inputs; return its result, or a `Future` of it.

        Checksums are verified before rows are stepped. Workers begin with the first rows while
        later ones are still being verified.

        Several batches may be pending. Free workers take rows of the oldest batch first.
        """
        blocking = options.blocking
        if self._same and blocking and self._here is not None and not self._closed:
            if type(inputs.dt) is int and self._small == (inputs.count, inputs.horizon, inputs.dt):
                self._same -= 1
                return self._here.step(inputs, options)
        with self.lock:
            self.ensure_open()
            stays = self._stays_here(inputs, options)
            if not (blocking or inputs.verified):
                self.layout.verify(inputs)
                inputs.verified = True
            if stays:
                if blocking:
                    return self._run_here(inputs, options)
                return Future.of(partial(self._run_here, inputs, options))
            with self.alone():
                self._drop_unwanted()
                pools = self._audit_pools if options.audit else self._pools
                batch = SharedBatch(self.layout, pools, inputs, options)
                run = BatchRun(self, self._dispatcher(batch))
                # From here on, the batch is cancelled when its future is dropped, even if an
                # interrupt drops it.
                future = run.future(self)
                self._runs.append(run)
                run.attempt(partial(self._launch, run, blocking))
            if not run.done and not options.audit:
                self.tally.begin(inputs.count)
            del run, batch  # an error's traceback holds this frame
            if not blocking:
                return future
            try:
                return future.result()
            finally:
                del future

    def alone(self) -> threading.Lock:
        """Return the lock to hold while batches are advanced; see `not_in_use`."""
        return not_in_use(self._in_use)

    def _dispatcher(self, batch: SharedBatch) -> Dispatcher:
        self.tally.bytes_shared += batch.nbytes
        return Dispatcher(self.pool, self._costs, batch, self._step_here(batch))

    def _step_here(self, batch: SharedBatch) -> StepHere | None:
        if self._stepper is None:
            return None
        step = self._stepper.run_rows
        return partial(step, batch.rows, masked=batch.masked, audit=batch.audit)

    @property
    def _num_helpers(self) -> int:
        """The number of processes other than this one that step rows."""
        return len(self._processes)

    def _stays_here(self, inputs: Inputs, options: SubmitOptions) -> bool:
        """Return whether this process steps the batch alone, because it is not worth sending."""
        count, workers = inputs.count, self._num_helpers
        if not count or self.isolated:
            return not count
        if not workers:
            return True
        if not options.blocking:  # `submit` must return quickly
            return self._costs.cheap(count, steps_of(inputs))
        if count == 1:  # a single row is never worth sending
            return True
        return not self._costs.worth_sending(count, steps_of(inputs), workers=workers)

    def _launch(self, run: BatchRun, here: bool) -> bool:
        """Let free workers step rows of `run`; if `here` is true, this process steps rows too."""
        self.pool.abandon_all_but([each.dispatcher.owner for each in self._runs if not each.done])
        self.pool.prepare()
        run.dispatcher.launch(here=here)
        return False

    def _drop_unwanted(self) -> None:
        """Cancel batches whose futures have been dropped."""
        for run in tuple(self._runs):
            if run.dropped:
                run.drop(CancelledError("the future of this batch was dropped"))
        self.pool.release_unused()

    def drive(self, run: BatchRun, until: float = math.inf) -> bool:
        """Advance all batches until `run` is over or the deadline `until` has passed.

        Return whether `run` is over. If `until` has passed already, this process steps no rows.
        """
        here = until > time.monotonic()
        while True:
            self.ensure_open()  # another thread may close it meanwhile
            busy = here and run.dispatcher.step_own()
            self._drop_unwanted()
            self._tend()
            over = False
            for each in tuple(self._runs):
                if each is run:
                    over = run.dispatcher.advance(here=here)
                else:  # workers that finished `run` continue with the batches after it
                    each.attempt(partial(each.dispatcher.advance, here=False))
            if over:
                return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            if not busy and not (here and run.dispatcher.steps_next):
                self._wait(run.dispatcher, left)

    def _tend(self) -> None:
        """Replace dead or hung workers that are not stepping rows of a running batch."""
        self.pool.tend()

    def _wait(self, dispatcher: Dispatcher, seconds: float) -> None:
        """Wait at most `seconds` for a reply or another event."""
        self.pool.wait_for_rows(min(seconds, dispatcher.max_sleep()), dispatcher.done)

    def _run_here(self, inputs: Inputs, options: SubmitOptions) -> Any:
        if self._here is None:  # the batch is empty
            self.tally.begin(0)
            empty = self.layout.allocate(
                inputs, states=options.states, observations=options.observations
            )
            return self.layout.result(empty)
        before = self.tally.seconds_here
        result = self._here.step(inputs, options)
        seconds = self.tally.seconds_here - before  # 0 for audits, which are not recorded
        if inputs.count and seconds > 0:
            steps = steps_of(inputs)
            self._costs.note(inputs.count * steps, steps, seconds=seconds)
            if isinstance(inputs.dt, int) and self._num_helpers:
                self._small, self._same = (inputs.count, inputs.horizon, inputs.dt), _SAME
        return result

    @property
    def stats(self) -> Stats:
        """Counters of all batches so far."""
        if self.lock.acquire(blocking=False):  # otherwise another thread is executing a batch
            try:
                self.pool.count_rows()
            finally:
                self.lock.release()
        return self.tally

    def note_done(self, run: BatchRun) -> None:
        """Record that `run` is over."""
        if run in self._runs:
            self._runs.remove(run)
        self.pool.release_unused()
        for pool in (*self._pools.values(), *self._audit_pools.values()):
            pool.forget(lambda number: any(number in worker.known for worker in self.workers))

    def answer(self, index: int, future: Future[Any]) -> Any:
        """Return the result of `future`, a call to environment `index`.

        The worker may still be starting. If there is no result after `start_timeout` seconds, it is
        replaced, and `WorkerTimeoutError` is raised.
        """
        try:
            return portable_result(future, self.pool.start_timeout)
        except TimeoutError as error:
            if is_remote(error):
                raise
            pid = self._processes[index].pid
            self.pool.replace(self.workers[index])
            raise WorkerTimeoutError(
                f"environment {index} (pid {pid}) did not answer within start_timeout="
                f"{self.pool.start_timeout:g} seconds, so its worker was replaced; it hangs, or "
                "needs a larger start_timeout"
            ) from error

    def call(self, function: Callable[..., Any], *args: Any, is_step: bool = False) -> Any:
        """Call ``function(env, *args)`` in a worker after all pending batches; return its result.

        A worker that dies or hangs is replaced, and the call is tried again: twice after deaths,
        once after a timeout. `is_step` says that the call takes no longer than a row of a batch.

        Raises
        ------
        PoisonInputError
            Workers repeatedly died in the call.
        StepTimeoutError
            `step_timeout` is given, and the call repeatedly took longer: than `step_timeout` if it
            is a step, otherwise than `start_timeout`.
        """
        limit = self.pool.step_timeout
        name = "step_timeout"
        if limit is not None and not is_step:
            name, limit = "start_timeout", self.pool.start_timeout
        deaths = timeouts = 0
        with self.lock:
            for run in tuple(self._runs):
                run.settle(None)
            while True:
                try:
                    with self.alone():
                        return self._call_once(function, args, name, limit)
                except PoisonInputError as error:
                    deaths += 1
                    if is_remote(error) or deaths == _CALLS:
                        raise
                except StepTimeoutError as error:
                    timeouts += 1
                    if is_remote(error) or timeouts == _TIMEOUTS:
                        raise

    def _call_once(
        self, function: Callable[..., Any], args: Any, name: str, limit: float | None
    ) -> Any:
        self.pool.prepare()
        while not (free := [worker for worker in self.workers if worker.free]):
            self.ensure_open()  # another thread may close it meanwhile
            self.pool.wait(_CALL_LOOK_SECONDS)
            self.pool.tend()
        worker = free[0]
        worker.start_task(function, *args)
        task = worker.task
        assert task is not None
        until = math.inf if limit is None else time.monotonic() + limit
        try:
            while not task.done() and (left := until - time.monotonic()) > 0:
                self.ensure_open()
                self.pool.wait(min(_CALL_LOOK_SECONDS, left))
            if task.done() and not worker.died:
                return portable_result(worker.take_task())
        except BaseException:
            if worker.task is not None:
                worker.abandon()
            raise
        if not task.done():
            self.tally.timeouts += 1
            self.pool.replace(worker)
            raise StepTimeoutError(
                f"a call in a worker took longer than {name}={limit:g} seconds, and hung again in "
                f"a new worker; the environment hangs in this state, or needs a larger {name}",
                [0],
            )
        error = task.exception()
        assert isinstance(error, WorkerDiedError)
        self.pool.replace_dead(worker, idle=False)
        raise PoisonInputError(
            f"this call was tried {_CALLS} times, and killed its worker the last time (exit status "
            f"{error.exitcode}); its state or its arguments seem to be the cause",
            0,
            error.exitcode,
        ) from error

    # The end

    def close(self) -> None:
        """Close all workers; results already returned stay valid. May be called again.

        This takes at most about 2 seconds; workers that are still stepping by then are killed.
        """
        if self._closed:
            return
        self._closed = True
        self._runs.clear()
        self.pool.close(_CLOSE_SECONDS)
        for pool in (*self._pools.values(), *self._audit_pools.values()):
            pool.close()

    def ensure_open(self) -> None:
        """Raise `ClosedError` after `close`."""
        if self._closed:
            raise ClosedError(self._closed_because)

    def forget(self) -> None:
        """Mark the executor as closed; called after `os.fork`, in the child process."""
        self.lock, self._in_use = threading.RLock(), threading.Lock()
        self._closed = True
        self._closed_because = (
            "this environment belongs to the process that this one was forked from; make or clone "
            "another one here"
        )
