"""`EpisodeBatcher`: whole episodes on demand."""

from __future__ import annotations

from typing import Any

from plangym_like.batchers.episodes.assemble import Steps, assemble
from plangym_like.batchers.episodes.background_batcher import (
    BackgroundBatcher,
    checked_args,
)
from plangym_like.batchers.episodes.episode_loop import EpisodeArgs
from plangym_like.batchers.episodes.trajectories import Trajectories
from plangym_like.errors import InputError
from plangym_like.support.arguments import as_count


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
