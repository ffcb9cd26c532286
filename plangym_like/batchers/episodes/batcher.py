"""`EpisodeBatcher` plays whole episodes and `Batcher` chunks of equal length, in the background."""

from __future__ import annotations

import abc
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict

from plangym_like.batchers.episodes.envs import VecEnv
from plangym_like.batchers.episodes.loop import (
    WEIGHTS,
    EpisodeArgs,
    EpisodePlan,
    EpisodeWorker,
    Part,
    Progress,
    Weights,
    buffers_name,
    disjoint_seeds,
    first_env,
)
from plangym_like.batchers.episodes.trajectories import DictTensor, Trajectories, has_tensors
from plangym_like.batchers.stepping import StartStates
from plangym_like.batchers.trees import tensor_over
from plangym_like.batchers.workers.group import Backend, Closable, WorkerGroup
from plangym_like.errors import ClosedError, InputError, WorkerTimeoutError
from plangym_like.processes.child import interrupts_deferred
from plangym_like.support.arguments import as_count
from plangym_like.vector.lanes import whole_seeds
from plangym_like.vector.memory import SharedArrays
from plangym_like.vector.tree import Leaf, tree_map, with_axes


class Steps(NamedTuple):
    """Steps for n rows of the result, from time `start` on: `tensors` are ``(T, n, ...)``."""

    rows: torch.Tensor
    lengths: torch.Tensor
    start: int
    tensors: Any


def read_part(part: Part, buffer: Any) -> Steps:
    """Return a copy of the steps that `part` describes; `buffer` is the content of its buffer."""
    lengths = torch.tensor(part.lengths)
    (lanes,) = lengths.nonzero(as_tuple=True)
    longest = int(lengths.max())
    tensors = tree_map(lambda steps: steps[:longest, lanes], buffer)
    return Steps(part.first_row + lanes, lengths[lanes], part.start, tensors)


def assemble(parts: Sequence[Steps], rows: Sequence[int], args: EpisodeArgs) -> Trajectories:
    """Return the trajectories of `rows`, in this order, padded with zeros.

    Parameters
    ----------
    parts : sequence of Steps
    rows : sequence of int
        The rows to return, in ascending order.
    args : EpisodeArgs
        The arguments of the episodes, with one row for each of `rows`.
    """
    place = torch.full((max(rows) + 1,), -1)
    place[torch.tensor(rows)] = torch.arange(len(rows))
    lengths = torch.zeros(len(rows), dtype=torch.int64)
    for part in parts:
        lengths[place[part.rows]] += part.lengths
    longest = int(lengths.max())
    padding = torch.arange(longest) >= lengths[:, None]
    is_padded = bool(padding.any())

    def join(*tensors: torch.Tensor) -> torch.Tensor:
        first = tensors[0]
        whole = torch.zeros((len(rows), longest, *first.shape[2:]), dtype=first.dtype)
        for part, steps in zip(parts, tensors, strict=True):
            whole[place[part.rows], part.start : part.start + len(steps)] = steps.transpose(0, 1)
        if is_padded:
            whole.masked_fill_(padding.view(*padding.shape, *(1,) * (whole.ndim - 2)), 0)
        return whole

    steps = tree_map(join, *(part.tensors for part in parts))
    record = TensorDict(steps, batch_size=[len(rows), longest])
    return Trajectories(record, lengths, args.agent_info, args.env_info)


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
            preload=("plangym_like.batchers.episodes.loop",),
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


class EpisodeBatcher(BackgroundBatcher):
    """Plays any number of whole episodes in the background.

    For each seed there is a group of environments with its own agent. Processes host the groups.
    Results depend neither on the number of processes nor on the number of slots.

    Parameters
    ----------
    n_timesteps : int
        How many steps a slot holds. A longer episode continues in another slot.
    n_slots : int
        The number of slots in shared memory, which limits how many steps can be played before `get`
        reads them. Every group has at least one slot for each of its environments.
    n_threads : int
        The number of processes, at most one per group; 0 plays in this process, inside `get`.
    seeds : sequence of int, or int, or None
        One for each group: environment i of group k is seeded with ``seeds[k] + i``. If two groups
        would share seeds, the seeds of one are changed, with a warning. A single number makes one
        group per process. ``None`` does the same with fresh entropy.
    create_agent : callable
        ``create_agent(**agent_args)`` returns an `Agent`. It is called once per group, in the
        group's process. Each call draws the same random numbers, so all agents begin with equal
        weights.
    agent_args : mapping, optional
    create_env : callable
        ``create_env(**env_args, seed=seed)`` returns a `VecEnv`. The number of its environments
        must not depend on the seed.
    env_args : mapping, optional
    start_method : {"forkserver", "spawn", "fork"}
        How processes are started; see `ExternalProcess`.
    timeout : float
        Seconds without a step after which a worker counts as hung.
    backend : {"process", "ray"}
        Whether workers are processes on this machine or `n_threads` actors on a Ray cluster.
        Results are the same; actors send them through Ray's object store.
    address, resources, runtime_env
        Options for Ray, as in `plangym_like.RayEnv`. By default, each worker claims one core, or
        none if this program starts a local Ray.

    Raises
    ------
    InputError
        An argument is invalid.
    MissingExtraError
        `backend` is ``"ray"``, but Ray is not installed.

    Examples
    --------
    >>> import gymnasium
    >>> import torch
    >>> from plangym_like.batchers.episodes import Agent, DictTensor, GymEnv
    >>> class Right(Agent):
    ...     def __call__(self, state, observation, agent_info=None, history=None):
    ...         action = torch.ones(observation.n_elems(), dtype=torch.int64)
    ...         return DictTensor(), DictTensor({"action": action}), DictTensor()
    >>> def create_env(seed):
    ...     return GymEnv([gymnasium.make("CartPole-v1") for _ in range(2)], seed)
    >>> with EpisodeBatcher(50, 4, 0, [0], Right, {}, create_env, {}) as batcher:
    ...     batcher.execute(3)
    ...     trajectories = batcher.get()
    >>> trajectories.lengths.tolist() == trajectories["_reward"].sum(1).tolist()
    True
    """

    _endless = False
    _order: tuple[int, EpisodeArgs] | None = None

    def execute(
        self,
        n_episodes: int,
        agent_info: Any = None,
        env_info: Any = None,
        states: Any = None,
    ) -> None:
        """Begin to play episodes, without blocking.

        Episodes are played with the weights of the last `update`. Each group plays a contiguous
        block of rows, so which environment plays row i depends only on `n_episodes`.

        Parameters
        ----------
        n_episodes : int
            At least 1.
        agent_info, env_info : DictTensor, optional
            ``[n_episodes, ...]``, row i for episode i. The agent gets `agent_info` at each step;
            the environment's reset gets `env_info` as its ``options``.
        states : tuple, optional
            The states that the episodes begin in, as a tuple ``(rows, obs)`` of state rows, uint8
            ``(n_episodes, state_nbytes)``, and their observations ``(n_episodes, ...)``.

        Raises
        ------
        InputError
            An argument does not have `n_episodes` rows, or the last result was not fetched yet.
        """
        self._check_open()
        n_episodes = as_count("n_episodes", n_episodes)
        args = checked_args(agent_info, env_info, states)
        args.check(n_episodes, "episodes")
        self._start(n_episodes, args)

    def reexecute(self) -> None:
        """Play the same number of episodes again, with the same infos and states, without blocking.

        Raises
        ------
        InputError
            Nothing was executed before, or the last result has not been fetched yet.
        """
        self._check_open()
        if self._order is None:
            raise InputError("nothing was executed before; call execute(n_episodes)")
        self._start(*self._order)

    def _start(self, n_episodes: int, args: EpisodeArgs) -> None:
        num_groups = len(self._seeds)
        orders = {}
        for group in range(num_groups):
            first, stop = (n_episodes * k // num_groups for k in (group, group + 1))
            if first < stop:
                rows = args.rows(slice(first, stop))
                orders[group] = "episodes", first, stop - first, rows
        self._refuse_while_executing()
        self._order = n_episodes, args
        self._begin(orders)

    def _assembled(self, steps: list[Steps]) -> Trajectories:
        assert self._order is not None
        n_episodes, args = self._order
        return assemble(steps, range(n_episodes), args)


class Batcher(BackgroundBatcher):
    """Steps all environments `n_timesteps` times per `execute`, in the background.

    See `EpisodeBatcher` for the parameters. With a `GymInfEnv`, there is always another chunk. With
    a `GymEnv`, an environment is not stepped after the end of its episode, so its last chunk may be
    shorter.

    Row ``k * n_envs + i`` of the infos and states belongs to environment i of group k. As long as
    all environments are running, this is also its row in the result.

    Examples
    --------
    >>> import gymnasium
    >>> import torch
    >>> from plangym_like.batchers.episodes import Agent, DictTensor, GymInfEnv
    >>> class Right(Agent):
    ...     def __call__(self, state, observation, agent_info=None, history=None):
    ...         action = torch.ones(observation.n_elems(), dtype=torch.int64)
    ...         return DictTensor(), DictTensor({"action": action}), DictTensor()
    >>> def create_env(seed):
    ...     return GymInfEnv([gymnasium.make("CartPole-v1") for _ in range(2)], seed)
    >>> with Batcher(20, 2, 0, [0], Right, {}, create_env, {}) as batcher:
    ...     batcher.reset()
    ...     batcher.execute()
    ...     batcher.get()["frame"].shape
    torch.Size([2, 20, 4])
    """

    _endless = True
    _args: EpisodeArgs | None = None

    @property
    def n_running(self) -> int | None:
        """The number of environments still running at the last `get`.

        ``None`` if `get` has not been called since `reset`.
        """
        return sum(self._num_running.values()) if self._num_running else None

    def reset(self, agent_info: Any = None, env_info: Any = None, states: Any = None) -> None:
        """Start an episode in each of the environments, without blocking.

        Parameters
        ----------
        agent_info, env_info : DictTensor, optional
            One row for each environment of each group. The agent gets `agent_info` at each step;
            the environment's reset gets `env_info` as its ``options``.
        states : tuple, optional
            The states in which the episodes begin, as a pair ``(rows, obs)``: `rows` are the state
            rows (uint8, ``(num_envs, state_nbytes)``), `obs` the observations ``(num_envs, ...)``.
        """
        self._check_open()
        self._refuse_while_executing()
        args = checked_args(agent_info, env_info, states)
        with interrupts_deferred():
            self._args = args
            self._num_running.clear()
            if self._failure is None:
                for group in range(len(self._seeds)):
                    self._workers.submit(group, "reset", args)

    def execute(
        self,
        n_episodes: int | None = None,
        agent_info: Any = None,
        env_info: Any = None,
        states: Any = None,
    ) -> None:
        """Begin to play the next chunk, without blocking.

        Parameters
        ----------
        n_episodes : int, optional
            If given, it must equal the total number of environments.
        agent_info : DictTensor, optional
            Replaces the `agent_info` of `reset` from now on.
        env_info, states : optional
            If either is given, or `reset` was never called, the environments are first reset with
            these arguments.
        """
        self._check_open()
        self._refuse_while_executing()
        if self._args is None or env_info is not None or states is not None:
            self.reset(agent_info, env_info, states)
        agent_info = checked_args(agent_info, None, None).agent_info
        assert self._args is not None
        if agent_info is not None:
            self._args = self._args._replace(agent_info=agent_info)
        self._begin(dict.fromkeys(range(len(self._seeds)), ("chunk", n_episodes, agent_info)))

    def reexecute(self) -> None:
        """Begin to play the next chunk, with the same infos as before and without blocking."""
        self.execute()

    def _assembled(self, steps: list[Steps]) -> Trajectories | None:
        assert self._args is not None
        rows = sorted({row for part in steps for row in part.rows.tolist()})
        return assemble(steps, rows, self._args.rows(torch.tensor(rows))) if rows else None
