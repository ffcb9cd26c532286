"""What UCT, open-loop MCTS and PUCT share: budgets, seeds, workers, replays, and known optima."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_envs import BanditTree

import plangym_like
from plangym_like.planners import PUCT, UCT, OpenLoopMCTS, play

Maker = Callable[..., Any]


def _uniform(obs: Any) -> tuple[Any, Any]:
    """Return equal priors of two actions, and the same value of all states."""
    return np.full((len(obs), 2), 0.5), np.zeros(len(obs))


def _puct(env: Any, **options: Any) -> PUCT:
    size = len(PUCT(env, _uniform).actions)
    return PUCT(
        env, lambda obs: (np.full((len(obs), size), 1 / size), np.zeros(len(obs))), **options
    )


ALL = [UCT, OpenLoopMCTS, _puct]


@pytest.mark.parametrize("maker", ALL)
def test_a_complete_tree_finds_the_best_choices(maker: Maker) -> None:
    with plangym_like.make(BanditTree) as env:
        env.reset(seed=0)
        plan = maker(env, **({"horizon": 2} if maker is OpenLoopMCTS else {})).plan(
            budget=5_000, seed=0
        )
        assert plan.actions.tolist() == [2, 1]
        assert plan.score == 0.9
        assert plan.next_action == 2
        # PUCT counts the value of a node that it evaluated, here 0, as one of its returns.
        assert plan.info["values"][1] == pytest.approx(0.6, abs=0.02)
        if maker is UCT:
            assert plan.info["values"] == pytest.approx([0.3, 0.6, 0.9])
            assert plan.info["value"] == pytest.approx(0.9)
        else:
            # Visits concentrate on the best choice, and the mean return goes to the optimum.
            assert plan.info["visits"][2] > 0.8 * plan.info["visits"].sum()
            assert plan.info["value"] == pytest.approx(0.9, abs=0.1)
        if maker is not OpenLoopMCTS:
            assert plan.spent.transitions <= 9 * 2 * 10, "no more than there is to find"
            assert plan.info["nodes"] == 13


@pytest.mark.parametrize(
    ("maker", "options"),
    [(UCT, {"outcomes": 4}), (OpenLoopMCTS, {"horizon": 2, "stochastic": True})],
)
def test_random_rewards_of_known_means(maker: Maker, options: dict[str, Any]) -> None:
    with plangym_like.make(BanditTree, random=True) as env:
        env.reset(seed=0)
        plan = maker(env, **options).plan(budget=10_000, seed=0)
        assert plan.next_action == 2
        assert plan.info["visits"][2] > 0.8 * plan.info["visits"].sum()
        assert plan.info["values"][2] == pytest.approx(0.9, abs=0.05)
        assert plan.info["values"][1] == pytest.approx(0.6, abs=0.1)
        # The plan is the luckiest one, and its seeds repeat the luck.
        assert plan.score == 1.0
        assert plan.seeds is not None
        assert plan.replay(env) == 1.0


@pytest.mark.parametrize(
    ("maker", "options"),
    [
        pytest.param(UCT, {"rollout": 10, "batch": 16}, marks=pytest.mark.full),
        (OpenLoopMCTS, {"horizon": 15, "batch": 16}),
    ],
)
def test_the_pole_is_held_in_closed_loop(maker: Maker, options: dict[str, Any]) -> None:
    with plangym_like.make("CartPole-v1") as env:
        state = env.reset(seed=0).state
        episode = play(maker(env, dt=4, **options), 125, state, budget=700, seed=0)
        assert episode.score == 500
        assert episode.replay(env) == 500


@pytest.mark.parametrize("maker", ALL)
def test_any_action_may_be_played(maker: Maker) -> None:
    with plangym_like.make("CartPole-v1") as env:
        state = env.reset(seed=0).state
        for action in (0, 1):
            planner = maker(env, batch=4)
            plan = planner.plan(state, budget=1_000, seed=0)
            planner.advance(action)
            after = env.step_batch([action], state).states[0]
            following = planner.plan(after, budget=40, seed=1)
            kept = plan.info["visits"][action]
            assert 0.5 * kept < following.info["visits"].sum() <= kept + 40
            planner.advance(action)
            elsewhere = planner.plan(state, budget=41, seed=1)
            assert elsewhere.info["visits"].sum() <= 41, "the action did not lead to this state"


def test_returns_after_advance_have_one_horizon() -> None:
    with plangym_like.make("CartPole-v1") as env:
        state = env.reset(seed=0).state
        planner = OpenLoopMCTS(env, horizon=8)
        lengths = []
        for _ in range(7):
            plan = planner.plan(state, budget=200, seed=0)
            # The pole stands for so few steps, so each return is the number of steps in it.
            assert np.nanmax(plan.info["values"]) == np.nanmin(plan.info["values"])
            assert np.nanmax(plan.info["values"]) == len(plan)
            lengths.append(len(plan))
            state = env.step_batch([plan.next_action], state).states[0]
            planner.advance()
        assert lengths == [8, 7, 6, 5, 4, 8, 7]
