"""Chunks of episodes, always equally long."""

from __future__ import annotations

from typing import Any

import torch

from plangym_like.batchers.episodes.group_batcher import GroupBatcher
from plangym_like.batchers.episodes.harvest import checked_info
from plangym_like.batchers.episodes.player import Infos
from plangym_like.batchers.episodes.trajectories import Trajectories
from plangym_like.errors import InputError


class Batcher(GroupBatcher):
    """Plays all environments on by `n_timesteps` steps at a time, in the background.

    The parameters are those of `EpisodeBatcher`. With a `GymInfEnv` there is no end to it; with
    a `GymEnv`, an environment whose episode has ended drops out, and its last chunk is shorter.

    Lane i of group k is row ``k * n_envs + i`` of the infos and, while all are running, of what
    comes back.

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

    _infos: Infos | None = None
    _executing = False

    @property
    def n_running(self) -> int | None:
        """How many environments go on after what `get` returned last; ``None`` before that."""
        return sum(self._num_running.values()) if self._num_running else None

    def reset(self, agent_info: Any = None, env_info: Any = None) -> None:
        """Start an episode in each of the environments; never blocks.

        Parameters
        ----------
        agent_info, env_info : DictTensor, optional
            A row for each environment of all groups: what the agent is told at each of its steps,
            and the ``options`` that the environment is reset with.
        """
        self._usable()
        self._refuse_while_executing()
        agent = checked_info(agent_info, "agent_info")
        self._infos = Infos(agent, checked_info(env_info, "env_info"))
        self._num_running.clear()
        if self._failure is None:
            for group in range(len(self._seeds)):
                self._crew.submit(group, "reset", self._infos)

    def execute(
        self, n_episodes: int | None = None, agent_info: Any = None, env_info: Any = None
    ) -> None:
        """Begin to play the next chunk; never blocks.

        Parameters
        ----------
        n_episodes : int, optional
            How many environments there are in all, for those who like to say it.
        agent_info : DictTensor, optional
            Rows that take the place of those that `reset` was given, from now on.
        env_info : DictTensor, optional
            Where it is given, the environments are reset with it first.
        """
        self._usable()
        self._refuse_while_executing()
        if self._infos is None or env_info is not None:
            self.reset(agent_info, env_info)
        agent = checked_info(agent_info, "agent_info")
        assert self._infos is not None
        if agent is not None:
            self._infos = Infos(agent, self._infos.env)
        self._begin(dict.fromkeys(range(len(self._seeds)), ("chunk", n_episodes, agent)))
        self._executing = True

    def reexecute(self) -> None:
        """Begin to play the next chunk, with everybody told the same as before; never blocks."""
        self.execute()

    def _refuse_while_executing(self) -> None:
        if self._executing:
            raise InputError("the chunk of the last execute has not been got yet; call get()")

    def get(self, blocking: bool = True, timeout: float | None = None) -> Trajectories | None:
        """Return the chunk that was executed, a row for each environment that was running.

        Parameters
        ----------
        blocking : bool
            Whether to wait until it is complete.
        timeout : float, optional
            Seconds to wait at most.

        Returns
        -------
        Trajectories or None
            ``[B, T, ...]`` with ``T`` at most `n_timesteps`, the user's to keep; ``None`` without
            `blocking` while it is being played, and for good when all environments have ended.

        Raises
        ------
        BaseException
            As `EpisodeBatcher.get` does.
        """
        if self._infos is None or not self._executing:
            self._raise_failure()
            raise InputError("there is nothing to get; call execute() first")
        if not self._gather(blocking, timeout):
            return None
        self._executing = False
        harvest, self._harvest = self._harvest, type(self._harvest)()
        rows = harvest.rows()
        if not rows:
            return None
        lanes = torch.tensor(rows)
        infos = (info if info is None else info[lanes] for info in self._infos)
        return harvest.trajectories(rows, *infos)
