"""`Batcher`: plays episodes in chunks of equal length."""

from __future__ import annotations

from typing import Any

import torch

from plangym_like.batchers.episodes.assemble import Steps, assemble
from plangym_like.batchers.episodes.background_batcher import BackgroundBatcher, checked_args
from plangym_like.batchers.episodes.episode_loop import EpisodeArgs
from plangym_like.batchers.episodes.trajectories import Trajectories
from plangym_like.processes.child import interrupts_deferred


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
