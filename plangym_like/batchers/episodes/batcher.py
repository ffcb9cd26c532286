"""`EpisodeBatcher` plays whole episodes and `Batcher` chunks of equal length, in the background."""

from __future__ import annotations

import abc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from plangym_like.batchers.episodes.envs import VecEnv
from plangym_like.batchers.episodes.loop import (
    EpisodeArgs,
    EpisodePlan,
    EpisodeWorker,
    Played,
)
from plangym_like.batchers.episodes.trajectories import (
    DictTensor,
    Steps,
    Trajectories,
    assemble,
    has_tensors,
)
from plangym_like.batchers.trees import as_tensors, clone_tree
from plangym_like.batchers.workers.group import Closable, Job, Workers
from plangym_like.batchers.workers.remote import start_workers
from plangym_like.errors import InputError, WorkerTimeoutError
from plangym_like.processes.child import interrupts_deferred
from plangym_like.support.arguments import as_count
from plangym_like.vector.lanes import whole_seeds
from plangym_like.vector.start_states import StartStates

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
        n_threads: int | Workers,
        seeds: int | Sequence[int] | None,
        create_agent: Callable[..., Any],
        agent_args: Mapping[str, Any] | None,
        create_env: Callable[..., VecEnv],
        env_args: Mapping[str, Any] | None,
    ) -> None:
        self._n_timesteps = as_count("n_timesteps", n_timesteps)
        as_count("n_slots", n_slots)
        if not isinstance(n_threads, Workers):
            n_threads = Workers(as_count("n_threads", n_threads, 0))
        for name, factory in (("create_agent", create_agent), ("create_env", create_env)):
            if not callable(factory):
                raise InputError(f"{name} must be callable, got {type(factory).__name__}")
        plan = EpisodePlan(
            create_agent,
            dict(agent_args or {}),
            create_env,
            dict(env_args or {}),
            _group_seeds(seeds, n_threads.n),
            self._n_timesteps,
            self._endless,
        )
        self._workers = start_workers(
            partial(EpisodeWorker, plan),
            len(plan.seeds),
            n_threads,
            name=type(self).__name__,
            preload=("plangym_like.batchers.episodes.loop",),
        )
        self._in_process = n_threads.n == 0
        self._n_envs: int | None = None
        # The environments of each group that were running in the end; ``None`` if not known.
        self._n_running: list[int | None] = [None for _ in plan.seeds]
        # The groups that have jobs for the pending result.
        self._playing: set[int] = set()
        self._new_weights: Any = None
        self._done: list[Job] = []

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
            state_dict = clone_tree({key: value.detach() for key, value in state_dict.items()})
        self._new_weights = state_dict

    def _send_weights(self) -> None:
        """Send the argument of `update` to all groups, if there is a new one."""
        content = self._new_weights
        if _is_state_dict(content):
            self._workers.publish(content)
        elif content is not None:
            for group in range(len(self._n_running)):
                self._workers.submit(group, "update", content)
        self._new_weights = None  # not before, so that they are sent again after an error

    def _begin(self, orders: Mapping[int, tuple[Any, ...]]) -> None:
        """Submit what each group in `orders` is to play.

        `orders` maps each group to the name of a method of `EpisodeWorker` and its arguments.
        """
        self._refuse_while_executing()
        # If a Ctrl-C came in between, the next call would begin some groups a second time.
        with interrupts_deferred():
            self._send_weights()
            for index, order in orders.items():
                self._workers.submit(index, *order)
            self._playing = set(orders)
            self._is_executing = True

    def _refuse_while_executing(self) -> None:
        if self._is_executing:
            raise InputError("the result of the last execute has not been fetched yet; call get()")

    def get(self, blocking: bool = True, timeout: float | None = None) -> Trajectories | None:
        """Return the result of the last `execute`; the caller may change it.

        Parameters
        ----------
        blocking : bool
            Wait until the result is complete. If not, and if this process does the work, each call
            plays the episodes of one group.
        timeout : float, optional
            The maximum number of seconds to wait. If this process does the work, the episodes of a
            group are played to their end.

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
        self._check_open()
        if not self._is_executing:
            raise InputError("there is nothing to get; call execute() first")
        if not self._gather(blocking, timeout):
            return None
        self._is_executing = False
        steps = [as_tensors(part) for job in self._done for part in job.result.steps]
        result = self._assembled(steps)
        for job in self._done:
            self._workers.release(job)
        self._done = []
        return result

    @abc.abstractmethod
    def _assembled(self, steps: list[Steps]) -> Trajectories | None:
        """Return the trajectories made of `steps`."""

    def _gather(self, blocking: bool, timeout: float | None) -> bool:
        """Read the results of jobs that are done; return whether the whole result is complete."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._playing:
            left = None if deadline is None else max(deadline - time.monotonic(), _GLANCE_SECONDS)
            is_done = self._workers.wait_until_done(timeout=left if blocking else _GLANCE_SECONDS)
            if is_done:
                # A Ctrl-C must not lose steps.
                with interrupts_deferred():
                    job = self._workers.wait(0.0)
                    assert job is not None
                    self._take_in(job)
            if not blocking and (self._in_process or not is_done):
                break
            is_late = deadline is not None and time.monotonic() >= deadline
            if timeout is not None and is_late and self._playing:
                hosts = self._workers.num_workers
                groups = [
                    f"{g} ({self._workers.describe(g % hosts)})" for g in sorted(self._playing)
                ]
                raise WorkerTimeoutError(
                    f"not done after {timeout:g} s: groups {', '.join(groups)}. Nothing is lost; "
                    "get() may be called again, and a worker counts as hung after "
                    f"{self._workers.options.timeout:g} s without a step"
                )
        return not self._playing

    def _take_in(self, job: Job) -> None:
        """Note what a group has played."""
        played = job.result
        if isinstance(played, Played):
            self._playing.remove(job.group)
            self._note_n_envs(played.n_envs)
            self._n_running[job.group] = played.n_running
            self._done.append(job)

    def _count_lanes(self) -> int:
        """Return the number of environments of all groups; wait until a worker has made some."""
        if self._n_envs is None:
            self._note_n_envs(self._workers.run(0, "count_envs"))
        assert self._n_envs is not None
        return self._n_envs * len(self._n_running)

    def _note_n_envs(self, n_envs: int) -> None:
        if self._n_envs is not None and n_envs != self._n_envs:
            self.close()
            raise InputError(
                f"create_env made {n_envs} environments, and {self._n_envs} before; every group "
                "must have the same number"
            )
        self._n_envs = n_envs

    def _close(self, timeout: float) -> None:
        self._workers.close(timeout)


class EpisodeBatcher(BackgroundBatcher):
    """Plays any number of whole episodes in the background.

    For each seed there is a group of environments with its own agent. Processes host the groups.
    Results do not depend on the number of processes.

    Parameters
    ----------
    n_timesteps : int
        The length of the chunks of a `Batcher`; episodes may have any length.
    n_slots : int
        Has no effect; in rlstructures, the number of slots of shared memory.
    n_threads : int or Workers
        The number of processes, at most one per group; 0 plays in this process, inside `get`.
        `plangym_like.batchers.Workers` have more options. Results are the same with all of them.
    seeds : sequence of int, or int, or None
        One for each group; all must be different. A single number makes one group per process, and
        determines the seeds of all. ``None`` does the same with fresh entropy.
    create_agent : callable
        ``create_agent(**agent_args)`` returns an `Agent`. It is called once per group, in the
        group's process. Each call draws the same random numbers, so all agents begin with equal
        weights.
    agent_args : mapping, optional
    create_env : callable
        ``create_env(**env_args, seed=seed)`` returns a `VecEnv`. The number of its environments
        must not depend on the seed.
    env_args : mapping, optional

    Raises
    ------
    InputError
        An argument is invalid.

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
        num_groups = len(self._n_running)
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
        return assemble(steps, range(n_episodes), args.agent_info, args.env_info)


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
        counts = [count for count in self._n_running if count is not None]
        return sum(counts) if counts else None

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

        Raises
        ------
        InputError
            An argument does not have one row for each environment, or the last result has not been
            fetched yet.
        """
        self._check_open()
        self._refuse_while_executing()
        args = checked_args(agent_info, env_info, states)
        if any(part is not None for part in args):
            args.check(self._count_lanes(), "environments")
        with interrupts_deferred():
            self._args = args
            for index in range(len(self._n_running)):
                self._n_running[index] = None
                self._workers.submit(index, "reset", args)

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

        Raises
        ------
        InputError
            An argument does not fit the number of environments, or the last result has not been
            fetched yet.
        """
        self._check_open()
        self._refuse_while_executing()
        agent_info = checked_args(agent_info, None, None).agent_info
        if n_episodes is not None and n_episodes != self._count_lanes():
            raise InputError(
                f"a Batcher plays all of its {self._count_lanes()} environments, not {n_episodes}; "
                "an EpisodeBatcher plays any number of episodes"
            )
        if agent_info is not None:
            EpisodeArgs(agent_info).check(self._count_lanes(), "environments")
        if self._args is None or env_info is not None or states is not None:
            self.reset(agent_info, env_info, states)
        assert self._args is not None
        if agent_info is not None:
            self._args = self._args._replace(agent_info=agent_info)
        self._begin(dict.fromkeys(range(len(self._n_running)), ("chunk", agent_info)))

    def reexecute(self) -> None:
        """Begin to play the next chunk, with the same infos as before and without blocking."""
        self.execute()

    def _assembled(self, steps: list[Steps]) -> Trajectories | None:
        assert self._args is not None
        rows = sorted({row for part in steps for row in part.rows.tolist()})
        if not rows:
            return None
        args = self._args.rows(torch.tensor(rows))
        return assemble(steps, rows, args.agent_info, args.env_info)


def checked_args(agent_info: Any, env_info: Any, states: Any) -> EpisodeArgs:
    """Check and copy the user's arguments, and return them."""
    return EpisodeArgs(_copied(agent_info), _copied(env_info), StartStates.of(states))


def _copied(info: Any) -> DictTensor | None:
    if info is None:
        return None
    given = info if isinstance(info, DictTensor) else DictTensor(dict(info.items()))
    return given.detach().clone().cpu() if has_tensors(given) else None


def _group_seeds(seeds: int | Sequence[int] | None, num_workers: int | None) -> tuple[int, ...]:
    """Return a seed for each group.

    Raises
    ------
    InputError
        There are fewer seeds than workers, two are equal, or one is not a whole number.
    """
    if seeds is None or np.ndim(seeds) == 0:
        entropy = None if seeds is None else whole_seeds([seeds])[0]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        num_groups = (cores or 1) if num_workers is None else max(num_workers, 1)
        words = np.random.SeedSequence(entropy).generate_state(num_groups)
        return tuple(int(word) >> 1 for word in words)
    found = tuple(seed for seed in whole_seeds(seeds) if seed is not None)  # type: ignore[arg-type]
    if not found or len(found) < len(seeds):  # type: ignore[arg-type]
        raise InputError(
            f"seeds must be whole numbers of at least 0, one for each group, got {seeds!r}"
        )
    if len(set(found)) < len(found):
        raise InputError(f"groups with equal seeds would play equal episodes, got {seeds!r}")
    if (num_workers or 0) > len(found):
        raise InputError(
            f"n_threads={num_workers} needs at least {num_workers} seeds, one for each process, "
            f"got {len(found)}"
        )
    return found


def _is_state_dict(content: Any) -> bool:
    return isinstance(content, Mapping) and all(
        isinstance(value, torch.Tensor) for value in content.values()
    )
