"""`ParallelEnv`, `BatchEnv` and `RayEnv`: `PlanEnv` with batches stepped in many processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from plangym_like.batch.row_stepper import RowStepper
from plangym_like.cluster.ray_executor import RayOptions
from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.execution.process_executor import ProcessExecutor
from plangym_like.execution.process_options import (
    START_SECONDS,
    ProcessOptions,
    check_timeouts,
    headless,
)
from plangym_like.processes.external_process import ExternalProcess


class ParallelEnv(PlanEnv):
    """A `PlanEnv` whose batches are stepped by several workers.

    Single steps, resets, and calls that read or set the state use an environment in this process.
    Without `isolate`, this process also steps a share of every batch, and all rows of a batch that
    is too small or too cheap to be worth sending.

    Parameters
    ----------
    env_class : callable
        ``env_class(name, **kwargs)`` returns a `PlanEnv`, as `AtariEnv` and similar classes do.
    name : str or callable
        The first argument of `env_class`.
    n_workers : int
        The number of processes that step rows, at least 1.
    blocking : bool
        Accepted for compatibility with plangym; it has no effect.
    frameskip, autoreset, delay_setup, isolate, step_timeout, start_timeout, start_method
        As in `make`.
    kwargs
        Further options of `make`, passed to `env_class`.

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
        self.blocking = blocking
        env_kwargs = {"frameskip": frameskip, "autoreset": autoreset, **kwargs}
        executor = ProcessOptions(
            env_class,
            name,
            env_kwargs,
            n_workers=n_workers,
            isolate=isolate,
            step_timeout=step_timeout,
            start_timeout=start_timeout,
            start_method=start_method,
        )
        self.recipe = (env_class, name, env_kwargs)
        make = partial(env_class, name, **env_kwargs)
        super().__init__(make, executor, name=name, autoreset=autoreset, delay_setup=delay_setup)


class GivenProcesses:
    """Makes a `ProcessExecutor` of processes that exist already, and step all rows."""

    isolated = True

    def __init__(self, workers: Sequence[ExternalProcess], **timeouts: Any) -> None:
        if not workers:
            raise InputError("a BatchEnv needs at least one ExternalProcess")
        check_timeouts(**timeouts)
        if timeouts["start_timeout"] is None and timeouts["step_timeout"] is not None:
            timeouts["start_timeout"] = START_SECONDS
        self._workers, self.n_workers, self._timeouts = workers, len(workers), timeouts

    def make(self, make_stepper: Callable[[], RowStepper]) -> ProcessExecutor:
        """Return the executor of these processes."""
        return ProcessExecutor(self._workers, make_stepper().layout, **self._timeouts)


class BatchEnv(PlanEnv):
    """A `PlanEnv` whose batches are stepped by worker processes, all with the same environment.

    ``len(env)`` is the number of these processes, and ``env[i]`` is one of them. This process makes
    an environment of the same kind for single steps and states; it steps no rows of batches.

    Parameters
    ----------
    envs : sequence of ExternalProcess
        The workers.
    blocking : bool
        Accepted for compatibility with plangym; it has no effect.
    step_timeout, start_timeout : float, optional
        As in `make`; the default of `start_timeout` is 60 s if `step_timeout` is given.
    audit : {"raise", "warn", "off"}
        As in `make`.

    Raises
    ------
    InputError
        A timeout is invalid, or there is no worker.
    StateMismatchError
        The workers' environments differ. A batch raises this, once the workers have started.

    Examples
    --------
    >>> import plangym_like
    >>> worker = ExternalProcess(lambda: plangym_like.make("CartPole-v1"))
    >>> with BatchEnv([worker]) as env:
    ...     state, obs, info = env.reset(seed=0)
    ...     env.step_batch([0, 1, 1], state).rewards
    array([1., 1., 1.])
    """

    def __init__(
        self,
        envs: Sequence[ExternalProcess],
        blocking: bool = False,
        *,
        step_timeout: float | None = None,
        audit: str = "raise",
        start_timeout: float | None = None,
    ) -> None:
        self.blocking = blocking
        self._workers = list(envs)
        executor = GivenProcesses(
            self._workers, step_timeout=step_timeout, start_timeout=start_timeout
        )
        super().__init__(self._workers[0].construct_here, executor, audit=audit)

    def clone(self, **changed: Any) -> Self:
        """Return another env in the same state, with new workers; `changed` replaces arguments."""
        workers = [worker.make_another() for worker in self._workers]
        return super().clone(**{"envs": workers, **changed})

    def __len__(self) -> int:
        return len(self._workers)

    def __getitem__(self, index: int) -> ExternalProcess:
        return self._workers[index]


class RayEnv(PlanEnv):
    """A `PlanEnv` whose batches are stepped on all machines of a Ray cluster.

    On this machine, it works like a `ParallelEnv`. On other nodes of the cluster, actors step
    ranges of a batch in their own worker processes, and send the results back to this process.
    Batches that are too cheap to be worth sending are stepped in this process.

    Actors, workers and nodes may die, and nodes may join. The results stay the same, and `stats`
    counts these events. If no cluster is given (see `address`), a local Ray is started. It is
    stopped when the last environment that uses it is closed.

    Parameters
    ----------
    env_class, name, blocking
        As in `ParallelEnv`.
    n_workers : int, optional
        The number of processes that step rows, on all nodes together. If the cluster has fewer
        cores, nodes that join later are used too. By default, every core of the cluster is used.
    isolate : bool
        Step no batches in this process. On other nodes, actors always step rows in child processes.
    address : str, optional
        The cluster to join, such as ``"10.0.0.1:6379"`` or ``"auto"``. The default is the cluster
        in the environment variable ``RAY_ADDRESS``; if it is not set, a local Ray is started. A
        program that has called ``ray.init`` keeps its connection.
    resources : dict, optional
        The resources that each actor claims, instead of a core for each process: ``num_cpus``,
        ``num_gpus``, ``memory`` and the cluster's own resources. A node without these resources is
        not used, even if it is this machine.
    placement : PlacementGroup, optional
        With a placement group, there is exactly one process for each CPU of each bundle. By
        default, nodes are used evenly.
    runtime_env : dict, optional
        The runtime environment of the actors, as a Ray ``runtime_env``.
    object_store_memory : int, optional
        Size of the object store in bytes, if a local Ray is started.
    frameskip, autoreset, delay_setup, step_timeout, start_timeout, start_method
        As in `make`, for the workers of all machines.
    kwargs
        Further options of `make`, passed to `env_class`.

    Raises
    ------
    MissingExtraError
        Ray is not installed; the message says how to install it.
    """

    def __init__(
        self,
        env_class: Callable[..., PlanEnv],
        name: Any,
        frameskip: Any = None,
        autoreset: bool = True,
        delay_setup: bool = False,
        n_workers: int | None = None,
        blocking: bool = False,
        *,
        isolate: bool = False,
        step_timeout: float | None = None,
        start_timeout: float | None = None,
        start_method: str = "forkserver",
        address: str | None = None,
        resources: dict[str, Any] | None = None,
        placement: Any = None,
        runtime_env: dict[str, Any] | None = None,
        object_store_memory: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.blocking = blocking
        env_kwargs = {"frameskip": frameskip, "autoreset": autoreset, **kwargs}
        self.recipe = (env_class, name, env_kwargs)
        on_node: dict[str, Any] = {
            "step_timeout": step_timeout,
            "start_timeout": start_timeout,
            "start_method": start_method,
        }
        node_env = partial(
            ParallelEnv, env_class, name, isolate=True, **on_node, **headless(env_kwargs)
        )
        local = ProcessOptions(env_class, name, env_kwargs, n_workers=1, isolate=isolate, **on_node)
        executor = RayOptions(
            node_env,
            name,
            local,
            n_workers=n_workers,
            address=address,
            resources=resources,
            placement=placement,
            runtime_env=runtime_env,
            object_store_memory=object_store_memory,
        )
        make = partial(env_class, name, **env_kwargs)
        super().__init__(make, executor, name=name, autoreset=autoreset, delay_setup=delay_setup)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until all workers and actors are ready. Batches can be submitted before that.

        Raises
        ------
        TimeoutError
            They were not ready after `timeout` seconds.
        """
        self.batch_env.wait_ready(timeout)
