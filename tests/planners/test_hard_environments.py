"""Environments that a planner may stumble over."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import plangym_like
from plangym_like import planners
from plangym_like.errors import RewardError


class Walk(gymnasium.Env):
    """Steps to the left and to the right; a subclass changes one thing."""

    observation_space: Any = spaces.Box(-100, 100, (2,), np.float32)
    action_space: Any = spaces.Discrete(3)
    bad_reward = 0.0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = self.place = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        self.place += int(np.sum(np.sign(np.asarray(action, float))))
        reward = self.bad_reward if self.bad_reward and self.place > 0 else float(self.place)
        return self._observe(), reward, self.time == 20, False, {}

    def _observe(self) -> Any:
        return np.array([self.time, self.place], np.float32)


class Weighted(Walk):
    """It takes real numbers, of which the second is always 1."""

    action_space = spaces.Box(np.array([-1.0, 1.0]), 1.0, dtype=np.float64)


class Broken(Walk):
    bad_reward = np.nan


class Endless(Weighted):
    bad_reward = -np.inf


class Mixed(Walk):
    """Observations have text in them, as on MiniGrid."""

    observation_space = spaces.Dict(place=spaces.Discrete(100, start=-50), told=spaces.Text(5))

    def _observe(self) -> Any:
        return {"place": self.place, "told": "ab"[self.place % 2]}


class Growing(Walk):
    """Observations are sequences of different lengths."""

    observation_space = spaces.Sequence(spaces.Discrete(3))

    def _observe(self) -> Any:
        return (1,) * (self.time % 3)


@pytest.mark.parametrize(
    ("env_class", "planner", "reward"),
    [
        (Broken, planners.RandomShooting, "nan"),
        (Broken, planners.UCT, "nan"),
        (Broken, planners.BestFirst, "nan"),
        (Endless, partial(planners.CEM, batch=20, elites=4), "-inf"),
    ],
)
def test_rewards_that_cannot_be_compared(env_class: Any, planner: Any, reward: str) -> None:
    with plangym_like.make(env_class) as env:
        env.reset(seed=0)
        with pytest.raises(RewardError, match=f"{env_class.__name__} returned the reward {reward}"):
            planner(env, **{} if reward == "nan" else {"horizon": 4}).plan(budget=400, seed=0)


@pytest.mark.parametrize("env_class", [Mixed, Growing])
def test_observations_that_are_not_arrays(env_class: Any) -> None:
    def evaluate(obs: Any) -> Any:  # of some: those that ended are left out
        count = len(obs["told"] if isinstance(obs, dict) else obs)
        return np.full((count, 3), 1 / 3), np.zeros(count)

    with plangym_like.make(env_class) as env:
        env.reset(seed=0)
        for planner in (
            planners.PUCT(env, evaluate),
            planners.UCT(env, rollout=3, outcomes=3),
            planners.BeamSearch(env, width=4, key="obs"),
            planners.BestFirst(env, key="obs"),
        ):
            plan = planner.plan(budget=400, seed=0)
            assert plan.replay(env) == plan.score


def test_an_action_whose_bounds_are_equal() -> None:
    with plangym_like.make(Weighted) as env:
        env.reset(seed=0)
        for maker in (
            planners.RandomShooting,
            partial(planners.BeamSearch, width=4),
            partial(planners.ICEM, horizon=4, batch=20, elites=4),
            partial(planners.MPPI, horizon=4, batch=20, alpha=0.5),
        ):
            plan = maker(env).plan(budget=400, seed=0)
            assert plan.replay(env) == plan.score
            assert (plan.actions[:, 1] == 1.0).all()
