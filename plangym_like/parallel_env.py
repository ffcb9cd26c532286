"""`ParallelEnv`: a `PlanEnv` whose batches are stepped in many processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from plangym_like.execution.process_options import ProcessOptions
from plangym_like.plan_env import PlanEnv


class ParallelEnv(PlanEnv):
    """A `PlanEnv` whose batches are stepped by several workers.

    Single steps, resets, and calls that read or set the state use an environment in this process.
    Without `isolate`, this process also steps a share of every batch, and all rows of a batch that
    is too small or too cheap to be worth sending. So `n_workers` counts this process and
    ``n_workers - 1`` child processes.

    Parameters
    ----------
    env_class : callable
        ``env_class(name, **kwargs)`` returns a `PlanEnv`, as `AtariEnv` and similar classes do.
    name : str or callable
        The first argument of `env_class`.
    frameskip, autoreset, delay_setup
        As in `make`.
    n_workers : int
        The number of processes that step rows, at least 1.
    blocking : bool
        Accepted for compatibility with plangym; it has no effect.
    isolate : bool
        Step batches in child processes only (`n_workers` of them), so that a row that crashes or
        hangs its simulator cannot affect this process. If damaged states could crash the simulator,
        single steps from given states are made in a child process too.
    step_timeout : float, optional
        Limit in seconds for one row. A worker that exceeds it is replaced, and the row is tried
        once more, for at most 0.2 s, or ten times the usual time of a row if that is longer. If the
        second try fails too, `StepTimeoutError` is raised. Implies `isolate`.
    start_timeout : float, optional
        Limit in seconds for a worker to make its environment. A worker that exceeds it is replaced;
        if that happens three times for each worker, `WorkerStartError` is raised. The default is no
        limit. With `step_timeout`, the default is 60 s, or ten times the time that it took to make
        the environment in this process, whichever is longer.
    start_method : {"forkserver", "spawn", "fork"}
        How child processes are started.
    kwargs
        Passed to `env_class`.

    Examples
    --------
    >>> import numpy as np
    >>> from plangym_like import ClassicControlEnv
    >>> with ParallelEnv(ClassicControlEnv, "Pendulum-v1", n_workers=2) as env:
    ...     state, obs, info = env.reset(seed=0)
    ...     step = env.step_batch(np.linspace(-2, 2, 64)[:, None], state)
    >>> step.rewards.shape
    (64,)
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
