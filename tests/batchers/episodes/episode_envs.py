"""Environments and agents whose every number says where it comes from; workers import them too."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from plangym_like.batchers.episodes import Agent, DictTensor, GymEnv, GymInfEnv, Trajectories

END = 7


class Count(gymnasium.Env[Any, Any]):
    """Shows how many steps it has made; a step earns ten times that plus the action; 7 are all.

    Options: ``end`` for another end, ``mark`` for what is shown as a second number.
    """

    observation_space = spaces.Box(-1, 10_000, (2,), np.float32)
    action_space = spaces.Discrete(10)

    def __init__(self, cut: int | None = None) -> None:
        self.cut = cut

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        options = options or {}
        self.index, self.end = 0, int(options.get("end", END))
        self.mark = options.get("mark", -1)
        return self._show(), {}

    def _show(self) -> Any:
        return np.array([self.index, self.mark], np.float32)

    def step(self, action: Any) -> Any:
        reward = 10.0 * self.index + int(action)
        self.index += 1
        return self._show(), reward, self.index >= self.end, self.index == self.cut, {}


class Chance(Count):
    """The same, showing what the environment draws and what NumPy's global generator draws."""

    def _show(self) -> Any:
        return np.array([self.np_random.uniform(), np.random.uniform()], np.float32)


def count_env(seed: int, n_envs: int = 4, **options: Any) -> GymEnv:
    return GymEnv([Count(**options) for _ in range(n_envs)], seed)


class WaitingCount(Count):
    """Does not begin an episode before there is a file at `path`."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = Path(path)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        while not self.path.exists():
            time.sleep(0.01)
        return super().reset(seed=seed, options=options)


def waiting_env(seed: int, path: str, n_envs: int = 4) -> GymEnv:
    return GymEnv([WaitingCount(path) for _ in range(n_envs)], seed)


def endless_count_env(seed: int, n_envs: int = 4) -> GymInfEnv:
    return GymInfEnv([Count() for _ in range(n_envs)], seed)


def chance_env(seed: int, n_envs: int = 3) -> GymEnv:
    return GymEnv([Chance() for _ in range(n_envs)], seed)


def cart_pole_env(seed: int, n_envs: int = 3) -> GymEnv:
    return GymEnv([gymnasium.make("CartPole-v1") for _ in range(n_envs)], seed)


class Counter(Agent):
    """Counts its own steps, answers 1 after each even number of them, or what it is told to."""

    def __call__(self, state: Any, observation: Any, agent_info: Any = None, history: Any = None):
        n = observation.n_elems()
        if state is None:
            state = DictTensor({"steps": torch.zeros(n, dtype=torch.int64)})
        action = 1 - state["steps"] % 2 if agent_info is None else agent_info["answer"]
        new_state = DictTensor({"steps": state["steps"] + 1})
        return state, DictTensor({"action": action, "twice": 2.0 * action}), new_state


class Weighted(Agent, torch.nn.Module):
    """Answers with its weight, which is drawn at first."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.weight = torch.nn.Parameter(torch.randint(10, (1,)).float())

    def __call__(self, state: Any, observation: Any, agent_info: Any = None, history: Any = None):
        action = self.weight.long().expand(observation.n_elems())
        return DictTensor(), DictTensor({"action": action}), DictTensor()


class Noisy(Agent):
    """Answers by chance, and says what else it drew."""

    def __call__(self, state: Any, observation: Any, agent_info: Any = None, history: Any = None):
        n = observation.n_elems()
        answer = {"action": torch.randint(2, (n,)), "noise": torch.rand(n, 2)}
        return DictTensor(), DictTensor(answer), DictTensor()


class Rememberer(Counter):
    """Says how much of the episode it is shown, and the sum of the rewards in it."""

    def require_history(self) -> bool:
        return True

    def __call__(self, state: Any, observation: Any, agent_info: Any = None, history: Any = None):
        state, action, new_state = super().__call__(state, observation, agent_info)
        n = observation.n_elems()
        assert history is None or isinstance(history, Trajectories)
        known = torch.zeros(n) if history is None else history["_reward"].sum(1)
        length = torch.zeros(n).long() if history is None else history.lengths
        action = DictTensor({**dict(action.items()), "known": known, "length": length})
        return state, action, new_state


class Harmful(Count):
    """Does harm on its third step: ``raise``, ``kill``, ..."""

    def __init__(self, harm: str) -> None:
        super().__init__()
        self.harm = harm

    def step(self, action: Any) -> Any:
        if self.index == 2:
            if self.harm == "raise":
                raise LookupError("the pole has gone")
            if self.harm == "interrupt":
                raise KeyboardInterrupt
            if self.harm == "stop":
                raise StopIteration
            if self.harm == "exit":
                raise SystemExit(0)
            if self.harm == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def harmful_env(seed: int, harm: str, only: int | None = None) -> GymEnv:
    harm = harm if only is None or seed == only else ""
    return GymEnv([Count(), Harmful(harm)], seed)
