"""`ProcessOptions`: how the worker processes of an environment are made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from plangym_like.counts import as_count, check_seconds
from plangym_like.execution.known_ids import known_ids, make_with_ids
from plangym_like.execution.process_executor import ProcessExecutor
from plangym_like.processes import fork_server
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.start_methods import FORK_SERVERS
from plangym_like.row_stepper import RowStepper

Executor = TypeVar("Executor", bound=ProcessExecutor)

# If only `step_timeout` is given, a worker may take this long to make its environment, or ten times
# as long as this process took, whichever is longer.
START_SECONDS = 60.0
# How long a worker polls for the next batch before it sleeps; most searches submit their next batch
# within this time (`benchmarks/never_slower.py`).
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
        self._step_timeout, self._start_timeout = step_timeout, start_timeout
        self._start_method = start_method
        self._construct = partial(
            make_with_ids, known_ids(name), env_class, name, **headless(env_kwargs)
        )
        self._preload = ["plangym_like.execution.job"]
        module = getattr(env_class, "__module__", None)
        if module is not None and module.startswith("plangym_like."):
            self._preload.append(module)
        self._begun = 0.0

    def prepare(self) -> None:
        """Start the fork server, which imports modules while this process makes its simulator."""
        for method in {self._method(index) for index in range(self.n_workers)}:
            if method in FORK_SERVERS:
                fork_server.warm_up(self._preload, FORK_SERVERS[method])
        self._begun = time.monotonic()

    def _method(self, index: int) -> str:
        """Return the start method of worker `index`.

        Isolated workers step all rows and audit each other's rows. To find results that depend on
        the hashes of strings, half of these workers use a different hash seed.
        """
        if self.isolated and self._start_method == "forkserver" and 2 * index >= self.n_workers > 1:
            return "forkserver-2"
        return self._start_method

    def make(self, stepper: RowStepper) -> ProcessExecutor:
        """Return the executor; its workers start and make their environments in the background."""
        return self.make_as(ProcessExecutor, stepper, self.n_workers)

    def make_as(
        self, make_executor: Callable[..., Executor], stepper: RowStepper, n_workers: int
    ) -> Executor:
        """Make workers, and return ``make_executor(workers, layout, stepper, **timeouts)``.

        `n_workers` is the number of processes that step rows on this machine; 0 makes no workers.
        """
        start_timeout = self._start_timeout
        if start_timeout is None and self._step_timeout is not None:
            start_timeout = max(START_SECONDS, 10 * (time.monotonic() - self._begun))
        count = n_workers if self.isolated else max(0, n_workers - 1)
        linger = _LINGER_SECONDS if n_workers <= len(os.sched_getaffinity(0)) else 0.0
        workers: list[ExternalProcess] = []
        try:
            for index in range(count):
                workers.append(
                    ExternalProcess(
                        self._construct,
                        start_method=self._method(index),
                        preload=self._preload,
                        name=f"{stepper.name}[{index}]",
                        linger=linger,
                    )
                )
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
