"""PUCT: what it asks of priors and values, and how they guide it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from small_envs import BanditTree

import plangym_like
from plangym_like.errors import InputError
from plangym_like.planners import PUCT, play


@pytest.fixture
def bandit() -> Iterator[Any]:
    with plangym_like.make(BanditTree) as env:
        env.reset(seed=0)
        yield env


def _priors(obs: Any, *rows: float) -> Any:
    return np.tile(rows, (len(obs), 1))


@pytest.mark.parametrize("choice", [0, 1, 2])
def test_values_guide_the_search(bandit: Any, choice: int) -> None:
    def evaluate(obs: Any) -> Any:
        return _priors(obs, 1 / 3, 1 / 3, 1 / 3), 5.0 * (obs == 1 + choice)

    plan = PUCT(bandit, evaluate, batch=1).plan(budget=6, seed=0)
    assert plan.next_action == choice


def test_priors_guide_the_search(bandit: Any) -> None:
    def evaluate(obs: Any) -> Any:
        return _priors(obs, 0.0, 0.1, 0.9), np.zeros(len(obs))

    planner = PUCT(bandit, evaluate, batch=1, observe=lambda state: np.zeros(1, int))
    plan = planner.plan(budget=8, seed=0)
    assert plan.info["visits"][0] == 0, "a prior of 0 is never tried"
    assert plan.info["visits"].argmax() == 2
    assert np.array_equal(plan.info["prior"], [0.0, 0.1, 0.9])
    # Without an observation of the root, its priors are equal.
    plan = PUCT(bandit, evaluate, batch=1).plan(budget=8, seed=0)
    assert np.allclose(plan.info["prior"], 1 / 3)
    assert plan.info["visits"][0] > 0


def test_noise_is_mixed_into_the_priors_of_the_root(bandit: Any) -> None:
    def evaluate(obs: Any) -> Any:
        return _priors(obs, 0.0, 0.5, 0.5), np.zeros(len(obs))

    observe = np.zeros(1, int)
    planner = PUCT(bandit, evaluate, noise=0.25, observe=lambda state: observe)
    priors = np.array([planner.plan(budget=5, seed=seed).info["prior"] for seed in range(40)])
    assert np.allclose(priors.sum(axis=1), 1)
    assert np.all(priors[:, 0] == 0)
    assert np.all(priors[:, 1] >= 0.75 * 0.5)
    assert np.ptp(priors[:, 1]) > 0.1
    same = [planner.plan(budget=5, seed=7).info["prior"].tolist() for _ in range(2)]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("priors", "values", "words"),
    [
        (np.full((1, 2), 0.5), np.zeros(1), r"priors \(N, 3\) and values \(N,\), got shapes"),
        (np.full((1, 3), 1 / 3), np.zeros((1, 1)), r"got shapes \(1, 3\) and \(1, 1\)"),
        (np.full((2, 3), 1 / 3), np.zeros(1), r"got shapes \(2, 3\) and \(1,\)"),
        (np.array([[0.0, 1.0, 2.0]]), np.zeros(1), "probabilities with a sum of 1"),
        (np.array([[-0.5, 0.5, 1.0]]), np.zeros(1), "probabilities with a sum of 1"),
        (np.full((1, 3), np.nan), np.zeros(1), "probabilities with a sum of 1"),
        (np.full((1, 3), 1 / 3), np.array([np.inf]), "finite values"),
    ],
)
def test_evaluations_that_are_refused(bandit: Any, priors: Any, values: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        PUCT(bandit, lambda obs: (priors, values), batch=1).plan(budget=10, seed=0)


def test_rollouts_take_the_place_of_a_value() -> None:
    with plangym_like.make("CartPole-v1") as env:
        state = env.reset(seed=0).state
        planner = PUCT(env, rollout=20)
        assert play(planner, 40, state, budget=1_000, seed=0).score == 40
        plan = planner.plan(state, budget=210, seed=0)
        assert 190 <= plan.spent.transitions <= 210
        # Every return of random actions is from 1 to 21: a reward for each action until the end.
        assert 1 < plan.info["value"] <= 21


def test_values_and_rollouts_are_averaged() -> None:
    """On ice that is not slippery, random actions from the first state earn nothing in 2 steps."""
    with plangym_like.make("FrozenLake-v1", is_slippery=False) as env:
        state = env.reset(seed=0).state

        def evaluate(observations: Any) -> tuple[Any, Any]:
            return np.full((len(observations), 4), 0.25), np.full(len(observations), 3.0)

        half = PUCT(env, evaluate, rollout=1).plan(state, budget=8, seed=0)
        whole = PUCT(env, evaluate).plan(state, budget=4, seed=0)
        assert (half.info["value"], whole.info["value"]) == (1.5, 3.0)


def test_a_time_ends_a_search_that_finds_nothing_new(bandit: Any) -> None:
    def evaluate(obs: Any) -> Any:
        return _priors(obs, 1 / 3, 1 / 3, 1 / 3), np.zeros(len(obs))

    planner = PUCT(bandit, evaluate)
    plan = planner.plan(budget=200, seed=0)
    planner.advance()
    state = bandit.step_batch([plan.next_action], plan.state).states[0]
    rest = planner.plan(state, seconds=0.01, seed=0)
    assert rest.spent.transitions == 0, "the tree was complete"
    assert rest.ended and rest.replay(bandit) == rest.score
