"""`ParallelEnv`, `BatchEnv` and `RayEnv`: `PlanEnv` with batches stepped in many processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from plangym_like.audit.auditor import Auditor
from plangym_like.batch import spaces
from plangym_like.batch.layout import Layout, common_layout
from plangym_like.batch.row_stepper import RowStepper, closed
from plangym_like.cluster.ray_executor import RayOptions
from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.execution.executor import ExecutorOptions
from plangym_like.execution.process_executor import ProcessExecutor
from plangym_like.execution.process_options import (
    START_SECONDS,
    ProcessOptions,
    check_timeouts,
    headless,
)
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.results import Stats
from plangym_like.states.rows import Row


class _ClassEnv(PlanEnv):
    """A `PlanEnv` whose simulator is made by ``env_class(name, **env_kwargs)``, in any process.

    `others` are the further arguments of the constructor, which `clone` repeats.
    """

    def __init__(
        self,
        env_class: Callable[..., PlanEnv],
        name: Any,
        env_kwargs: dict[str, Any],
        executor: ExecutorOptions,
        others: dict[str, Any],
        *,
        blocking: bool,
        delay_setup: bool,
    ) -> None:
        super().__init__(
            partial(env_class, name, **env_kwargs),
            executor,
            name=name,
            autoreset=env_kwargs["autoreset"],
            delay_setup=delay_setup,
        )
        self.blocking = blocking
        self.recipe = (env_class, name, env_kwargs)
        self._arguments = {
            "env_class": env_class,
            "name": name,
            "blocking": blocking,
            **env_kwargs,
            **others,
        }


class ParallelEnv(_ClassEnv):
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
        a worker first takes each single step from a given state.
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
        executor = ProcessOptions(env_class, name, env_kwargs, **options)
        how = {"blocking": blocking, "delay_setup": delay_setup}
        super().__init__(env_class, name, env_kwargs, executor, options, **how)


class BatchEnv(PlanEnv):
    """A `PlanEnv` whose batches are stepped by worker processes, all with the same environment.

    ``len(env)`` is the number of these processes, and ``env[i]`` is one of them. This process steps
    rows of batches only if `caller` is given. Methods that need a simulator in this process, such
    as `step`, make one when they are first called.

    Parameters
    ----------
    envs : sequence of ExternalProcess
        The workers.
    blocking : bool
        Accepted for compatibility with plangym; it has no effect.
    caller : PlanEnv, optional
        An environment in this process that steps rows as well.
    layout : Layout, optional
        The layout of batches; by default, the layout of `caller` or, without it, of the workers.
    step_timeout : float, optional
        Limit in seconds for one row; a worker that exceeds it is replaced.
    audit : {"raise", "warn", "off"}
        What to do when stepping a row a second time gives another result (see `make`). With
        `caller`, this option has no effect, because the audit of `caller` is used.
    start_timeout : float, optional
        Limit in seconds for a worker to make its environment; a worker that exceeds it is replaced.
        The default is 60 s if `step_timeout` is given, and otherwise no limit.

    Raises
    ------
    InputError
        The environments' spaces, infos or state formats differ, a timeout is invalid, or there is
        neither a worker nor a `caller`.

    Examples
    --------
    >>> import plangym_like
    >>> worker = ExternalProcess(lambda: plangym_like.make("CartPole-v1"))
    >>> with BatchEnv([worker]) as env:
    ...     states, obs, infos = env.reset()
    ...     env.step_batch([0, 1, 1], states[0]).rewards
    array([1., 1., 1.])
    """

    def __init__(
        self,
        envs: Sequence[ExternalProcess],
        blocking: bool = False,
        *,
        caller: PlanEnv | None = None,
        layout: Layout | None = None,
        step_timeout: float | None = None,
        audit: str = "raise",
        start_timeout: float | None = None,
    ) -> None:
        workers = list(envs)
        if not workers and caller is None:
            raise InputError("a BatchEnv needs at least one ExternalProcess")
        check_timeouts(step_timeout, start_timeout)
        limit = start_timeout
        if limit is None and step_timeout is not None:
            limit = START_SECONDS
        for worker in workers:
            worker.wait_ready(limit)
        if layout is None:
            layouts = [worker.layout for worker in workers]
            layout = common_layout(layouts) if caller is None else caller.layout
        self._make_here: Callable[[], PlanEnv]
        if caller is None:
            self._make_here, stepper, name = workers[0].construct_here, None, workers[0].name
        else:
            self._make_here, stepper, name = caller.clone, caller.row_stepper, caller.name
        super().__init__(self._make_here, name=name, audit=audit, delay_setup=True)
        self.blocking = blocking
        self._state: Row | None = None
        if caller is not None:
            self._auditor = caller._auditor
        else:
            self._auditor = self._audit_of(workers[0], layout)
        self._processes = ProcessExecutor(
            workers, layout, stepper, step_timeout=step_timeout, start_timeout=limit
        )
        self._use(layout, self._processes)
        self._caller = caller
        self._arguments = {
            "blocking": blocking,
            "step_timeout": step_timeout,
            "audit": audit,
            "start_timeout": start_timeout,
        }

    def _audit_of(self, worker: ExternalProcess, layout: Layout) -> Auditor:
        """Return the auditor for batches that only workers step; `worker` compares states."""

        def state_difference(one: Row, other: Row) -> Any:
            return worker.apply(_state_difference, one, other)()

        def warn(note: str) -> None:
            warnings.warn(note, RuntimeWarning, stacklevel=5)

        return Auditor(
            layout,
            self.name,
            state_difference,
            warn,
            mode=self._audit,
            every=self._audit_every,
            stats=Stats(),
        )

    def setup(self) -> None:
        """Do nothing, because the workers exist already; raise `ClosedError` after `close`."""
        if self._closed:
            raise closed(self.name)

    @property
    def row_stepper(self) -> RowStepper:
        """The object that steps rows in this process; made when it is first needed."""
        self.setup()
        if self._stepper is None:
            self._stepper = self._make_here().row_stepper
            if self._state is not None:
                self._stepper.current.hold(self._state)
        return self._stepper

    @property
    def n_workers(self) -> int:
        """The number of processes that step rows, including this one if it steps any."""
        return self._processes.n_workers

    def _stepper_of_attributes(self) -> RowStepper:
        return self.row_stepper

    @property
    def isolate(self) -> bool:
        """Whether batches are stepped in other processes only."""
        return self._processes.isolated

    def clone(self, **changed: Any) -> Self:
        """Return another env in the same state, with new workers; `changed` replaces arguments."""
        other = type(self)(
            [self._processes[index].make_another() for index in range(len(self))],
            caller=None if self._caller is None else self._caller.clone(),
            **{**self._arguments, **changed},
        )
        other._set(self.get_state(), given=True)
        return other

    def __len__(self) -> int:
        return len(self._processes)

    def __getitem__(self, index: int) -> ExternalProcess:
        return self._processes[index]

    def get_state(self) -> Row:
        """Return the state that batches start from if no states are given.

        With `caller`, or once the simulator of this process has been used, this is that simulator's
        state. Otherwise it is the first worker's, until the first `reset`, `step` or `set_state`.
        """
        if self._stepper is not None:
            return super().get_state()
        self.setup()
        if self._state is None:
            self._state = self._processes.answer(0, self[0].call("get_state"))
        return self._state.copy()

    def _set(self, state: Row, *, given: bool) -> None:
        if self._stepper is not None:
            super()._set(state, given=given)
        else:
            self._state = self.layout.format.check_row(state).copy()

    def reset(  # type: ignore[override]
        self, indices: Sequence[int] | None = None, return_states: bool = True
    ) -> Any:
        """Reset the workers' environments; return ``(states, obs, infos)``.

        `indices` selects the K processes whose environments are reset; by default, all of them.
        ``states`` is ``(K, state_nbytes)``, ``obs`` a batch of K observations, and ``infos`` a
        list of K dicts. The first of the states becomes the current state. With
        ``return_states=False``, return ``(obs, infos)``.
        """
        self.setup()
        with self._processes.lock:
            numbers = list(range(len(self)) if indices is None else indices)
            futures = [self[index].call("reset", return_state=True) for index in numbers]
            pairs = zip(numbers, futures, strict=True)
            results = [self._processes.answer(index, future) for index, future in pairs]
        obs = spaces.empty(self.observation_space, (len(results),))
        states = self.layout.format.new(len(results))
        for index, result in enumerate(results):
            spaces.put(self.observation_space, obs, index, result.obs)
            states[index] = result.state
        infos = [result.info for result in results]
        if results:
            self._set(states[0], given=True)
        return (states, obs, infos) if return_states else (obs, infos)


def _state_difference(env: PlanEnv, one: Row, other: Row) -> tuple[str, str] | None:
    """Return `Simulator.state_difference` of two payloads; runs in a worker."""
    return env.simulator.state_difference(one, other)


class RayEnv(_ClassEnv):
    """A `PlanEnv` whose batches are stepped on all machines of a Ray cluster.

    On this machine, it works like a `ParallelEnv`. On other nodes of the cluster, actors step
    ranges of a batch in their own worker processes, and send the results back to this process.
    Batches that are too cheap to be worth sending are stepped in this process.

    Actors, workers and nodes may die, and nodes may join. The results stay the same, and `stats`
    counts these events. If no cluster is given (see `address`), a local Ray is started. It is
    stopped when the last environment that uses it is closed.

    Parameters
    ----------
    env_class, name, frameskip, autoreset, delay_setup
        As in `ParallelEnv`.
    n_workers : int, optional
        The number of processes that step rows, on all nodes together. If the cluster has fewer
        cores, nodes that join later are used too. By default, every core of the cluster is used.
    blocking : bool
        Accepted for compatibility with plangym; it has no effect.
    isolate : bool
        Step no batches in this process. On other nodes, actors always step rows in child processes.
    step_timeout, start_timeout : float, optional
        As in `ParallelEnv`, for the workers of all machines.
    start_method : {"forkserver", "spawn", "fork"}
        How worker processes are started.
    address : str, optional
        The cluster to join, such as ``"10.0.0.1:6379"`` or ``"auto"``. The default is the cluster
        in the environment variable ``RAY_ADDRESS``; if it is not set, a local Ray is started. A
        program that has called ``ray.init`` keeps its connection.
    resources : dict, optional
        The resources that each actor claims, instead of a core for each process: ``num_cpus``,
        ``num_gpus``, ``memory`` and the cluster's own resources. A node without these resources is
        not used, even if it is this machine.
    placement : {"spread", "pack"} or PlacementGroup
        Use nodes evenly, or fill one after another. With a placement group, there is exactly one
        process for each CPU of each bundle.
    runtime_env : dict, optional
        The runtime environment of the actors, as a Ray ``runtime_env``.
    cores_per_actor : int, optional
        The number of processes of one actor. By default, each node gets as few actors as possible,
        with at most 16 processes each.
    object_store_memory : int, optional
        Size of the object store in bytes, if a local Ray is started.
    kwargs
        Passed to `env_class`.

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
        placement: Any = "spread",
        runtime_env: dict[str, Any] | None = None,
        cores_per_actor: int | None = None,
        object_store_memory: int | None = None,
        **kwargs: Any,
    ) -> None:
        env_kwargs = {"frameskip": frameskip, "autoreset": autoreset, **kwargs}
        on_node: dict[str, Any] = {
            "step_timeout": step_timeout,
            "start_timeout": start_timeout,
            "start_method": start_method,
        }
        cluster: dict[str, Any] = {
            "n_workers": n_workers,
            "address": address,
            "resources": resources,
            "placement": placement,
            "runtime_env": runtime_env,
            "cores_per_actor": cores_per_actor,
            "object_store_memory": object_store_memory,
        }
        node_env = partial(
            ParallelEnv, env_class, name, isolate=True, **on_node, **headless(env_kwargs)
        )
        local = ProcessOptions(env_class, name, env_kwargs, n_workers=1, isolate=isolate, **on_node)
        executor = RayOptions(node_env, name, local, **cluster)
        others = {"isolate": isolate, **on_node, **cluster}
        how = {"blocking": blocking, "delay_setup": delay_setup}
        super().__init__(env_class, name, env_kwargs, executor, others, **how)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until all workers and actors are ready. Batches can be submitted before that.

        Raises
        ------
        TimeoutError
            They were not ready after `timeout` seconds.
        """
        self.batch_env.wait_ready(timeout)
