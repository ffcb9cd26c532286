"""MPPI's weights and control cost, by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import plangym_like
from plangym_like.planners import MPPI
from plangym_like.planners.continuous_plans import filtered


@pytest.fixture
def pendulum() -> Iterator[Any]:
    with plangym_like.make("Pendulum-v1") as env:
        env.reset(seed=0)
        yield env


def test_weights_without_a_control_cost(pendulum: Any) -> None:
    planner = MPPI(pendulum, horizon=2, temperature=2.0, relative=False)
    mean, noise = np.ones((2, 1)), np.zeros((3, 2, 1))
    weights = planner.weights(np.array([1.0, 3.0, 5.0]), mean, noise)
    # exp(-(S - min S) / 2) of the costs S = -1, -3, -5.
    by_hand = [math.exp(-2), math.exp(-1), 1.0]
    assert weights == pytest.approx(np.array(by_hand) / sum(by_hand))


def test_weights_with_a_control_cost(pendulum: Any) -> None:
    # Half the range of a torque is 2, so Σ = (0.25 * 2)**2 = 0.25 for each of both actions.
    planner = MPPI(
        pendulum, horizon=2, std=0.25, temperature=2.0, alpha=0.5, beta=0.0, relative=False
    )
    mean = np.array([[1.0], [-0.5]])
    noise = np.array([[[0.0], [0.0]], [[0.1], [0.2]], [[-0.3], [0.4]]])
    # u^T Σ^-1 ε = 4 * (1 * ε_0 - 0.5 * ε_1) = 0, 0, -2; the costs are half of it times λ = 2.
    weights = planner.weights(np.array([1.0, 2.0, 1.0]), mean, noise)
    costs = [-1.0 + 0.0, -2.0 + 0.0, -1.0 - 2.0]
    by_hand = [math.exp(-(cost + 3.0) / 2.0) for cost in costs]
    assert weights == pytest.approx(np.array(by_hand) / sum(by_hand))


def test_the_control_cost_of_coloured_noise_is_that_of_its_covariance(pendulum: Any) -> None:
    horizon = 5
    planner = MPPI(
        pendulum, horizon=horizon, std=0.5, temperature=1.0, alpha=0.0, beta=1.0, relative=False
    )
    filters = filtered(np.eye(horizon), np.sqrt(planner._power))
    covariance = filters.T @ filters  # of ε in time; the std of a torque is 1
    rng = np.random.default_rng(0)
    mean, noise = rng.normal(size=(horizon, 1)), rng.normal(size=(4, horizon, 1))
    costs = noise[..., 0] @ np.linalg.inv(covariance) @ mean[:, 0]
    by_hand = np.exp(costs.min() - costs)
    weights = planner.weights(np.zeros(4), mean, noise)
    assert weights == pytest.approx(by_hand / by_hand.sum())


def test_a_relative_temperature_does_not_depend_on_the_scale_of_rewards(pendulum: Any) -> None:
    planner = MPPI(pendulum, horizon=2)
    mean, noise = np.ones((2, 1)), np.zeros((3, 2, 1))
    returns = np.array([1.0, 3.0, 4.0])
    weights = planner.weights(returns, mean, noise)
    assert weights == pytest.approx(planner.weights(1000 * returns, mean, noise))
    assert planner.weights(np.ones(3), mean, noise) == pytest.approx([1 / 3] * 3)
