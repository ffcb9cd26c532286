"""Discounts, rewards and values of last states that take the place of the environment's rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import plangym_like
from plangym_like.errors import InputError
from plangym_like.planners import CEM, ICEM, MPPI, PredictiveSampling
from plangym_like.planners.continuous_plans import Objective

PLANNERS = (CEM, ICEM, MPPI, PredictiveSampling)


def rightward(observations: Any, actions: Any) -> Any:
    """Reward torque to the right, and nothing else."""
    return actions[..., 0] + 0 * observations[..., 0]


def upright(observations: Any) -> Any:
    return 100.0 * observations[..., 0]


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_reward_takes_the_place_of_the_environment_s(planner: Any) -> None:
    env = plangym_like.make("Pendulum-v1")
    state = env.reset(seed=0).state
    plan = planner(env, horizon=8, reward=rightward).plan(state, budget=20_000, seed=0)
    assert plan.actions.mean() > 1.7
    assert plan.replay(env) == plan.score
    usual = planner(env, horizon=8).plan(state, budget=20_000, seed=0)
    assert usual.actions.mean() < 0
    assert usual.score > plan.score


@pytest.mark.parametrize("planner", PLANNERS)
def test_the_value_of_the_last_state_makes_a_short_plan_far_sighted(planner: Any) -> None:
    env = plangym_like.make("Pendulum-v1")
    state = env.reset(seed=0).state
    plans = [
        planner(env, horizon=6, batch=60, **more).plan(state, budget=20_000, seed=0)
        for more in ({}, {"terminal_value": upright}, {"terminal_value": upright, "discount": 0.1})
    ]
    ends = [env.rollout_batch(p.actions[None], state, return_observations=True) for p in plans]
    heights = [end.observations[0, -1, 0] for end in ends]
    assert heights[1] > heights[0] + 0.005
    assert heights[2] < heights[1]


def test_the_value_of_a_plan_is_that_of_the_formula() -> None:
    env = plangym_like.make("CartPole-v1")
    state = env.reset(seed=0).state
    plans = np.random.default_rng(0).integers(2, size=(20, 30))
    rollout = env.rollout_batch(plans, state, return_observations=True)
    over = rollout.terminateds[:, -1]
    assert 0 < over.sum() < 20

    def reward(observations: Any, actions: Any) -> Any:
        return observations[..., 2] + actions

    def terminal_value(observations: Any) -> Any:  # NaN where it does not count
        return np.where(abs(observations[:, 2]) > 0.2095, np.nan, 7.0 + observations[:, 0])

    found = Objective(0.9, reward, terminal_value).values(plans, rollout)
    for row in range(20):
        at, total = state, 0.0
        for time in range(30):
            step = env.step(plans[row, time], state=at)
            at = step.state
            total += 0.9**time * (step.obs[2] + plans[row, time])
            if step.terminated:
                break
        else:
            total += 0.9**30 * (7.0 + step.obs[0])
        assert found[row] == pytest.approx(total, rel=1e-6)


def test_a_time_limit_leaves_the_value_of_the_last_observation() -> None:
    env = plangym_like.make("Pendulum-v1", max_episode_steps=5)
    state = env.reset(seed=0).state
    plans = np.zeros((2, 9, 1))
    rollout = env.rollout_batch(plans, state, return_observations=True)
    found = Objective(0.5, terminal_value=lambda obs: 32.0 + obs[:, 0]).values(plans, rollout)
    rewards = rollout.rewards[0, :5] @ 0.5 ** np.arange(5)
    last = rollout.observations[0, 4, 0]
    np.testing.assert_allclose(found, rewards + 0.5**5 * (32.0 + last), rtol=1e-6)


def test_without_options_the_value_is_the_score() -> None:
    env = plangym_like.make("Pendulum-v1")
    state = env.reset(seed=0).state
    plans = [
        CEM(env, horizon=10, **more).plan(state, budget=6_000, seed=0)
        for more in ({}, {"discount": 1.0, "reward": None})
    ]
    np.testing.assert_array_equal(plans[0].actions, plans[1].actions)
    assert len(plans[1].curve) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"discount": 1.5}, "discount must be"),
        ({"reward": 3}, "reward must be a function, got 3"),
        ({"terminal_value": "x"}, "terminal_value must be a function"),
    ],
)
def test_invalid_options_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MPPI(plangym_like.make("Pendulum-v1"), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": lambda obs, actions: obs[:, 0, 0]}, "reward must return numbers of shape"),
        ({"terminal_value": lambda obs: obs}, "terminal_value must return numbers of shape"),
        ({"terminal_value": lambda obs: np.nan * obs[:, 0]}, "infinite or NaN"),
    ],
)
def test_a_function_that_is_wrong_is_an_error(options: dict[str, Any], message: str) -> None:
    env = plangym_like.make("Pendulum-v1")
    env.reset(seed=0)
    with pytest.raises(InputError, match=message):
        MPPI(env, horizon=5, **options).plan(budget=1_000, seed=0)
