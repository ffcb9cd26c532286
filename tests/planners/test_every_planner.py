"""What holds for every planner: budgets, workers, replays, wrong options, strange environments."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from every_planner import EVERY_PLANNER
from gymnasium import spaces
from suite import TAXI

import plangym_like
from plangym_like import planners
from plangym_like.cli.planner_classes import options_of, planner_classes
from plangym_like.errors import InputError, RewardError
from plangym_like.planners import Progress, play


@pytest.fixture(scope="module", params=[TAXI, "FrozenLake-v1", "Pendulum-v1"])
def envs(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One environment without workers and one with two; tests try every planner for it."""
    name = request.param
    with plangym_like.make(name) as env, plangym_like.make(name, n_workers=2) as parallel:
        every = EVERY_PLANNER.values()
        found = [(maker, least) for env_id, maker, least in every if env_id == name]
        yield env, parallel, found


def test_budgets_are_kept_and_plans_are_the_same_on_workers(envs: Any) -> None:
    env, parallel, found = envs
    start = env.reset(seed=1)  # with the mask of its info
    for maker, least in found:
        for budget in (least, 3 * least + 1, 700):
            plan, other = (maker(one).plan(start, budget=budget, seed=3) for one in (env, parallel))
            assert 0 < plan.spent.transitions <= budget
            assert 0 < plan.spent.seconds_in_env <= plan.spent.seconds
            assert len(plan) and plan.replay(env) == plan.score
            assert np.all(np.diff(plan.curve["score"]) >= 0)
            if len(plan.curve):
                assert plan.curve["score"][-1] == plan.score
            for name in ("actions", "dt", "rewards", "ended", "seeds"):
                np.testing.assert_equal(getattr(other, name), getattr(plan, name))
            assert other.spent.transitions == plan.spent.transitions
            assert np.array_equal(other.curve["score"], plan.curve["score"])
        if least > 1:
            with pytest.raises(InputError, match=f"budget of {least - 1} transitions is too small"):
                maker(env).plan(start, budget=least - 1)


def test_progress_ends_a_search(envs: Any) -> None:
    env, _, found = envs
    env.reset(seed=1)
    for maker, _ in found:
        calls = 0

        def end(progress: Progress) -> None:
            nonlocal calls
            calls += 1
            if calls >= 3:
                raise StopIteration

        plan = maker(env).plan(budget=10**9, seed=0, progress=end)
        # Only the mean is stepped after that, or deeper levels of a round with chance nodes.
        assert calls <= 8
        assert len(plan) and plan.replay(env) == plan.score
        calls = -3
        episode = play(maker(env), 10, budget=2_000, seed=0, progress=end)
        assert calls <= 8, "only the round that was under way is finished"
        assert 1 <= len(episode) < 6
        assert episode.replay(env) == episode.score


# A planner does not take a number for these.
FUNCTIONS = {
    *("cell_of", "cost", "evaluate", "features", "goal", "heuristic", "key", "legal", "observe"),
    *("reward", "terminal_value", "to_play"),
}


@pytest.mark.parametrize("name", planner_classes())
def test_options_that_are_refused(name: str) -> None:
    planner = planner_classes()[name]
    needed: Any = {"rollout": 5} if name == "puct" else {}
    is_continuous = issubclass(planner, planners.CEM.__mro__[1])
    with plangym_like.make("Pendulum-v1" if is_continuous else "FrozenLake-v1") as env:
        for option, default in options_of(planner).items():
            if option in FUNCTIONS:
                wrong, words = 3, f"{option} must be .*function"
            elif option == "variants":
                wrong, words = {"x": 1}, "variants must be a sequence of dicts"
            elif isinstance(default, bool) or option in ("spline", "stochastic"):
                continue
            elif isinstance(default, float) or option == "win":
                wrong, words = np.nan, f"{option} must be a finite number"
            else:
                wrong, words = -1, f"{option} must be a whole number of at least [01]"
            with pytest.raises(InputError, match=words):
                planner(env, **{**needed, option: wrong})
        with pytest.raises(TypeError, match=f"{planner.__name__} has no option 'foo'"):
            planner(env, **{**needed, "foo": 1})


@pytest.mark.parametrize("name", planner_classes())
def test_action_spaces_that_are_refused(name: str) -> None:
    planner = planner_classes()[name]
    if name in ("beam-search", "random-shooting", "fractal-monte-carlo", "go-explore"):
        return  # they take any space that can be sampled
    is_continuous = issubclass(planner, planners.CEM.__mro__[1])
    words = "needs continuous actions.*use UCT" if is_continuous else "one by one.*use CEM"
    made = plangym_like.make("CartPole-v1" if is_continuous else "Pendulum-v1")
    with made as env, pytest.raises(InputError, match=f"{planner.__name__} .*{words}"):
        planner(env)


@pytest.mark.parametrize(
    ("planner", "options", "words"),
    [
        (planners.CEM, {"elites": 200}, "elites must be less than batch = 200, got 200"),
        (planners.ICEM, {"elites": 51}, "elites must be at most batch / 2 = 50, got 51"),
        (planners.MPPI, {"variants": [1]}, r"variants must be a sequence of dicts, got \[1\]"),
        (planners.MPPI, {"variants": "a"}, "variants must be a sequence of dicts, got 'a'"),
        (planners.MPPI, {"beta": 1000}, "beta must be a finite number from 0 to 10"),
        (planners.CEM, {"knots": 31}, "knots must be at least 2, and at most horizon = 30, got 31"),
        (planners.CEM, {"knots": 4, "spline": "x"}, "spline must be one of 'zero', 'linear', 'cu"),
    ],
)
def test_options_that_do_not_fit_together(planner: Any, options: Any, words: str) -> None:
    with plangym_like.make("Pendulum-v1") as env, pytest.raises(InputError, match=words):
        planner(env, **options)


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
