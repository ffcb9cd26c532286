"""`BeamSearch`: optima that are known, ties, duplicates, and widths that grow."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from suite import CLIFF, TAXI

import plangym_like
from plangym_like.planners import BeamSearch


def _optimum(env: Any, start: int) -> float:
    """Return the largest score of an episode from the model of a toy text environment."""
    model = env.unwrapped.P
    values = dict.fromkeys(model, -np.inf)
    for _ in range(len(model)):
        new = {
            place: max(
                reward + (0.0 if over else values[after])
                for ((_, after, reward, over),) in moves.values()
            )
            for place, moves in model.items()
        }
        if new == values:
            break
        values = new
    return float(values[start])


@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_of_taxi(seed: int) -> None:
    with plangym_like.make(TAXI) as env:
        state, obs, _ = env.reset(seed=seed)
        plan = BeamSearch(env, width=256, key="obs").plan(state, budget=20_000, seed=0)
        assert plan.ended
        assert plan.score == plan.replay(env)
        assert plan.score == _optimum(gymnasium.make(TAXI), int(obs))


@pytest.mark.parametrize(
    ("name", "options", "length", "score"),
    [
        ("FrozenLake-v1", {"is_slippery": False}, 6, 1.0),
        ("FrozenLake-v1", {"is_slippery": False, "map_name": "8x8"}, 14, 1.0),
        (CLIFF, {}, 13, -13.0),
    ],
)
def test_the_shortest_ways(name: str, options: dict[str, Any], length: int, score: float) -> None:
    with plangym_like.make(name, **options) as env:
        env.reset(seed=0)
        plan = BeamSearch(env, key="obs").plan(budget=50_000, seed=0)
        assert (len(plan), plan.score, plan.ended) == (length, score, True)
        assert plan.spent.transitions < 1000, "the search ends when all places are known"


def test_the_pole_is_held_to_the_end() -> None:
    with plangym_like.make("CartPole-v1", remove_time_limit=False) as env:
        env.reset(seed=0)
        upright = BeamSearch(
            env, width=16, heuristic=lambda obs, infos, states: -np.abs(obs).sum(axis=1)
        )
        plan = upright.plan(budget=16_000, seed=0)
        assert plan.score == 500
        assert plan.replay(env) == 500


def test_plans_of_a_depth_are_compared_where_rewards_are_negative() -> None:
    with plangym_like.make("Pendulum-v1") as env:
        env.reset(seed=0)
        plan = BeamSearch(env, width=8, depth=12, branches=5).plan(budget=2000, seed=0)
        assert len(plan) == 12
        assert not plan.ended
        assert plan.replay(env) == plan.score
        assert plan.score > -60
        wider = BeamSearch(env, width=8, depth=12, branches=5).plan(budget=20_000, seed=0)
        assert wider.score >= plan.score
        assert wider.spent.transitions > 15_000, "the width is doubled until the budget is spent"
        assert np.all(np.diff(wider.curve["score"]) >= 0)


def test_states_that_are_the_same_are_kept_once() -> None:
    """In FrozenLake's corner two of four actions stay, and three states are new."""
    with plangym_like.make("FrozenLake-v1", is_slippery=False) as env:
        env.reset(seed=0)
        seen: list[int] = []

        def watch(obs: Any, infos: Any, states: Any) -> Any:
            seen.append(len(obs))
            return np.zeros(len(obs))

        planner = BeamSearch(env, depth=3, heuristic=watch, key="obs")
        planner.plan(budget=1000, seed=0)
        # 1 place; right and down and the start; of those that are new, 4 actions each.
        assert seen[0] == 4
        assert seen[1] == 12
        places = {0, 1, 4, 2, 8}
        assert seen[2] == 4 * len(places - {0, 1, 4})


class Detour(gymnasium.Env):
    """The second best place at depth 1 is the best at depth 2, and leads to a reward of 10."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(2)
    moves = (
        ((1, 2.0), (2, 1.0)),
        ((2, -1.0), (3, -5.0)),
        ((4, 10.0), (4, 10.0)),
        ((3, 0.0), (3, 0.0)),
        ((4, 0.0), (4, 0.0)),
    )

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action: Any) -> Any:
        self.place, reward = self.moves[self.place][action]
        return self.place, reward, False, False, {}


def test_a_state_that_was_left_out_of_the_beam_may_enter_it_later() -> None:
    with plangym_like.make(Detour) as env:
        env.reset(seed=0)
        plan = BeamSearch(env, width=1, key="obs").plan(budget=6, seed=0)
        assert plan.score == 11.0
        assert plan.actions[:2].tolist() == [0, 0]


def test_what_is_too_little_for_a_beam_is_spent_on_its_best_states() -> None:
    with plangym_like.make(TAXI) as env:
        env.reset(seed=0)
        for budget in (500, 501, 600):
            spent = BeamSearch(env, width=64).plan(budget=budget, seed=0).spent.transitions
            assert budget - 6 < spent <= budget
