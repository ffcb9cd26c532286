"""UCT where the answer is known: slippery ice, many outcomes, a game of Ms. Pac-Man."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import plangym_like
from plangym_like.planners import UCT


def _optimum(env: Any, discount: float) -> np.ndarray:
    """Return the optimal values ``(S, A)`` of the actions of a toy text environment."""
    table = env.gym_env.unwrapped.P
    values = np.zeros((len(table), len(table[0])))
    for _ in range(500):
        best = values.max(axis=1)
        values = np.array(
            [
                [
                    sum(p * (r + discount * best[s] * (not ended)) for p, s, r, ended in outcomes)
                    for outcomes in actions.values()
                ]
                for actions in table.values()
            ]
        )
    return values


def test_values_on_slippery_ice_are_close_to_the_optimum() -> None:
    with plangym_like.make("FrozenLake-v1") as env:
        env.reset(seed=0)
        optimum = _optimum(env, 0.5)[14]
        plan = UCT(env, outcomes=4, discount=0.5, rollout=5).plan(
            env.make_state(s=14), budget=10_000, seed=0
        )
        assert plan.info["value"] == pytest.approx(optimum.max(), rel=0.1)
        assert np.nanmax(plan.info["values"]) == pytest.approx(optimum.max(), rel=0.06)
        assert optimum[plan.next_action] > 0.98 * optimum.max()
        assert plan.info["visits"].argmin() == optimum.argmin()
        assert plan.replay(env) == plan.score == 1.0


def test_few_outcomes_of_many_are_told_apart() -> None:
    with plangym_like.make("Blackjack-v1") as env:
        state = env.reset(seed=1).state
        spent = []
        for widening in (1.0, 0.5):
            planner = UCT(env, outcomes=5, widening=widening, rollout=3)
            plan = planner.plan(state, budget=2_000, seed=0)
            assert plan.replay(env) == plan.score
            spent.append(plan.info["visits"].sum() / plan.spent.transitions)
        assert spent[1] > spent[0], "known outcomes cost nothing"


def test_after_another_outcome_the_best_plan_is_forgotten() -> None:
    with plangym_like.make("FrozenLake-v1") as lake:
        lake.reset(seed=0)
        start, others = lake.make_state(s=14), 0
        for seed in range(3):
            for place in range(3):
                planner = UCT(lake, outcomes=4, rollout=5)
                plan = planner.plan(start, budget=800, seed=6 + 2 * seed)
                tree = planner._last[1].memory.tree
                first = int(np.flatnonzero(planner.actions == plan.actions[0])[0])
                outcomes = tree.outcomes_of(np.array([0]), np.array([first]))[0]
                seed_of_this = int(tree["seed"][outcomes[place % len(outcomes)]])
                played = lake.step_batch(plan.actions[:1], start, seeds=seed_of_this)
                planner.advance()
                after = planner.plan(played.states[0], budget=20, seed=1)
                assert after.replay(lake) == after.score
                others += seed_of_this != plan.seeds[0]
        assert others
