"""Wrappers that depend on what no state row holds, each in another way."""

import random
from typing import Any

import gymnasium as gym
from hostile_wrappers import ClassCounter, NumpyGlobal


class _Paying(gym.Wrapper):
    """Adds something to each reward."""

    def pay(self) -> float:
        raise NotImplementedError

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(reward) + self.pay(), terminated, truncated, info


class CounterOnTheBase(_Paying):
    def pay(self) -> float:
        base: Any = self.unwrapped
        base.total = getattr(base, "total", 0) + 1
        return float(base.total)


class NoisyView(gym.ObservationWrapper):
    """Draws noise that it hardly ever uses from the observation space."""

    def observation(self, observation: Any) -> Any:
        self.observation_space.sample()
        return observation


class UnusedGlobalDraw(_Paying):
    """Draws from a global generator what it uses only rarely."""

    def pay(self) -> float:
        return float(random.random() < 1e-9)


REFUSED: dict[Any, str] = {
    CounterOnTheBase: "(the reward of step|total changed)",
    NoisyView: "draw from the generator of .*observation_space",
    ClassCounter: "the reward of step",
    NumpyGlobal: "draws from the global generator of numpy.random",
    UnusedGlobalDraw: "draw from the global generator of the module random",
}
