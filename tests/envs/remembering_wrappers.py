"""Wrappers that remember in every way that a row can hold, and chains of them."""

import enum
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from suite import needs


class Counting(gym.Wrapper):
    """Remembers in every plain way there is."""

    def __init__(self, env: gym.Env, scale: float = 1.0) -> None:
        super().__init__(env)
        self.scale = scale
        self.steps = 0
        self.best: float | None = None
        self.last: Any = None
        self.frames: deque = deque(maxlen=3)
        self.visits: dict[tuple[int, ...], int] = {}
        self.seen: set[int] = set()
        self.noise = np.random.default_rng(7)

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        self.steps, self.best, self.last = 0, None, None
        self.frames.clear()
        self.visits, self.seen = {}, set()
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        reward = float(reward) * self.scale + self.noise.normal()
        self.best = reward if self.best is None else max(reward, self.best)
        self.frames.append(obs)
        self.last = self.frames[0]
        cell = tuple(int(x) for x in np.sign(np.ravel(obs)))
        self.visits[cell] = self.visits.get(cell, 0) + 1
        self.seen.add(self.steps % 5)
        info = {"best": self.best, "first": self.last.sum(), "seen": len(self.seen), **info}
        return obs, reward + 1 / self.visits[cell], terminated, truncated, info


class Blender(gym.ObservationWrapper):
    """Keeps an array that it changes in place, and a view of it."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.ring = np.zeros((3, *env.observation_space.shape), np.float32)
        self.newest = self.ring[0]

    def observation(self, observation: Any) -> Any:
        self.ring = np.roll(self.ring, 1, axis=0)
        self.newest = self.ring[0]
        self.newest[...] = observation
        return self.ring.mean(axis=0)


class Tracker:
    def __init__(self) -> None:
        self.total = 0.0
        self.log: list[float] = []


class Tracking(gym.Wrapper):
    """Holds an object of its own class, and makes a new one in each reset."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.tracker = Tracker()

    def reset(self, **kwargs: Any) -> Any:
        self.tracker = Tracker()
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.tracker.total += float(reward)
        self.tracker.log = [*self.tracker.log[-3:], self.tracker.total]
        info = {"log": list(self.tracker.log)}
        return obs, self.tracker.total, terminated, truncated, info


class Late(Tracking):
    """Makes its helper in the first reset."""

    def __init__(self, env: gym.Env) -> None:
        gym.Wrapper.__init__(self, env)


class Mode(enum.Enum):
    CALM = 0
    WILD = 1


class Moody(gym.Wrapper):
    """An enumeration, a table of functions, a dynamic attribute, and the base's own generator."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.mode = Mode.CALM
        self.plans = [np.abs, np.negative]
        self.rng = env.unwrapped.np_random

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        self.rng = self.np_random
        vars(self).pop("late", None)
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self.rng.random() < 0.3:
            self.mode = Mode.WILD if self.mode is Mode.CALM else Mode.CALM
            self.plans = self.plans[::-1]
            self.late = float(self.np_random.random())
        info = {"mode": self.mode.value, "late": getattr(self, "late", None)}
        return self.plans[0](obs), reward, terminated, truncated, info


CHAINS: dict[str, tuple[str, list[Any]]] = {
    "time limit": ("CartPole-v1", [(wrappers.TimeLimit, {"max_episode_steps": 9})]),
    "autoreset": ("CartPole-v1", [wrappers.Autoreset]),
    "frame stack": ("CartPole-v1", [(wrappers.FrameStackObservation, {"stack_size": 4})]),
    "frame stack of zeros": (
        "Pendulum-v1",
        [(wrappers.FrameStackObservation, {"stack_size": 3, "padding_type": "zero"})],
    ),
    "delay": ("Pendulum-v1", [(wrappers.DelayObservation, {"delay": 5})]),
    "time": (
        "CartPole-v1",
        [(wrappers.TimeLimit, {"max_episode_steps": 50}), wrappers.TimeAwareObservation],
    ),
    "max and skip": ("CartPole-v1", [(wrappers.MaxAndSkipObservation, {"skip": 3})]),
    "normalised observations": ("Pendulum-v1", [wrappers.NormalizeObservation]),
    "normalised rewards": ("Pendulum-v1", [wrappers.NormalizeReward]),
    "sticky": ("CartPole-v1", [(wrappers.StickyAction, {"repeat_action_probability": 0.5})]),
    "sticky for long": (
        "Pendulum-v1",
        [
            (
                wrappers.StickyAction,
                {"repeat_action_probability": 0.4, "repeat_action_duration": (1, 5)},
            )
        ],
    ),
    "repeat": ("CartPole-v1", [(getattr(wrappers, "RepeatAction", None), {"num_repeats": 2})]),
    "functions": (
        "Pendulum-v1",
        [
            (wrappers.RescaleAction, {"min_action": np.float32(-1), "max_action": np.float32(1)}),
            (wrappers.TransformReward, {"func": lambda reward: reward / 10}),
            (wrappers.ClipReward, {"min_reward": -1.0, "max_reward": 0.0}),
            (wrappers.ReshapeObservation, {"shape": (3, 1)}),
        ],
    ),
    "many": (
        "CartPole-v1",
        [
            (wrappers.StickyAction, {"repeat_action_probability": 0.3}),
            (wrappers.TimeLimit, {"max_episode_steps": 30}),
            wrappers.NormalizeObservation,
            (wrappers.DelayObservation, {"delay": 2}),
            (wrappers.FrameStackObservation, {"stack_size": 3}),
            wrappers.NormalizeReward,
        ],
    ),
    "counting": ("Pendulum-v1", [(Counting, {"scale": 2.0})]),
    "blender": ("CartPole-v1", [Blender]),
    "tracking": ("CartPole-v1", [Tracking]),
    "late": ("CartPole-v1", [Late]),
    "moody": ("CartPole-v1", [Moody]),
    "the user's around Gymnasium's": (
        "CartPole-v1",
        [(wrappers.FrameStackObservation, {"stack_size": 2}), Counting, Tracking, Blender, Moody],
    ),
}
_NEWER = {"repeat": needs("gymnasium", "1.3")}
CHAIN_NAMES = [pytest.param(name, marks=_NEWER.get(name, ())) for name in CHAINS]
