"""Wrappers with memories that a snapshot may miss, for environments of every family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers


class _Extra(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds what `extra` returns to each reward."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(reward) + self.extra(action), terminated, truncated, info

    def extra(self, action: Any) -> float:
        return 0.0


class OwnCounter(_Extra):
    """Counts in its own attribute, from zero in each episode."""

    count = 0

    def reset(self, **kwargs: Any) -> Any:
        self.count = 0
        return self.env.reset(**kwargs)

    def extra(self, action: Any) -> float:
        self.count += 1
        return float(self.count)


class CountsOnBase(_Extra):
    def reset(self, **kwargs: Any) -> Any:
        self.unwrapped.steps_so_far = 0  # type: ignore[attr-defined]
        return self.env.reset(**kwargs)

    def extra(self, action: Any) -> float:
        self.unwrapped.steps_so_far += 1  # type: ignore[attr-defined]
        return float(self.unwrapped.steps_so_far)  # type: ignore[attr-defined]


class ClassCounter(_Extra):
    total = 0

    def extra(self, action: Any) -> float:
        type(self).total += 1
        return type(self).total % 7 / 7


class SamplesAction(_Extra):
    def extra(self, action: Any) -> float:
        return float(np.sum(self.action_space.sample()))


class NumpyGlobal(_Extra):
    def extra(self, action: Any) -> float:
        return float(np.random.random())


class OwnGenerator(_Extra):
    """Draws from its own generator; pure if the generator is saved."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.generator = np.random.default_rng(3)

    def extra(self, action: Any) -> float:
        return float(self.generator.random())


class ChangesAction(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes into the action that it is given, if it is an array."""

    def step(self, action: Any) -> Any:
        if isinstance(action, np.ndarray) and action.ndim:
            action *= 0.5
        return self.env.step(action)


class PersistentInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Tells what it knows in one dict, which it keeps."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.told: dict[str, Any] = {"steps": 0, "path": []}

    def reset(self, **kwargs: Any) -> Any:
        obs, _ = self.env.reset(**kwargs)
        self.told["steps"] = 0
        self.told["path"].clear()
        return obs, self.told

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = self.env.step(action)
        self.told["steps"] += 1
        self.told["path"].append(self.told["steps"])
        return obs, reward, terminated, truncated, self.told


def nonlocal_counter(env: Any) -> Any:
    count = 0

    def change(reward: Any) -> float:
        nonlocal count
        count += 1
        return float(reward) + count % 7 / 7

    return wrappers.TransformReward(env, change)


WRAPPERS: tuple[Callable[[Any], Any], ...] = (
    *(OwnCounter, CountsOnBase, ClassCounter, SamplesAction, NumpyGlobal, OwnGenerator),
    *(ChangesAction, PersistentInfo, nonlocal_counter),
)
