"""Environments that a planner may stumble over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = self.place = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        self.place += int(np.sum(np.sign(np.asarray(action, float))))
        return self._observe(), self._reward(), self.time == 20, False, {}

    def _observe(self) -> Any:
        return np.array([self.time, self.place], np.float32)

    def _reward(self) -> float:
        return float(self.place)


class Weighted(Walk):
    """It takes real numbers, of which the second is always 1."""

    action_space = spaces.Box(np.array([-1.0, 1.0]), 1.0, dtype=np.float64)


class Broken(Walk):
    """Its reward is NaN on the right."""

    def _reward(self) -> float:
        return np.nan if self.place > 0 else 0.0


class BrokenWeighted(Weighted):
    _reward = Broken._reward


class Endless(Walk):
    """Its reward is infinite on the right."""

    def _reward(self) -> float:
        return -np.inf if self.place > 0 else 0.0


class Speaking(Walk):
    """Observations are text."""

    observation_space = spaces.Text(5)

    def _observe(self) -> Any:
        return "ab"[self.place % 2]


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


def _even(count: Callable[[Any], int], obs: Any) -> Any:
    """Return equal priors of three actions."""
    return np.full((count(obs), 3), 1 / 3), np.zeros(count(obs))


def _feature(obs: Any, infos: Any) -> Any:
    return np.zeros((len(obs), 1), int)


FINITE: dict[str, Callable[[Any], planners.Planner]] = {
    "random": partial(planners.RandomShooting, horizon=4),
    "beam": partial(planners.BeamSearch, width=4),
    "uct": partial(planners.UCT, rollout=3),
    "chance": partial(planners.UCT, rollout=3, outcomes=3),
    "open loop": partial(planners.OpenLoopMCTS, horizon=4),
    "puct": partial(planners.PUCT, evaluate=partial(_even, len)),
    "iw": partial(planners.IW, features=_feature),
    "rollout iw": partial(planners.RolloutIW, features=_feature),
    "best first": planners.BestFirst,
    "fractal": planners.FractalMonteCarlo,
}
CONTINUOUS: dict[str, Callable[[Any], planners.Planner]] = {
    "random": partial(planners.RandomShooting, horizon=4),
    "beam": partial(planners.BeamSearch, width=4),
    "cem": partial(planners.CEM, horizon=4, batch=20, elites=4),
    "icem": partial(planners.ICEM, horizon=4, batch=20, elites=4),
    "mppi": partial(planners.MPPI, horizon=4, batch=20, alpha=0.5),
}
CASES = [(Broken, one) for one in FINITE.values()]
CASES += [(Endless, one) for one in FINITE.values()]
CASES += [(BrokenWeighted, one) for one in CONTINUOUS.values()]


@pytest.fixture(scope="module")
def made() -> Iterator[Callable[[Any], Any]]:
    envs: dict[Any, Any] = {}

    def make(env_class: Any) -> Any:
        if env_class not in envs:
            envs[env_class] = plangym_like.make(env_class)
            envs[env_class].reset(seed=0)
        return envs[env_class]

    yield make
    for env in envs.values():
        env.close()


@pytest.mark.parametrize(("env_class", "planner"), CASES)
def test_rewards_that_cannot_be_compared_are_an_error(
    made: Any, env_class: Any, planner: Any
) -> None:
    reward = "-inf" if env_class is Endless else "nan"
    with pytest.raises(RewardError, match=rf"{env_class.__name__} returned the reward {reward}"):
        planner(made(env_class)).plan(budget=400, seed=0)


@pytest.mark.parametrize("env_class", [Speaking, Mixed, Growing])
@pytest.mark.parametrize("name", ["uct", "chance", "open loop", "puct", "beam", "best first"])
def test_observations_that_are_not_arrays(made: Any, env_class: Any, name: str) -> None:
    env = made(env_class)
    if name == "puct":
        # Sometimes, not all are evaluated: those that ended are left out.
        def count(obs: Any) -> int:
            return len(obs["told"] if isinstance(obs, dict) else obs)

        planner = planners.PUCT(env, partial(_even, count))
    else:
        planner = FINITE[name](env)
    plan = planner.plan(budget=400, seed=0)
    assert plan.replay(env) == plan.score


@pytest.mark.parametrize("name", CONTINUOUS)
def test_an_action_whose_bounds_are_equal(made: Any, name: str) -> None:
    env = made(Weighted)
    plan = CONTINUOUS[name](env).plan(budget=400, seed=0)
    assert plan.replay(env) == plan.score
    assert (plan.actions[:, 1] == 1.0).all()
