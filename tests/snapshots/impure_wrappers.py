"""Wrappers that depend on what no state row holds, each in another way."""

import random
from typing import Any

import gymnasium as gym
import numpy as np


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


class SpaceSampler(gym.Wrapper):
    """Sometimes takes another action."""

    def step(self, action: Any) -> Any:
        sampled = self.action_space.sample()
        return self.env.step(sampled if self.np_random.random() < 0.5 else action)


class NoisyView(gym.ObservationWrapper):
    """Draws noise that it hardly ever uses from the observation space."""

    def observation(self, observation: Any) -> Any:
        self.observation_space.sample()
        return observation


class ClassCounter(_Paying):
    total = 0

    def pay(self) -> float:
        ClassCounter.total += 1
        return float(ClassCounter.total)


class GlobalNoise(_Paying):
    def pay(self) -> float:
        return float(np.random.normal())


class UnusedGlobalDraw(_Paying):
    """Draws from a global generator what it uses only rarely."""

    def pay(self) -> float:
        return float(random.random() < 1e-9)


class RandomResets(gym.Wrapper):
    """Begins each episode in another way, with any seed; its steps are right."""

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        self.gain = float(np.random.normal())
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(reward) * self.gain, terminated, truncated, {**info, "gain": self.gain}


REFUSED: dict[Any, str] = {
    CounterOnTheBase: "(the reward of step|total changed)",
    SpaceSampler: r"((does|did) not repeat itself|draw from the generator of .*action_space)",
    NoisyView: "draw from the generator of .*observation_space",
    ClassCounter: "the reward of step",
    GlobalNoise: "draws from the global generator of numpy.random",
    UnusedGlobalDraw: "draw from the global generator of the module random",
}
