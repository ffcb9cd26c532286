"""`ProcessExecutor`: steps the rows of a batch in many processes.

`CostModel` decides whether a batch is worth sending to workers.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from plangym_like.batch.arrays import Inputs, SubmitOptions, steps_of
from plangym_like.batch.layout import Layout
from plangym_like.batch.row_stepper import RowStepper, not_in_use
from plangym_like.errors import ClosedError, WorkerError
from plangym_like.execution.batch_run import BatchRun
from plangym_like.execution.row_pool import RowPool
from plangym_like.execution.shared_batch import BlockPool, SharedBatch
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.results import Future, Stats
from plangym_like.states.rows import Row
from plangym_like.support import fork_safety

_CLOSE_SECONDS = 2.0
# How long to wait for a worker that compares two states.
_COMPARE_SECONDS = 60.0
# The longest sleep between checks of the workers (replies and deaths end it earlier), and the least
# number of checks within a step timeout.
_SLEEP_SECONDS, _CHECKS_PER_TIMEOUT = 0.5, 16
# How often the pipe of tokens is refilled if a batch has more tokens than it holds: before all
# workers of a large machine have taken those.
_REFILL_SECONDS = 0.02
# After a batch was not worth sending, so many batches of the same size are not considered, because
# this would take a tenth of the time of a CartPole row (`benchmarks/bench.py`).
_SAME = 256
# Seconds to send a batch, wake a worker and read its report: the overhead of batches of 4 to 16
# rows in `benchmarks/bench.py`.
MESSAGE_SECONDS = 5e-4
# Batches that take less time than this here may be measured again.
_CHEAP_SECONDS = 10e-3
# What each further worker adds: batches of CartPole with 2 to 16 workers on 16 cores.
_WAKE_SECONDS = 3e-5
# The shortest time per step is raised by this fraction for so many seconds of steps, because steps
# may become slower.
_FADE_SECONDS, _FADE = 12e-3, 0.05


@dataclass(slots=True)
class CostModel:
    """Decides whether a batch is worth sending to workers, from the time that its rows take.

    The model: in this process, the time of a batch is proportional to the number of its single
    steps. If the batch is sent, that time is divided by the number of processes, and the time for
    messages is added. Rows of 1 step, of 2 or 3, of 4 to 7, and so on are measured separately,
    because each row also has a fixed cost.

    Parameters
    ----------
    message_seconds : float
        The cost of sending a batch, in addition to its rows.

    Examples
    --------
    >>> costs = CostModel()
    >>> costs.worth_sending(256, 1, workers=1)
    True
    >>> costs.note(10, 1, seconds=1e-3)
    >>> costs.worth_sending(256, 1, workers=1), costs.worth_sending(2, 1, workers=1)
    (True, False)
    """

    message_seconds: float = MESSAGE_SECONDS
    # The shortest time per step, in seconds, by the number of bits of the number of steps.
    _seconds: dict[int, float] = field(default_factory=dict, init=False)
    # Whether to measure the next batch here; how many batches of a few milliseconds were sent.
    _measures: bool = field(default=False, init=False)
    _num_cheap: int = field(default=0, init=False)

    def seconds_per_row(self, steps: float) -> float:
        """Return the seconds that a row with `steps` steps takes; 0 if this is not known."""
        return self._seconds.get(int(steps).bit_length(), 0.0) * steps

    def worth_sending(self, count: int, steps: float, *, workers: int) -> bool:
        """Return whether to send `count` rows, of `steps` steps on average, to `workers` workers.

        If no time is known yet, the result is true: the rows are then timed while the batch is
        stepped. After some batches it is false, so that rows are timed here (see `note_sent`).
        """
        if self._measures:
            self._measures = False
            return False
        here = count * self.seconds_per_row(steps)
        cost = self.message_seconds + workers * _WAKE_SECONDS
        return not here or cost + here / (workers + 1) < here

    def cheap(self, count: int, steps: float) -> bool:
        """Return whether `count` rows are known to take less time here than a message takes."""
        return 0.0 < count * self.seconds_per_row(steps) < self.message_seconds

    def note_sent(self, count: int, steps: float, *, seconds: float) -> None:
        """Record how long a batch took that was sent.

        Workers may take all rows of a cheap batch, and step them in ranges so short that rows seem
        expensive. So the batch after one that was slower than expected here is not sent, and those
        after 4, 16, 64 ... cheap ones.
        """
        here = count * self.seconds_per_row(steps)
        if 0.0 < min(here, seconds) < _CHEAP_SECONDS:
            self._num_cheap += 1
            is_turn = self._num_cheap > 1 and math.log(self._num_cheap, 4).is_integer()
            self._measures = is_turn or here < seconds

    def note(self, taken: float, steps: float, *, seconds: float) -> None:
        """Record how long a process took for `taken` single steps, of rows with `steps` steps.

        The shortest time counts, because other programs may disturb a process. It is first raised
        a little, so that older times count less.
        """
        key, found = int(steps).bit_length(), seconds / taken
        best = self._seconds.get(key, found)
        self._seconds[key] = min(found, best * (1.0 + _FADE * seconds / _FADE_SECONDS))


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

    Attributes
    ----------
    isolated : bool
        Whether only other processes step rows.
    pool : RowPool
        The workers, with what they are doing.
    costs : CostModel
        The times measured in earlier batches.
    stats : Stats
        Counters of all batches so far.
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
    ) -> None:
        self._processes = list(workers)
        self.layout = layout
        self._stepper = stepper
        self.costs = CostModel()
        timeouts = step_timeout, start_timeout
        self.pool = RowPool(self._processes, layout.signature, *timeouts, stats)
        self.workers, self.stats = self.pool.workers, self.pool.stats
        self.isolated = stepper is None
        self._most_sleep = _SLEEP_SECONDS
        if step_timeout is not None:
            self._most_sleep = min(_SLEEP_SECONDS, step_timeout / _CHECKS_PER_TIMEOUT)
        if stepper is not None:  # it steps the batches that are not worth sending
            stepper.stats = self.stats
        # The size of the last batch that was stepped here, and in which copy of this process; how
        # many more of this size to step here without asking the cost model.
        self._small: tuple[Any, ...] = ()
        self._same = 0
        self._blocks = BlockPool()
        self.lock, self._in_use = fork_safety.new_lock(), threading.Lock()
        self._runs: list[BatchRun] = []
        self._closed, self._owner_pid = False, os.getpid()

    def __len__(self) -> int:
        return len(self._processes)

    def __getitem__(self, index: int) -> ExternalProcess:
        return self._processes[index]

    def submit(self, inputs: Inputs, options: SubmitOptions) -> Any:
        """Step a batch of checked inputs; return its result, or a `Future` of it.

        If the options say `blocking`, the process that steps a row verifies the checksum of its
        state before; otherwise this call verifies all states.

        Several batches may be pending. Free workers take rows of the oldest batch first.
        """
        blocking = options.blocking
        if self._same > 0 and blocking and self._stepper is not None:
            # `close` sets the counter to 0.
            like = (inputs.count, inputs.horizon, inputs.dt, fork_safety.num_forks)
            if type(inputs.dt) is int and self._small == like:
                self._same -= 1
                return self._stepper.submit(inputs, options)
        with self.lock:
            self.ensure_open()
            stays = self._stays_here(inputs, options)
            if blocking and not stays:
                threads = self._num_threads(inputs)
                if threads > 1:
                    stays, inputs = True, replace(inputs, threads=threads)
            if not blocking:
                self.layout.verify(inputs)
            if stays:
                if blocking:
                    return self._run_here(inputs, options)
                return Future.of(partial(self._run_here, inputs, options))
            with not_in_use(self._in_use):
                self._drop_unwanted()
                run = self._run_of(SharedBatch(self.layout, self._blocks, inputs, options))
                # From here on, the batch is cancelled when its future is dropped.
                future = None if blocking else run.future(self)
                self._runs.append(run)
                over = run.attempt(partial(run.launch, here=blocking))
                if future is not None:
                    return future
                if not over:
                    run.attempt(partial(self.drive, run))
                self.costs.note_sent(inputs.count, steps_of(inputs), seconds=run.seconds())
        error = run.error
        if error is None:
            return run.result
        del run  # an error's traceback refers to this frame, which must not refer to the error
        try:
            raise error
        finally:
            del error

    def alone(self) -> threading.Lock:
        """Return the lock to hold while batches are advanced; see `not_in_use`."""
        return not_in_use(self._in_use)

    def _run_of(self, batch: SharedBatch) -> BatchRun:
        return BatchRun(self, batch, self._stepper)

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
            return self.costs.cheap(count, steps_of(inputs))
        if count == 1:  # a single row is never worth sending
            return True
        return not self.costs.worth_sending(count, steps_of(inputs), workers=workers)

    def _num_threads(self, inputs: Inputs) -> int:
        """Return how many threads of this process step the batch; 1 if workers step it."""
        if self._stepper is None or self._num_helpers > len(self.workers):  # on other machines too
            return 1
        threads = min(len(self.workers) + 1, len(os.sched_getaffinity(0)))
        return threads if threads > 1 and self._stepper.takes_threads(inputs) else 1

    def _drop_unwanted(self) -> None:
        """Cancel batches whose futures have been dropped."""
        for run in tuple(self._runs):
            if run.dropped:
                run.drop(CancelledError("the future of this batch was dropped"))

    def drive(self, run: BatchRun, until: float = math.inf) -> bool:
        """Advance all batches until `run` is over or the deadline `until` has passed.

        Return whether `run` is over. If `until` has passed already, this process steps no rows.
        """
        here, seconds = until > time.monotonic(), 0.0
        while True:
            self.ensure_open()  # another thread may close it meanwhile
            if here and run.step_own():
                seconds = 0.0
            self._wait(run, seconds)
            self._drop_unwanted()
            over = False
            for each in tuple(self._runs):
                if each is run:
                    over = run.advance()
                else:  # workers that finished `run` continue with the batches after it
                    each.attempt(each.advance)
            if over:
                return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            seconds = 0.0 if here and run.steps_next else min(left, self._most_sleep)
            if any(each.has_more for each in self._runs):
                seconds = min(seconds, _REFILL_SECONDS)

    def _wait(self, run: BatchRun, seconds: float) -> None:
        """Wait at most `seconds` for an event, and replace workers that died or do not stop."""
        stop = run.is_done if run.ends_soon else None
        self.stats.seconds_waiting += self.pool.wait(seconds, stop)
        self.pool.tend()

    def _run_here(self, inputs: Inputs, options: SubmitOptions) -> Any:
        if self._stepper is None:  # the batch is empty
            empty = self.layout.allocate(
                inputs, states=options.states, observations=options.observations
            )
            return self.layout.result(empty)
        before = self.stats.seconds_here
        result = self._stepper.submit(inputs, options._replace(blocking=True))
        seconds = self.stats.seconds_here - before  # 0 for audits, which are not recorded
        if inputs.count and seconds > 0:
            steps, threads = steps_of(inputs), inputs.threads
            self.costs.note(inputs.count * steps, steps, seconds=threads * seconds)
            if threads > 1:
                return result
            stays = not self.costs.worth_sending(inputs.count, steps, workers=self._num_helpers)
            if isinstance(inputs.dt, int) and self._num_helpers and stays:
                self._small = (inputs.count, inputs.horizon, inputs.dt, fork_safety.num_forks)
                self._same = _SAME
        return result

    def note_done(self, run: BatchRun) -> None:
        """Record that `run` is over."""
        if run in self._runs:
            self._runs.remove(run)
        if not self._runs:
            self.pool.outcomes.clear()

    def state_difference(self, one: Row, other: Row) -> tuple[str, str] | None:
        """Return `Simulator.state_difference` of two payloads, which a worker finds.

        If batches are isolated, this process loads no row of a batch.
        """
        for worker in self.workers:
            if worker.ready:
                with contextlib.suppress(WorkerError, OSError):
                    future: Future[Any] = worker.process.apply(_compare, one, other)
                    found: tuple[str, str] | None = future.result(_COMPARE_SECONDS)
                    return found
        return None if np.array_equal(one, other) else ("bytes", "not the same both times")

    # The end

    def close(self) -> None:
        """Close all workers; results already returned stay valid. May be called again.

        This takes at most about 2 seconds; workers that are still stepping by then are killed.
        """
        if self._closed or not self.is_original():
            return
        self._closed, self._same = True, 0
        self._runs.clear()
        self.pool.close(_CLOSE_SECONDS)
        self._blocks.close()

    def is_original(self) -> bool:
        """Return whether this is the process that made the executor, not a forked copy of it."""
        return os.getpid() == self._owner_pid

    def ensure_open(self) -> None:
        """Raise `ClosedError` after `close`, and in forked copies of the process."""
        if self._closed:
            raise ClosedError("this environment has been closed: make another one")
        if not self.is_original():
            raise ClosedError(
                "this environment belongs to the process that this one was forked from; make or "
                "clone another one here"
            )


def _compare(env: Any, one: Row, other: Row) -> tuple[str, str] | None:
    found: tuple[str, str] | None = env.row_stepper.state_difference(one, other)
    return found
