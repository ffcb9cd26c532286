"""`BackgroundBatcher`: the base class of `EpisodeBatcher` and `Batcher`."""

from __future__ import annotations

import abc
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from plangym_like.batchers.closing import Closable
from plangym_like.batchers.engine.backend import Backend
from plangym_like.batchers.engine.tensor_tree import tensor_over
from plangym_like.batchers.engine.worker_group import WorkerGroup
from plangym_like.batchers.episodes.assemble import Steps, read_part
from plangym_like.batchers.episodes.dict_tensor import DictTensor, has_tensors
from plangym_like.batchers.episodes.episode_loop import EpisodeArgs
from plangym_like.batchers.episodes.episode_worker import (
    WEIGHTS,
    EpisodePlan,
    EpisodeWorker,
    Progress,
    Weights,
    buffers_name,
    disjoint_seeds,
    first_env,
)
from plangym_like.batchers.episodes.trajectories import Trajectories
from plangym_like.batchers.episodes.vec_env import VecEnv
from plangym_like.batchers.start_states import StartStates
from plangym_like.errors import ClosedError, InputError, WorkerTimeoutError
from plangym_like.processes.child import interrupts_deferred
from plangym_like.support.arguments import as_count
from plangym_like.vector.lanes import whole_seeds
from plangym_like.vector.memory import SharedArrays
from plangym_like.vector.tree import Leaf, with_axes

# Seconds of one quantum in this process, so that `get` returns soon if it should not block.
_QUANTUM_SECONDS = 0.01
# If seeds differ by at least this much, the number of environments per group is not looked up.
_FAR = 10_000
_ASK_SECONDS = 20.0
# Seconds to collect results when the caller does not want to wait.
_GLANCE_SECONDS = 1e-4


class BackgroundBatcher(Closable):
    """Hosts groups of environments in workers or in this process, and collects their steps.

    See `EpisodeBatcher` for the parameters.
    """

    _endless: bool
    _is_executing = False

    def __init__(
        self,
        n_timesteps: int,
        n_slots: int,
        n_threads: int,
        seeds: int | Sequence[int] | None,
        create_agent: Callable[..., Any],
        agent_args: Mapping[str, Any] | None,
        create_env: Callable[..., VecEnv],
        env_args: Mapping[str, Any] | None,
        *,
        start_method: str = "forkserver",
        timeout: float = 30.0,
        backend: str = "process",
        address: str | None = None,
        resources: dict[str, Any] | None = None,
        runtime_env: dict[str, Any] | None = None,
    ) -> None:
        n_timesteps = as_count("n_timesteps", n_timesteps)
        n_slots = as_count("n_slots", n_slots)
        n_threads = as_count("n_threads", n_threads, 0)
        for name, factory in (("create_agent", create_agent), ("create_env", create_env)):
            if not callable(factory):
                raise InputError(f"{name} must be callable, got {type(factory).__name__}")
        self._seeds = _group_seeds(seeds, n_threads)
        self._n_timesteps, self._n_slots = n_timesteps, n_slots
        plan = EpisodePlan(
            create_agent,
            dict(agent_args or {}),
            create_env,
            dict(env_args or {}),
            self._seeds,
            n_timesteps,
            self._endless,
        )
        self._workers = WorkerGroup(
            partial(EpisodeWorker, plan),
            len(self._seeds),
            num_workers=n_threads,
            backend=Backend(
                backend,
                start_method=start_method,
                address=address,
                resources=resources,
                runtime_env=runtime_env,
            ),
            timeout=timeout,
            name=type(self).__name__,
            preload=("plangym_like.batchers.episodes.episode_worker",),
            sample=partial(first_env, create_env, plan.env_args, plan.seeds[0]),
        )
        self._in_process = n_threads == 0
        self._failure: BaseException | None = None
        self._n_envs: int | None = None
        self._buffers: dict[int, Any] = {}
        self._weights = Weights(0)
        self._new_weights: Any = None
        self._shared_weights: SharedArrays | None = None
        self._unfinished: set[int] = set()
        self._read: dict[int, list[int]] = {}
        self._num_running: dict[int, int] = {}
        self._steps: list[Steps] = []
        if min(np.diff(sorted(self._seeds)), default=_FAR) < _FAR:
            try:
                self._ask_n_envs()
            except BaseException:
                self.close()
                raise

    def _ask_n_envs(self) -> None:
        """Find out how many environments a group has, and check the seeds.

        If the call fails, `get` raises the error later.
        """
        job = self._workers.submit(0, "count_envs")
        try:
            is_known = self._workers.wait(_ASK_SECONDS, job) is not None
        except Exception as error:
            self._failure = error
            return
        if is_known:
            self._note_n_envs(job.result)

    def _note_n_envs(self, n_envs: int) -> None:
        if self._n_envs is not None:
            if n_envs != self._n_envs:
                self.close()
                raise InputError(
                    f"create_env made {n_envs} environments, and {self._n_envs} before; every "
                    "group must have the same number"
                )
            return
        self._n_envs = n_envs
        moved = disjoint_seeds(self._seeds, n_envs)
        if moved != list(self._seeds):
            warnings.warn(
                f"with {n_envs} environments per group, seeded with seed + i, the seeds "
                f"{list(self._seeds)} would repeat episodes; groups are seeded with {moved} "
                f"instead. Give seeds that are at least {n_envs} apart",
                stacklevel=4,
            )

    def update(self, state_dict: Any) -> None:
        """Pass `state_dict` to the `update` of every agent when the next `execute` begins.

        Parameters
        ----------
        state_dict : mapping of str to Tensor
            A mapping of tensors is copied. Any other object that the agents' `update` accepts is
            passed on unchanged.
        """
        self._check_open()
        if _is_state_dict(state_dict):
            state_dict = {key: value.detach().clone() for key, value in state_dict.items()}
        self._new_weights = state_dict

    def _publish_weights(self) -> Weights:
        """Publish the argument of `update`; call this only while no worker reads shared memory."""
        content, self._new_weights = self._new_weights, None
        if content is None:
            return self._weights
        sent = content
        if _is_state_dict(content):
            layout = {key: Leaf(tuple(x.shape), x.dtype) for key, x in content.items()}
            if self._shared_weights is None or self._shared_weights.layout != layout:
                if self._shared_weights is not None:
                    self._shared_weights.close()
                self._shared_weights = SharedArrays(layout, tensor_over)
                self._workers.share(WEIGHTS, self._shared_weights)
            for key, tensor in content.items():
                self._shared_weights.arrays[key].copy_(tensor)
            self._workers.mark_changed(WEIGHTS)
            sent = None
        self._weights = Weights(self._weights.version + 1, sent)
        return self._weights

    def _begin(self, orders: Mapping[int, tuple[Any, ...]]) -> None:
        """Submit what each group in `orders` is to play, and start its first quantum.

        `orders` maps each group to a tuple: the name of a method of `EpisodeWorker`, and then the
        arguments of that method, except the weights. The weights are appended here.
        """
        self._refuse_while_executing()
        # If a Ctrl-C came in between, the next call would begin some groups a second time.
        with interrupts_deferred():
            self._unfinished = set(orders)
            self._steps = []
            if self._failure is None:  # otherwise the next `get` raises the error
                weights = self._publish_weights()
                for group, order in orders.items():
                    self._workers.submit(group, *order, weights)
                    self._start_quantum(group, self._read.pop(group, []))
            self._is_executing = True

    def _refuse_while_executing(self) -> None:
        if self._is_executing:
            raise InputError("the result of the last execute has not been fetched yet; call get()")

    def _start_quantum(self, group: int, freed: list[int]) -> None:
        seconds = _QUANTUM_SECONDS if self._in_process else None
        self._workers.submit(group, "collect", freed, seconds)

    def get(self, blocking: bool = True, timeout: float | None = None) -> Trajectories | None:
        """Return the result of the last `execute`; the caller may change it.

        Parameters
        ----------
        blocking : bool
            Wait until the result is complete.
        timeout : float, optional
            The maximum number of seconds to wait.

        Returns
        -------
        Trajectories or None
            ``[B, T, ...]``. In an `EpisodeBatcher`, row i is episode i. In a `Batcher`, there is
            one row for each environment that was running, and T is at most `n_timesteps`. ``None``
            if `blocking` is false and the result is not complete, or if no environment of a
            `Batcher` was running.

        Raises
        ------
        BaseException
            The exception that an environment, the agent or a factory raised, with its own type, the
            remote traceback as its cause, and a note that names the worker. The batcher is closed.
        WorkerDiedError
            A worker has died. The batcher is closed.
        WorkerTimeoutError
            A worker hangs, and the batcher is closed; or `timeout` has passed, and no data is lost.
        InputError
            `execute` was not called, so no result is pending.
        """
        if not self._is_executing:
            self._raise_failure()
            raise InputError("there is nothing to get; call execute() first")
        if not self._gather(blocking, timeout):
            return None
        self._is_executing = False
        steps, self._steps = self._steps, []
        return self._assembled(steps)

    @abc.abstractmethod
    def _assembled(self, steps: list[Steps]) -> Trajectories | None:
        """Return the trajectories made of `steps`."""

    def _gather(self, blocking: bool, timeout: float | None) -> bool:
        """Read the buffers that workers have filled; return whether the result is complete."""
        self._raise_failure()
        deadline = None if timeout is None else time.monotonic() + timeout
        num_quanta = len(self._unfinished)
        while self._unfinished:
            if self._in_process and not blocking:
                if not num_quanta:
                    return False
                num_quanta -= 1
            left = None if deadline is None else max(deadline - time.monotonic(), _GLANCE_SECONDS)
            job = self._workers.wait(left if blocking else _GLANCE_SECONDS)
            if job is None:
                if not self._workers.num_pending:
                    raise ClosedError("an interrupt lost some steps; make another batcher")
                if not blocking:
                    return False
            elif job.method == "collect":
                self._take_in(job.group, job.result)
            elif job.method == "count_envs":
                self._note_n_envs(job.result)
            if self._unfinished and deadline is not None and time.monotonic() >= deadline:
                if blocking:
                    raise WorkerTimeoutError(self._what_is_missing(timeout))
        return True

    def _what_is_missing(self, timeout: float | None) -> str:
        pids = self._workers.pids or [os.getpid()]
        missing = ", ".join(f"{g} (pid {pids[g % len(pids)]})" for g in sorted(self._unfinished))
        return (
            f"not done after {timeout:g} s: groups {missing}. Nothing is lost; get() may be called "
            f"again, and a worker counts as hung after {self._workers.timeout:g} s without a step"
        )

    def _take_in(self, group: int, progress: Progress) -> None:
        self._note_n_envs(progress.n_envs)
        for part in progress.parts:
            self._steps.append(read_part(part, self._buffers[group][part.buffer]))
        freed = [part.buffer for part in progress.parts]
        if progress.finished:
            self._num_running[group] = progress.n_running
            self._read[group] = freed
            self._unfinished.discard(group)
            return
        if progress.layout is not None:
            # A slot is one lane's part of a buffer.
            num_buffers = max(self._n_slots // len(self._seeds) // progress.n_envs, 1)
            buffer = with_axes(progress.layout, (self._n_timesteps, progress.n_envs))
            name = buffers_name(group)
            self._buffers[group] = self._workers.make_buffers(name, buffer, num_buffers, group)
        self._start_quantum(group, freed)

    def _close(self) -> None:
        self._failure = None
        self._workers.close()
        self._unfinished.clear()
        if self._shared_weights is not None:
            self._shared_weights.close()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._check_open()


def checked_args(agent_info: Any, env_info: Any, states: Any) -> EpisodeArgs:
    """Check and copy the user's arguments, and return them."""
    return EpisodeArgs(_copied(agent_info), _copied(env_info), StartStates.of(states))


def _copied(info: Any) -> DictTensor | None:
    if info is None:
        return None
    given = info if isinstance(info, DictTensor) else DictTensor(dict(info.items()))
    return given.detach().clone().cpu() if has_tensors(given) else None


def _group_seeds(seeds: int | Sequence[int] | None, n_threads: int) -> tuple[int, ...]:
    """Return a seed for each group."""
    num_groups = max(n_threads, 1)
    if seeds is None:
        return tuple(int(seed) for seed in np.random.SeedSequence().generate_state(num_groups) >> 1)
    if np.ndim(seeds) == 0:
        (first,) = whole_seeds([seeds])
        assert first is not None
        seeds = [first + _FAR * group for group in range(num_groups)]
    found = tuple(seed for seed in whole_seeds(seeds) if seed is not None)  # type: ignore[arg-type]
    if not found or len(found) < len(seeds):  # type: ignore[arg-type]
        raise InputError(
            f"seeds must be whole numbers of at least 0, one for each group, got {seeds!r}"
        )
    if n_threads > len(found):
        raise InputError(
            f"n_threads={n_threads} needs at least {n_threads} seeds, one for each process, got "
            f"{len(found)}"
        )
    return found


def _is_state_dict(content: Any) -> bool:
    return isinstance(content, Mapping) and all(
        isinstance(value, torch.Tensor) for value in content.values()
    )
