"""`ProcessOptions`: how the worker processes of an environment are made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from plangym_like.batch.row_stepper import RowStepper
from plangym_like.errors import WorkerDiedError, WorkerError, WorkerTimeoutError
from plangym_like.execution.known_ids import KnownIds, know, known_ids
from plangym_like.execution.process_executor import ProcessExecutor
from plangym_like.execution.short_episode import ShortEpisode, play_rows
from plangym_like.processes import start_methods
from plangym_like.processes.child import check_can_start
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.pool import may_be_sent
from plangym_like.processes.remote_errors import is_remote, portable_result
from plangym_like.snapshots.trial import (
    KnownTrials,
    TrialOutcome,
    TrialsElsewhere,
    trials_shared,
)
from plangym_like.support.arguments import as_count, check_seconds, name_of

Executor = TypeVar("Executor", bound=ProcessExecutor)

# If only `step_timeout` is given, a worker may take this long to make its environment, or ten times
# as long as this process took, whichever is longer.
START_SECONDS = 60.0
# How long a worker polls for the next batch before it sleeps; most searches submit their next batch
# within this time (`benchmarks/never_slower.py`).
_LINGER_SECONDS = 5e-3
# How many workers try out the environment, one after the other, if each of them is killed.
_TRIALS = 3
# The outcomes of the trials of the environment that this process hosts.
_outcomes: list[TrialOutcome] = []


class ProcessOptions:
    """Makes a `ProcessExecutor` whose workers host ``env_class(name, **env_kwargs)``.

    Parameters
    ----------
    env_class, name, env_kwargs
        The environment.
    n_workers : int
        The number of processes that step rows: this one and ``n_workers - 1`` workers or, if
        batches are isolated, `n_workers` workers.
    isolate, step_timeout, start_timeout, start_method
        See `ParallelEnv`.

    Raises
    ------
    InputError
        `n_workers` or a timeout is invalid.
    WorkerStartError
        This process can start no workers (see `check_can_start`).
    """

    def __init__(
        self,
        env_class: Callable[..., Any],
        name: Any,
        env_kwargs: dict[str, Any],
        *,
        n_workers: int,
        isolate: bool = False,
        step_timeout: float | None = None,
        start_timeout: float | None = None,
        start_method: str = "forkserver",
    ) -> None:
        self.n_workers = as_count("n_workers", n_workers)
        check_timeouts(step_timeout, start_timeout)
        self.isolated = isolate or step_timeout is not None
        check_can_start()
        self._step_timeout, self._start_timeout = step_timeout, start_timeout
        self._start_method = start_method
        self._name = name_of(name)
        self._construct = partial(
            make_hosted,
            known_ids(name),
            partial(env_class, name, **headless(env_kwargs)),
        )
        self._audit = env_kwargs.get("audit", "raise")
        # The worker that was started early, to run the trial of the environment.
        self._early: list[ExternalProcess] = []
        self._preload = ["plangym_like.execution.row_server"]
        module = getattr(env_class, "__module__", None)
        if module is not None and module.startswith("plangym_like."):
            self._preload.append(module)
        self._begun = 0.0

    def make(self, make_stepper: Callable[[], RowStepper]) -> ProcessExecutor:
        """Return the executor; its workers start and make their environments in the background."""
        return self.start(ProcessExecutor, self.tried(make_stepper), self.n_workers)

    def tried(self, make_stepper: Callable[[], RowStepper]) -> RowStepper:
        """Make the simulator of this process; if batches are isolated, a worker runs the trial.

        Meanwhile, the fork server starts and imports modules.

        Raises
        ------
        WorkerDiedError, WorkerTimeoutError
            The trial took too long, or ended the worker.
        Exception
            An error that the worker raised, such as a `SnapshotError`.
        """
        if self._start_method == "forkserver":
            start_methods.warm_up(self._preload)
        self._begun = time.monotonic()
        if not self.isolated:
            return make_stepper()
        try:
            with trials_shared(TrialsElsewhere(self._run_trials)):
                return make_stepper()
        except BaseException:
            self._drop_early()
            raise

    def _run_trials(self) -> list[TrialOutcome]:
        limit, tries = self._start_timeout, 0
        if limit is None and self._step_timeout is not None:
            limit = max(START_SECONDS, 100 * self._step_timeout)
        while True:
            tries += 1
            worker = self._launch(0)
            self._early.append(worker)
            try:
                return portable_result(worker.apply(outcomes_of_trials), limit)  # type: ignore[no-any-return]
            except (TimeoutError, WorkerDiedError) as error:
                if is_remote(error):
                    raise
                killed = isinstance(error, WorkerDiedError) and may_be_sent(error.exitcode)
                if tries == _TRIALS or not killed:
                    raise self._failed_trial(worker, error, limit) from error
                self._drop_early()

    def _failed_trial(
        self, worker: ExternalProcess, error: Exception, limit: float | None
    ) -> WorkerError:
        begin = (
            f"{self._name} could not be made: before it is used, a worker (pid {worker.pid}) tries "
            "it out with some resets and random actions"
        )
        if not isinstance(error, WorkerDiedError):
            return WorkerTimeoutError(
                f"{begin}, and this was not done after start_timeout={limit:g} seconds; its "
                "constructor, a reset or an action hangs, or needs a larger start_timeout"
            )
        return WorkerDiedError(
            f"{begin}, and one of them ended the worker (exit status {error.exitcode})",
            error.pid,
            error.exitcode,
        )

    def _drop_early(self) -> None:
        while self._early:
            self._early.pop().close(0.0)

    def expected_of(self, stepper: RowStepper) -> ShortEpisode | None:
        """Return a short episode of the caller's environment, which workers have to repeat.

        The caller plays it even if batches are isolated. If the environment has code from outside
        Gymnasium and this package, a worker has tried the same actions before. Return ``None`` if
        workers are not compared: the environment is approximate, or is not audited with
        ``audit="raise"``.
        """
        simulator, layout = stepper.simulator, stepper.layout
        shown = getattr(simulator, "render_mode", None) == "human"
        if self._audit != "raise" or simulator.exactness != "exact" or shown:
            return None
        if not simulator.renews:
            return None
        simulator.renew()
        return play_rows(simulator, layout)

    def start(
        self,
        make_executor: Callable[..., Executor],
        stepper: RowStepper,
        n_workers: int,
        expected: ShortEpisode | None = None,
    ) -> Executor:
        """Make workers, and return ``make_executor(workers, layout, stepper, **options)``.

        `n_workers` is the number of processes that step rows on this machine; 0 makes no workers.
        Workers have to repeat the short episode `expected`, by default that of `expected_of`.
        """
        start_timeout = self._start_timeout
        if start_timeout is None and self._step_timeout is not None:
            start_timeout = max(START_SECONDS, 10 * (time.monotonic() - self._begun))
        count = n_workers if self.isolated else max(0, n_workers - 1)
        workers = self._early[:count]
        del self._early[:count]
        self._drop_early()
        try:
            while len(workers) < count:
                workers.append(self._launch(len(workers)))
            if workers and expected is None:
                expected = self.expected_of(stepper)
            return make_executor(
                workers,
                stepper.layout,
                None if self.isolated else stepper,
                step_timeout=self._step_timeout,
                start_timeout=start_timeout,
                expected=expected,
            )
        except BaseException:
            for worker in workers:
                worker.close()
            raise

    def _launch(self, index: int) -> ExternalProcess:
        few = self.n_workers <= len(os.sched_getaffinity(0))
        return ExternalProcess(
            self._construct,
            start_method=self._start_method,
            preload=self._preload,
            name=f"{self._name}[{index}]",
            linger=_LINGER_SECONDS if few else 0.0,
        )


def make_hosted(ids: KnownIds, make: Callable[[], Any]) -> Any:
    """Return the environment that a worker hosts, and remember the outcomes of its trials.

    Parameters
    ----------
    ids : KnownIds
    make : callable
        Returns the environment.
    """
    know(ids)
    with trials_shared(KnownTrials()) as trials:
        env = make()
    _outcomes[:] = trials.outcomes()
    return env


def outcomes_of_trials(env: Any) -> list[TrialOutcome]:
    """Return the outcomes of the trials of `env`, which `make_hosted` made in this process."""
    return list(_outcomes)


def headless(env_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return `env_kwargs` for workers: without ``render_mode="human"``, which opens a window."""
    if env_kwargs.get("render_mode") != "human":
        return env_kwargs
    return {**env_kwargs, "render_mode": None}


def check_timeouts(step_timeout: float | None, start_timeout: float | None) -> None:
    """Raise `InputError` unless each timeout is ``None`` or a number greater than 0."""
    for option, seconds in (("step_timeout", step_timeout), ("start_timeout", start_timeout)):
        if seconds is not None:
            check_seconds(option, seconds)
