"""`ParallelEnv`: a `PlanEnv` whose batches run on many processes."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np

from plangym_like.batches import Inputs, check_on_error
from plangym_like.errors import InputError, WorkerError
from plangym_like.execution.batch_env import BatchEnv
from plangym_like.execution.lane_pool import START_SECONDS
from plangym_like.execution.registered import construct, spec_of
from plangym_like.made_env import closed
from plangym_like.plan_env import PlanEnv
from plangym_like.processes import fork_server
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.remote_errors import is_remote
from plangym_like.states import Row
from plangym_like.stats import Stats

# A search comes back with its next batch sooner than this, as a rule. To check and to lay out a
# large one takes 2 ms of it.
_LINGER_SECONDS = 5e-3


class ParallelEnv:
    """Everything that a `PlanEnv` is, with batches stepped on several lanes.

    Single steps, resets and states are those of an environment in this process; it is also one of
    the lanes, so `n_workers` lanes are this process and ``n_workers - 1`` children. A batch that
    is too small or too cheap to be worth sending is stepped here.

    Parameters
    ----------
    env_class : callable
        ``env_class(name, **kwargs)`` returns a `PlanEnv`; `AtariEnv` and its like are such.
    name : str or callable
        What it is called with.
    frameskip, autoreset, delay_setup
        As in `PlanEnv`.
    n_workers : int
        Lanes, at least 1.
    blocking : bool
        Kept for those who come from plangym; lanes always run at once.
    isolate : bool
        Step batches in children only (`n_workers` of them), so that a row that crashes or hangs its
        simulator cannot take this process with it. Single steps from states that were given are
        tried in a child first, where the family's states could crash their simulator.
    step_timeout : float, optional
        Seconds that one row may take; a worker that exceeds them is replaced and the row tried once
        more, for 0.2 s or as long as ten usual rows take, then `StepTimeoutError` is raised.
        Implies `isolate`.
    start_timeout : float, optional
        Seconds that a worker may take to make its environment before it is killed and another one
        started; `WorkerStartError` if that happens three times for each worker. Left out: with
        `step_timeout`, 60 or ten times what the environment took here, if that is longer; else no
        limit.
    start_method : {"forkserver", "spawn", "fork"}
        How children are born.
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
        whole = isinstance(n_workers, (int, np.integer)) and not isinstance(n_workers, bool)
        if not whole or n_workers < 1:
            raise InputError(f"n_workers is a whole number of at least 1, got {n_workers!r}")
        for option, seconds in (("step_timeout", step_timeout), ("start_timeout", start_timeout)):
            if seconds is not None and not seconds > 0:
                raise InputError(f"{option} is a positive number of seconds, got {seconds!r}")
        self._arguments: dict[str, Any] = {
            "env_class": env_class,
            "name": name,
            "frameskip": frameskip,
            "autoreset": autoreset,
            "n_workers": int(n_workers),
            "blocking": blocking,
            "isolate": isolate,
            "step_timeout": step_timeout,
            "start_timeout": start_timeout,
            "start_method": start_method,
            **kwargs,
        }
        self.n_workers = int(n_workers)
        self.blocking = blocking
        self.isolate = isolate or step_timeout is not None
        self._step_timeout, self._start_timeout = step_timeout, start_timeout
        self._start_method = start_method
        env_kwargs = {"frameskip": frameskip, "autoreset": autoreset, **kwargs}
        self._construct = partial(env_class, name, **env_kwargs)
        headless = None if kwargs.get("render_mode") == "human" else kwargs.get("render_mode")
        if "render_mode" in kwargs:
            env_kwargs["render_mode"] = headless
        self._construct_worker = partial(construct, spec_of(name), env_class, name, **env_kwargs)
        self._env: PlanEnv | None = None
        self._batch_env: BatchEnv | None = None
        # Whether the current state came from outside, or followed from one that did.
        self._foreign = False
        self._closed = False
        if not delay_setup:
            self.setup()

    def setup(self) -> None:
        """Make the environment here and the processes, unless that has been done already."""
        if self._closed:
            raise closed(self._arguments["name"])
        if self._env is not None:
            return
        preload = ["plangym_like.execution.lane"]
        module = getattr(self._arguments["env_class"], "__module__", None)
        if module is not None and module.startswith("plangym_like."):
            preload.append(module)
        if self._start_method == "forkserver":
            # It starts while the environment here is made.
            fork_server.warm_up(preload=preload)
        begun = time.monotonic()
        env = self._construct()
        env.setup()
        start_timeout = self._start_timeout
        if start_timeout is None and self._step_timeout is not None:
            start_timeout = max(START_SECONDS, 10 * (time.monotonic() - begun))
        children = self.n_workers if self.isolate else self.n_workers - 1
        lanes = children if self.isolate else children + 1
        linger = _LINGER_SECONDS if lanes <= len(os.sched_getaffinity(0)) else 0.0
        processes: list[ExternalProcess] = []
        try:
            for index in range(children):
                processes.append(
                    ExternalProcess(
                        self._construct_worker,
                        start_method=self._start_method,
                        preload=preload,
                        name=f"{env.name}[{index}]",
                        linger=linger,
                    )
                )
            self._batch_env = BatchEnv(
                processes,
                self.blocking,
                caller=None if self.isolate else env,
                layout=env.layout,
                step_timeout=self._step_timeout,
                start_timeout=start_timeout,
            )
        except BaseException:
            for process in processes:
                process.close()
            env.close()
            raise
        self._audit(env, self._batch_env)
        self._lock = threading.RLock()
        self._env = env

    def __getstate__(self) -> dict[str, Any]:
        if self._env is not None:
            raise TypeError(
                f"a {type(self).__name__} with live processes cannot be pickled: send its state "
                "rows, or make it with delay_setup=True and pickle it before its first use"
            )
        return self.__dict__

    def __repr__(self) -> str:
        name = self._arguments["name"]
        return f"ParallelEnv({name!r}, n_workers={self.n_workers})"

    @property
    def plan_env(self) -> PlanEnv:
        """The environment in this process."""
        self.setup()
        assert self._env is not None
        return self._env

    @property
    def batch_env(self) -> BatchEnv:
        """The lanes."""
        self.setup()
        assert self._batch_env is not None
        return self._batch_env

    @property
    def stats(self) -> Stats:
        """What has happened on the lanes so far."""
        return self.batch_env.stats

    @property
    def unwrapped(self) -> Self:
        """This env itself."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.__dict__.get("_closed", True):
            if self.__dict__.get("_closed") and hasattr(PlanEnv, name):
                raise closed(self._arguments["name"])
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.plan_env, name)

    # Single steps, in this process

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        return_state: bool = True,
    ) -> Any:
        """Start an episode; see `PlanEnv.reset`."""
        result = self.plan_env.reset(seed=seed, options=options, return_state=return_state)
        self._foreign = False
        return result

    def set_state(self, state: Row) -> None:
        """Make `state` the current state; see `PlanEnv.set_state`.

        Raises
        ------
        PoisonInputError, StepTimeoutError
            With `isolate`, the row ended or hung the workers that were given to try it.
        """
        self._try_out(state)
        self.plan_env.set_state(state)
        self._foreign = True

    def step(
        self, action: Any, state: Row | None = None, dt: int = 1, return_state: bool | None = None
    ) -> Any:
        """Step in this process; see `PlanEnv.step`, and `set_state` for states from outside."""
        env = self.plan_env
        foreign = self._foreign or state is not None
        if foreign:
            self._try_out(env.get_state() if state is None else state, [action], dt)
        result = env.step(action, state, dt, return_state)
        self._foreign = foreign and not (env.autoreset and (result.terminated or result.truncated))
        return result

    def view_state(self, states: Row) -> dict[str, Any]:
        """Return the named fields of states; see `PlanEnv.view_state`."""
        self._try_out(states, many=True)
        return self.plan_env.view_state(states)

    def _try_out(
        self, states: Any, actions: Any = None, dt: Any = 1, *, many: bool = False
    ) -> None:
        """With isolated lanes, have a worker do with `states` what is about to be done here.

        Only where damaged states could crash the simulator, whatever their checksum says. Errors of
        any kind but the worker's end are left to who asked: it meets them here as well.
        """
        env = self.plan_env
        if not (self.isolate and env.layout.format.checksum):
            return
        if actions is None:
            actions = [copy.deepcopy(env.action_space).sample()]
        try:
            inputs = env.layout.check(actions, states, dt, None)
            if inputs.count == 1 or many:
                self.batch_env.run(inputs, states=True, observations=True, blocking=True)
        except WorkerError as error:
            # The environment may raise errors of this kind about workers of its own.
            if not is_remote(error):
                raise
        except Exception:
            return

    # Batches

    def step_batch(
        self,
        actions: Any,
        states: Any = None,
        dt: Any = 1,
        return_state: bool | None = None,
        *,
        seeds: Any = None,
        blocking: bool = True,
        on_error: str = "raise",
    ) -> Any:
        """Step N states on all lanes; see `PlanEnv.step_batch`."""
        lanes = self._batch_env
        if lanes is None:
            lanes = self.batch_env
        wanted = return_state if return_state is not None else states is not None
        given = self.plan_env.get_state() if states is None else states
        inputs = lanes.layout.check(actions, given, dt, seeds, sums=False)
        masked = check_on_error(on_error)
        return self._run_audited(inputs, blocking, masked, wanted, True)

    make_transitions = step_batch

    def rollout_batch(
        self,
        actions: Any,
        states: Any = None,
        dt: Any = 1,
        *,
        seeds: Any = None,
        return_observations: bool = False,
        blocking: bool = True,
        on_error: str = "raise",
    ) -> Any:
        """Run T steps of N rows on all lanes; see `PlanEnv.rollout_batch`."""
        lanes = self.batch_env
        given = self.plan_env.get_state() if states is None else states
        inputs = lanes.layout.check(actions, given, dt, seeds, horizon=True, sums=False)
        masked = check_on_error(on_error)
        return self._run_audited(inputs, blocking, masked, True, return_observations)

    def _run_audited(
        self, inputs: Inputs, blocking: bool, masked: bool, states: bool, observations: bool
    ) -> Any:
        sample = self.plan_env.auditor.draw(inputs)
        result = self.batch_env.run(
            inputs, states=states, observations=observations, blocking=blocking, masked=masked
        )
        if sample is None:
            return result
        again = self.plan_env.run_elsewhere or self.plan_env.run_again
        return sample.audited(result, again)

    def _audit(self, env: PlanEnv, pool: Any) -> None:
        """Have rows audited in `env`, or in `pool` where rows are isolated from this process."""
        env.auditor.stats = pool.stats
        if self.isolate:
            env.run_elsewhere = partial(
                pool.run, states=True, observations=True, blocking=True, masked=True, audit=True
            )

    def sync_states(self, state: Row | None = None) -> None:
        """Make `state` the current state; workers hold none, so this is `set_state`."""
        if state is not None:
            self.set_state(state)

    def clone(self, **changed: Any) -> ParallelEnv:
        """Return another env built with the same arguments, but for `changed`."""
        other = ParallelEnv(**{**self._arguments, **changed})
        self._hand_state_to(other)
        return other

    def _hand_state_to(self, other: ParallelEnv) -> None:
        """Put a clone into the current state, unless that means something else to it."""
        if self._env is None or self._env._closed or other._env is None:
            return
        if self._env.layout.format != other._env.layout.format:
            return
        try:
            state = self._env.get_state()
            if self._foreign:
                other.set_state(state)
            else:
                other._env.set_state(state)
        except BaseException:
            other.close()
            raise

    def close(self) -> None:
        """Close processes and environment; results already returned stay valid."""
        if self._batch_env is not None:
            self._batch_env.close()
            self._batch_env = None
        if self._env is not None:
            self._env.close()
            self._env = None
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
