"""`ProcessOptions`: how the worker processes of an environment are made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from plangym_like.batch.row_stepper import RowStepper
from plangym_like.execution.known_ids import KnownIds, know, known_ids
from plangym_like.execution.process_executor import ProcessExecutor
from plangym_like.processes import start_methods
from plangym_like.processes.child import check_can_start
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.snapshots.trial import KnownTrials, trials_shared
from plangym_like.support.arguments import as_count, check_seconds, name_of

Executor = TypeVar("Executor", bound=ProcessExecutor)

# If only `step_timeout` is given, a worker may take this long to make its environment, or ten times
# as long as this process took, whichever is longer.
START_SECONDS = 60.0
# How long a worker polls for the next batch before it sleeps; most searches submit their next batch
# within this time (`benchmarks/bench.py`).
_LINGER_SECONDS = 5e-3


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
        self._preload = ["plangym_like.execution.row_server", __name__]
        module = getattr(env_class, "__module__", None)
        if module is not None and module.startswith("plangym_like."):
            self._preload.append(module)
        self._begun = 0.0

    def make(self, make_stepper: Callable[[], RowStepper]) -> ProcessExecutor:
        """Return the executor; its workers start and make their environments in the background."""
        self.warm_up()
        return self.start(ProcessExecutor, make_stepper(), self.n_workers)

    def warm_up(self) -> None:
        """Let the fork server start and import modules, while this process makes its simulator."""
        if self._start_method == "forkserver":
            start_methods.warm_up(self._preload)
        self._begun = time.monotonic()

    def start(
        self,
        make_executor: Callable[..., Executor],
        stepper: RowStepper,
        n_workers: int,
    ) -> Executor:
        """Make workers, and return ``make_executor(workers, layout, stepper, **options)``.

        `n_workers` is the number of processes that step rows on this machine; 0 makes no workers.
        """
        start_timeout = self._start_timeout
        if start_timeout is None and self._step_timeout is not None:
            start_timeout = max(START_SECONDS, 10 * (time.monotonic() - self._begun))
        count = n_workers if self.isolated else max(0, n_workers - 1)
        few = self.n_workers <= len(os.sched_getaffinity(0))
        workers: list[ExternalProcess] = []
        try:
            while len(workers) < count:
                worker = ExternalProcess(
                    self._construct,
                    start_method=self._start_method,
                    preload=self._preload,
                    name=f"{self._name}[{len(workers)}]",
                    linger=_LINGER_SECONDS if few else 0.0,
                )
                workers.append(worker)
            return make_executor(
                workers,
                stepper.layout,
                None if self.isolated else stepper,
                step_timeout=self._step_timeout,
                start_timeout=start_timeout,
            )
        except BaseException:
            for worker in workers:
                worker.close()
            raise


def make_hosted(ids: KnownIds, make: Callable[[], Any]) -> Any:
    """Return the environment that a worker hosts: register `ids`, and call `make`."""
    know(ids)
    with trials_shared(KnownTrials()):
        return make()


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
