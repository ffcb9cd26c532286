"""Whole episodes on demand."""

from __future__ import annotations

from typing import Any

from plangym_like.batchers.episodes.group_batcher import GroupBatcher
from plangym_like.batchers.episodes.harvest import checked_info
from plangym_like.batchers.episodes.player import Infos, Share
from plangym_like.batchers.episodes.trajectories import Trajectories
from plangym_like.errors import InputError


class EpisodeBatcher(GroupBatcher):
    """Plays whole episodes in the background, as many as are asked for.

    There is a group of environments for each seed, with an agent of its own. Groups are dealt to
    processes; which process plays a group, and how many there are, changes nothing in what comes of
    it. Neither does the number of slots.

    Parameters
    ----------
    n_timesteps : int
        How many steps a slot holds. Episodes may be longer: they go on in another slot.
    n_slots : int
        How many slots there are in all, in shared memory: what can be gathered until `get` is
        called. Each group has at least as many as environments, whatever is asked for.
    n_threads : int
        Processes, at most as many as groups; 0 plays in this process, within `get`.
    seeds : sequence of int, or int, or None
        One for each group: environment i of group k is seeded with ``seeds[k] + i``. Groups that
        would repeat each other's environments are moved apart, with a warning. A single number
        seeds one group for each process, ``None`` seeds them freshly.
    create_agent : callable
        ``create_agent(**agent_args)`` returns an `Agent`. It is called once a group, where the
        group lives, and draws the same numbers in each, so all begin with equal weights.
    agent_args : mapping, optional
    create_env : callable
        ``create_env(**env_args, seed=seed)`` returns a `VecEnv`, with equally many environments
        whatever the seed.
    env_args : mapping, optional
    start_method : {"forkserver", "spawn", "fork"}
        How processes are started; see `ExternalProcess`.
    timeout : float
        Seconds without a step after which a worker counts as hung.
    backend : {"process", "ray"}
        Whether workers are processes of this machine or actors on a Ray cluster, of which there are
        `n_threads` then; what is played is the same, and comes through Ray's object store.
    address, resources, runtime_env
        On a cluster, as in `plangym_like.RayEnv`; an actor claims one core unless told otherwise.

    Raises
    ------
    InputError
        Numbers that make no sense, or a backend that there is not.
    MissingExtraError
        Ray is not installed.

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
    _order: tuple[int, Infos] | None = None
    _executing = False

    def execute(self, n_episodes: int, agent_info: Any = None, env_info: Any = None) -> None:
        """Begin to play; never blocks.

        Episodes are played with the weights of the last `update`. Group by group they are dealt out
        in blocks, so row i is played in the same environment whatever the infos are.

        Parameters
        ----------
        n_episodes : int
            Any number from 1 up.
        agent_info, env_info : DictTensor, optional
            ``[n_episodes, ...]``, row i for episode i: what the agent is told at each of its steps,
            and the ``options`` that the environment is reset with.

        Raises
        ------
        InputError
            Rows that are not as many as episodes, or episodes that nobody has got yet.
        """
        self._usable()
        if isinstance(n_episodes, bool) or not isinstance(n_episodes, int) or n_episodes < 1:
            raise InputError(f"n_episodes is a whole number of at least 1, got {n_episodes!r}")
        infos = Infos(checked_info(agent_info, "agent_info"), checked_info(env_info, "env_info"))
        for name, info in zip(("agent_info", "env_info"), infos, strict=True):
            if info is not None and info.n_elems() != n_episodes:
                raise InputError(f"{name} has {info.n_elems()} rows for {n_episodes} episodes")
        self._start(n_episodes, infos)

    def reexecute(self) -> None:
        """Begin to play as many episodes again, with the same infos; never blocks.

        Raises
        ------
        InputError
            Nothing was executed before, or episodes that nobody has got yet.
        """
        self._usable()
        if self._order is None:
            raise InputError("nothing was executed before; call execute(n_episodes)")
        self._start(*self._order)

    def _start(self, n_episodes: int, infos: Infos) -> None:
        if self._executing:
            raise InputError("the episodes of the last execute have not been got yet; call get()")
        num_groups = len(self._seeds)
        orders = {}
        for group in range(num_groups):
            first, stop = (n_episodes * k // num_groups for k in (group, group + 1))
            if first < stop:
                share = Share(first, stop - first, infos.rows(first, stop))
                orders[group] = "episodes", share
        self._begin(orders)
        self._order, self._executing = (n_episodes, infos), True

    def get(self, blocking: bool = True, timeout: float | None = None) -> Trajectories | None:
        """Return the episodes that were executed, ``[n_episodes, T, ...]``, the user's to keep.

        Parameters
        ----------
        blocking : bool
            Whether to wait until all of them have ended.
        timeout : float, optional
            Seconds to wait at most.

        Returns
        -------
        Trajectories or None
            Row i is episode i; ``None`` without `blocking`, while they are being played.

        Raises
        ------
        BaseException
            What an environment, the agent or a factory raised, as its own type, caused by the
            remote traceback and with a note that names the worker. The batcher is closed then.
        WorkerDiedError
            A worker has died. The batcher is closed then.
        WorkerTimeoutError
            A worker hangs, and the batcher is closed; or it took longer than `timeout`, and nothing
            is lost.
        InputError
            Nothing was executed.
        """
        if self._order is None or not self._executing:
            self._raise_failure()
            raise InputError("there is nothing to get; call execute(n_episodes) first")
        if not self._gather(blocking, timeout):
            return None
        self._executing = False
        n_episodes, infos = self._order
        harvest, self._harvest = self._harvest, type(self._harvest)()
        return harvest.trajectories(range(n_episodes), *infos)
