"""`ParallelEnv`: makes a `PlanEnv` whose batches are stepped in many processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from plangym_like.execution.process_options import ProcessOptions
from plangym_like.plan_env import PlanEnv


class ParallelEnv(PlanEnv):
    """A `PlanEnv` whose batches are stepped by several workers.

    Single steps, resets and states are those of an environment in this process. It also steps its
    share of every batch, so `n_workers` are this process and ``n_workers - 1`` child processes. A
    batch that is too small or too cheap to be worth sending is stepped here.

    Parameters
    ----------
    env_class : callable
        ``env_class(name, **kwargs)`` returns a `PlanEnv`; `AtariEnv` and its like are such.
    name : str or callable
        What it is called with.
    frameskip, autoreset, delay_setup
        As in `make`.
    n_workers : int
        Processes that step rows, at least 1.
    blocking : bool
        Kept for users of plangym, without effect: workers always run at once.
    isolate : bool
        Step batches in child processes only (`n_workers` of them), so that a row that crashes or
        hangs its simulator cannot take this process with it. Single steps from states that were
        given are tried in a child first if damaged states could crash the simulator.
    step_timeout : float, optional
        Limit in seconds for one row. A worker that exceeds it is replaced, and the row is tried
        once more, for 0.2 s or the time of ten usual rows; then `StepTimeoutError` is raised.
        Implies `isolate`.
    start_timeout : float, optional
        Limit in seconds for a worker to make its environment. A worker that exceeds it is replaced;
        `WorkerStartError` if that happens three times for each worker. The default is no limit, or
        with `step_timeout` 60 s or ten times what making the environment took here.
    start_method : {"forkserver", "spawn", "fork"}
        How child processes are started.
    kwargs
        Passed to `env_class`.
    """

    def __init__(
        self,
        env_class: Callable[..., PlanEnv],
        name: Any,
        frameskip: Any = None,
        autoreset: bool = True,
        delay_setup: bool = False,
        n_workers: int = 8,
        blocking: bool = False,
        *,
        isolate: bool = False,
        step_timeout: float | None = None,
        start_timeout: float | None = None,
        start_method: str = "forkserver",
        **kwargs: Any,
    ) -> None:
        env_kwargs = {"frameskip": frameskip, "autoreset": autoreset, **kwargs}
        options: dict[str, Any] = {
            "n_workers": n_workers,
            "isolate": isolate,
            "step_timeout": step_timeout,
            "start_timeout": start_timeout,
            "start_method": start_method,
        }
        super().__init__(
            partial(env_class, name, **env_kwargs),
            ProcessOptions(env_class, name, env_kwargs, **options),
            name=name,
            autoreset=autoreset,
            delay_setup=delay_setup,
        )
        self.blocking = blocking
        self.recipe = (env_class, name, env_kwargs)
        self._arguments = {
            "env_class": env_class,
            "name": name,
            "blocking": blocking,
            **env_kwargs,
            **options,
        }
