"""Best-first, A* and beam search: optima that are known, or found by a search written here."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from suite import CLIFF, TAXI
from usual import first_of

import plangym_like
from plangym_like.errors import InputError
from plangym_like.planners import AStar, BeamSearch, BestFirst, play
from plangym_like.planners.observations import digests, make_key

BOTH = pytest.mark.parametrize("planner", [AStar, BestFirst])


@BOTH
@pytest.mark.parametrize("key", ["state", "obs"])
@pytest.mark.parametrize(("map_name", "steps"), [("4x4", 6), ("8x8", 14)])
def test_the_optimum_of_frozen_lake(planner: Any, key: str, map_name: str, steps: int) -> None:
    with plangym_like.make("FrozenLake-v1", is_slippery=False, map_name=map_name) as env:
        state, _, _ = env.reset(seed=0)
        plan = planner(env, key=key).plan(state, budget=10_000)
        assert plan.info["optimal"] and plan.info["solved"] and plan.info["exhausted"]
        assert len(plan) == steps
        assert plan.ended and plan.score == 1 == plan.replay(env)
        assert plan.info["cost"] == plan.info["bound"] == steps
        assert plan.spent.transitions == plan.info["generated"]
        assert plan.curve["score"].tolist() == [1.0, 1.0]


def test_a_heuristic_saves_expansions_and_keeps_the_optimum() -> None:
    with plangym_like.make(TAXI) as env:
        state, _, _ = env.reset(seed=0)
        simulator = env.gym_env.unwrapped

        def remaining(obs: Any, infos: Any, states: Any) -> Any:
            """Count the steps to the passenger or, with it, to the destination, without walls."""
            estimates = []
            for number in obs.tolist():
                row, column, passenger, destination = simulator.decode(number)
                target = simulator.locs[destination if passenger == 4 else passenger]
                steps = abs(row - target[0]) + abs(column - target[1])
                estimates.append(steps if passenger != destination else 0)
            return np.array(estimates)

        blind = AStar(env, key="obs", batch=1).plan(state, budget=10_000)
        informed = AStar(env, key="obs", batch=1, heuristic=remaining).plan(state, budget=10_000)
        greedy = BestFirst(env, key="obs", batch=1, heuristic=remaining)
        assert informed.info["optimal"] and len(informed) == len(blind)
        assert informed.info["expanded"] < blind.info["expanded"]
        first = greedy.plan(state, budget=10_000)
        assert first.info["optimal"] and len(first) == len(blind)


class Graph(gymnasium.Env[Any, Any]):
    """Places with arrows of different costs; the heuristic of place 1 is not consistent.

    The paths to place 4 cost 3 + 1 + 8 = 12 by 2, and 1 + 1 + 1 + 8 = 11 by 1 and 2.
    """

    observation_space = gymnasium.spaces.Discrete(6)
    action_space = gymnasium.spaces.Discrete(2)
    arrows = (((1, 1), (2, 3)), ((2, 1), (5, 1)), ((3, 1), (0, 1)), ((4, 8), (3, 0)))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return self.place, {}

    def step(self, action: Any) -> Any:
        self.place, cost = self.arrows[self.place][action] if self.place < 4 else (self.place, 0)
        self.steps += 1
        return self.place, -float(cost), self.place >= 4, False, {"steps": self.steps}


def _at_four(step: Any) -> Any:
    return step.obs == 4


def _uneven(obs: Any, infos: Any, states: Any) -> Any:
    return np.array([0, 10, 0, 0, 0, 0])[obs]


@BOTH
@pytest.mark.parametrize("batch", [1, 2, 16])
@pytest.mark.parametrize("heuristic", [None, _uneven])
def test_costs_and_ways_that_turn_out_cheaper(planner: Any, batch: int, heuristic: Any) -> None:
    with plangym_like.make(Graph) as env:
        state, _, _ = env.reset(seed=0)
        options = {"cost": "reward", "goal": _at_four, "heuristic": heuristic, "batch": batch}
        plan = planner(env, key="obs", **options).plan(state, budget=1000)
        assert plan.info["optimal"]
        assert plan.actions.tolist() == [0, 0, 0, 0]
        assert plan.info["cost"] == 11 == -plan.score
        assert plan.replay(env) == plan.score
        assert plan.info["duplicates"] > 0
        steps = planner(env, key="obs", goal=_at_four).plan(state, budget=1000)
        assert steps.actions.tolist() == [1, 0, 0]


def test_a_search_by_rows_with_a_counter_does_not_end() -> None:
    with plangym_like.make(Graph) as env:
        state, _, _ = env.reset(seed=0)
        options: dict[str, Any] = {"goal": lambda step: np.zeros(len(step.obs), bool), "batch": 4}
        by_row = AStar(env, **options).plan(state, budget=500)
        assert not by_row.info["exhausted"]
        for key in ("obs", lambda obs, infos, states: obs.tolist()):
            by_place = AStar(env, key=key, **options).plan(state, budget=500)
            assert by_place.info["exhausted"] and not by_place.info["solved"]
            assert by_place.info["bound"] == np.inf and not by_place.info["optimal"]
            assert len(by_place) >= 1


def test_a_search_without_a_solution_leads_towards_the_goal() -> None:
    with plangym_like.make("FrozenLake-v1", is_slippery=False, map_name="8x8") as env:
        state, _, _ = env.reset(seed=0)

        def distance(obs: Any, infos: Any, states: Any) -> Any:
            return 14 - obs // 8 - obs % 8

        plan = AStar(env, key="obs", heuristic=distance, batch=1).plan(state, budget=24)
        assert plan.spent.transitions == 24
        assert not plan.info["solved"] and not plan.info["optimal"] and not plan.info["exhausted"]
        assert plan.info["bound"] == 14
        assert len(plan) >= 4 and not plan.ended
        with pytest.raises(InputError, match="the first batch of this planner has 4"):
            AStar(env).plan(state, budget=3)


def test_in_closed_loop_an_optimal_plan_is_searched_for_once() -> None:
    with plangym_like.make(TAXI) as env:
        state, _, _ = env.reset(seed=0)
        planner = AStar(env, key="obs")
        plan = planner.plan(state, budget=10_000)
        episode = play(planner, 50, state, budget=10_000)
        assert episode.ended and episode.score == plan.score == episode.replay(env)
        assert np.array_equal(episode.actions, plan.actions)
        assert episode.spent.transitions == plan.spent.transitions + len(plan) - 1
        # From a state that is not on the plan, the search begins afresh.
        planner.plan(state, budget=10_000)
        planner.advance()
        other = env.reset(seed=1).state
        assert planner.plan(other, budget=10_000).info["optimal"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cost": "reward"}, "minus the reward must be at least 0 .* got -20"),
        ({"cost": lambda step: -step.rewards[:1]}, r"cost must be an array \(2,\)"),
        (
            {"heuristic": lambda obs, *_: np.full(len(obs), np.nan)},
            "heuristic must be at least 0.*got nan",
        ),
        ({"goal": lambda step: True}, r"goal must return an array \(2,\)"),
        ({"key": lambda *_: [1]}, "key returned 1 keys for 2 states"),
    ],
)
def test_functions_whose_results_are_refused(options: dict[str, Any], words: str) -> None:
    with plangym_like.make(TAXI) as env:
        state, _, _ = env.reset(seed=0)
        with pytest.raises(InputError, match=words):
            AStar(env, **{"key": "obs", **options}).plan(state, budget=10_000)


def test_keys_of_nested_observations() -> None:
    key: Any = make_key("obs")
    image = np.arange(6).reshape(3, 2)
    image[2] = image[0]
    nest = {"image": image, "place": (np.array([1, 2, 1]), np.array([0, 0, 0]))}
    objects = [{"image": one, "mission": "go", "bag": [1, (2, 3)]} for one in image]
    for obs in (image, nest, objects):
        one, two, three = digests(key(obs, None, np.zeros((3, 8), np.uint8)), 3)
        assert one == three != two
        assert len({one, two, three}) == 2


class _Corner(gymnasium.Env):
    """No action changes anything."""

    observation_space = gymnasium.spaces.Discrete(1)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, float(action), False, False, {}


@BOTH
def test_a_plan_has_an_action_even_where_none_leads_anywhere(planner: Any) -> None:
    with plangym_like.make(_Corner) as env:
        env.reset(seed=0)
        plan = planner(env).plan(budget=10)
        assert len(plan) == 1 and not plan.info["solved"]
        assert (plan.info["exhausted"], plan.info["duplicates"]) == (True, 2)
        assert len(play(planner(env), 3, budget=10)) == 3


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


@pytest.mark.parametrize("seed", first_of(range(4)))
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


@pytest.mark.full
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
