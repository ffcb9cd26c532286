"""What UCT, open-loop MCTS and PUCT share: budgets, seeds, workers, replays, and known optima."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_envs import BanditTree
from suite import TAXI
from usual import first_of

import plangym_like
from plangym_like.errors import InputError
from plangym_like.planners import PUCT, UCT, OpenLoopMCTS, Planner, play

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
def test_the_budget_is_never_exceeded(maker: Maker) -> None:
    with plangym_like.make("CartPole-v1") as env:
        env.reset(seed=0)
        for budget in (20, 21, 100, 1_003):
            plan = maker(env).plan(budget=budget, seed=0)
            assert 0 < plan.spent.transitions <= budget
            assert plan.curve["score"][-1] == plan.score
            assert np.all(np.diff(plan.curve["score"]) >= 0)


@pytest.mark.parametrize("maker", ALL)
@pytest.mark.parametrize("options", first_of([{"random": True}, {}]), ids=["random", ""])
def test_the_same_seed_gives_the_same_plan_for_any_number_of_workers(
    maker: Maker, options: dict[str, Any]
) -> None:
    found = []
    name = BanditTree if options else TAXI
    chance = {"outcomes": 4} if maker is UCT else {"stochastic": True}
    for n_workers in (None, 2):
        with plangym_like.make(name, n_workers=n_workers, **options) as env:
            env.reset(seed=1)
            planner = maker(env, **(chance if options and maker is not _puct else {}))
            plan = planner.plan(budget=600, seed=3)
            assert plan.replay(env) == plan.score
            found.append((plan.actions.tolist(), plan.score, plan.info["visits"].tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("maker", ALL)
def test_a_plan_ends_with_its_episode_and_can_be_replayed(maker: Maker) -> None:
    with plangym_like.make("CartPole-v1") as env:
        state = env.make_state(env.reset(seed=0).state, x=np.array([0, 0, 0.2, 1.5]))
        plan = maker(env, dt=2).plan(state, budget=500, seed=0)
        assert plan.ended, "the pole cannot be saved"
        assert plan.score <= 2 * len(plan) <= 8
        assert plan.replay(env) == plan.score


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


@pytest.mark.parametrize("maker", ALL)
def test_knowledge_of_the_last_search_is_kept(maker: Maker) -> None:
    with plangym_like.make("CartPole-v1") as env:
        state = env.reset(seed=0).state
        planner = maker(env)
        plan = planner.plan(state, budget=1_000, seed=0)
        index = int(np.flatnonzero(planner.actions == plan.next_action)[0])
        planner.advance()
        after = env.step_batch([plan.next_action], state).states[0]
        following = planner.plan(after, budget=40, seed=1)
        assert following.replay(env) == following.score
        afresh = planner.plan(after, budget=40, seed=1)
        kept = plan.info["visits"][index]
        assert 0.5 * kept < following.info["visits"].sum() <= kept + 40
        assert afresh.info["visits"].sum() <= 40


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
def test_continuous_actions_are_refused(maker: Maker) -> None:
    with (
        plangym_like.make("Pendulum-v1") as env,
        pytest.raises(InputError, match=r"tries actions one by one.*use CEM"),
    ):
        maker(env)


@pytest.mark.parametrize(
    ("cls", "options", "words"),
    [
        (UCT, {"batch": 0}, "batch must be a whole number of at least 1"),
        (UCT, {"rollout": -1}, "rollout must be a whole number of at least 0"),
        (UCT, {"explore": float("nan")}, "explore must be a finite number of at least 0"),
        (UCT, {"discount": 1.1}, "discount must be a finite number from 0 to 1"),
        (UCT, {"virtual_loss": -1}, "virtual_loss must be a finite number from 0 to 1"),
        (UCT, {"widening": 2}, "widening must be a finite number from 0 to 1"),
        (UCT, {"outcomes": 0}, "outcomes must be a whole number of at least 1"),
        (OpenLoopMCTS, {"horizon": 0}, "horizon must be a whole number of at least 1"),
        (OpenLoopMCTS, {"dt": 1.5}, "dt must be a whole number of at least 1"),
        (PUCT, {"noise": 2}, "noise must be a finite number from 0 to 1"),
        (PUCT, {"alpha": 0}, "alpha must be a finite number"),
        (PUCT, {"base": "many"}, "base must be a finite number"),
    ],
)
def test_options_that_are_refused(
    cls: Callable[..., Planner], options: dict[str, Any], words: str
) -> None:
    with plangym_like.make("CartPole-v1") as env, pytest.raises(InputError, match=words):
        cls(env, **({"evaluate": _uniform} if cls is PUCT else {}), **options)


@pytest.mark.parametrize("planner", [UCT, OpenLoopMCTS])
def test_without_exploration_all_actions_are_tried_first(planner: Any) -> None:
    with plangym_like.make(BanditTree) as env:
        env.reset(seed=0)
        plan = planner(env, batch=3, explore=0.0).plan(budget=200, seed=0)
        assert (plan.info["visits"] > 0).all()
        assert plan.score == BanditTree.MEANS.max()


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
