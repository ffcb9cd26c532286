"""Wrappers that change the settings of Gymnasium's wrappers inside them."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers

import plangym_like


class RandomLimit(gymnasium.Wrapper):
    """Draws the length of each episode."""

    def __init__(self, env: Any) -> None:
        super().__init__(wrappers.TimeLimit(env, 20))

    def reset(self, **kwargs: Any) -> Any:
        result = self.env.reset(**kwargs)
        self.env._max_episode_steps = int(self.np_random.integers(3, 25))
        return result


class GrowingLimit(gymnasium.Wrapper):
    """Some actions make the episode longer."""

    def __init__(self, env: Any) -> None:
        super().__init__(wrappers.TimeLimit(env, 8))

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.env._max_episode_steps += int(action[0] > 0)
        return result


@pytest.mark.parametrize("snapshot", ["auto", "pickle", "replay"])
@pytest.mark.parametrize("kind", [RandomLimit, GrowingLimit])
def test_changed_settings_are_part_of_the_state(kind: Any, snapshot: str) -> None:
    with plangym_like.make("Pendulum-v1", wrappers=[kind], snapshot=snapshot) as env:
        assert env.exactness == "exact"
        state = env.reset(seed=1).state
        env.reset(seed=6)  # an episode with other settings, in the same environment
        raw = kind(gymnasium.make("Pendulum-v1").env)
        raw.reset(seed=1)
        for step in range(30):
            action = np.array([np.sin(step)], np.float32)
            _, reward, terminated, truncated, _ = raw.step(action)
            state, _, *told, _ = env.step(action, state)
            assert told == [reward, terminated, truncated]
            if truncated:
                break


class OtherLimits(gymnasium.Wrapper):
    """Each episode has another limit of the environment's own, whose effect is rare."""

    def reset(self, **kwargs: Any) -> Any:
        result = self.env.reset(**kwargs)
        limit = float(self.np_random.uniform(0.1, 0.4))
        base: Any = self.unwrapped
        name = "theta_threshold_radians" if hasattr(base, "gravity") else "goal_position"
        setattr(base, name, limit)
        return result


class Counting(gymnasium.Wrapper):
    """Changes nothing inside it."""

    total = 0

    def step(self, action: Any) -> Any:
        self.total += 1
        return self.env.step(action)


@pytest.mark.parametrize("name", ["CartPole-v1", "MountainCar-v0"])
def test_settings_whose_effect_is_rare_are_found(name: str) -> None:
    with plangym_like.make(name, wrappers=[OtherLimits]) as env:
        assert env.snapshot != "native" and env.exactness == "exact"
        state = env.reset(seed=0).state
        env.reset(seed=4)
        raw = OtherLimits(gymnasium.make(name).env)
        raw.reset(seed=0)
        for _ in range(12):
            told = list(raw.step(1)[1:4])
            state, _, *found, _ = env.step(1, state)
            assert found == told
            if told[1]:
                break
    with plangym_like.make(name, wrappers=[Counting]) as env:
        assert env.snapshot == "native"
