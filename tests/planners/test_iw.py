"""IW(1): what it prunes, problems of width 1, and keeping the tree in closed loop."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same

import plangym_like
from plangym_like.errors import InputError
from plangym_like.planners import IW, RolloutIW, tile_colors, tile_pairs
from plangym_like.planners.novelty import Novelty
from plangym_like.planners.observations import default_features

BOTH = pytest.mark.parametrize("planner", [IW, RolloutIW])
SIZE = 7


class Board(gymnasium.Env[Any, Any]):
    """A board on which one goes right or up, from a corner; some places have rewards."""

    observation_space = gymnasium.spaces.MultiDiscrete([SIZE, SIZE])
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, prize: tuple[int, int] = (SIZE - 1, 0), value: float = 1.0) -> None:
        self.prize, self.value = prize, value

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = [0, 0]
        return np.array(self.place), {"lives": 3}

    def step(self, action: Any) -> Any:
        self.place[action] = min(self.place[action] + 1, SIZE - 1)
        won = tuple(self.place) == self.prize
        return np.array(self.place), self.value * won, won, False, {"lives": 3}


class Maze(gymnasium.Env[Any, Any]):
    """Random arrows between 400 places, each of which has five variables."""

    observation_space = gymnasium.spaces.Box(0, 9, (5,), np.int64)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.arrows = rng.integers(400, size=(400, 3))
        self.variables = rng.integers(10, size=(400, 5))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 0
        return self.variables[0], {}

    def step(self, action: Any) -> Any:
        self.place = int(self.arrows[self.place, action])
        return self.variables[self.place], float(self.place % 7 == 3), False, False, {}


def _by_the_paper(maze: Maze) -> tuple[int, int]:
    """Return the numbers of states that IW(1) generates and keeps, one state after the other."""
    seen: set[tuple[int, int]] = set()
    queue, generated, kept = deque([(0, 0.0)]), 1, 1
    while queue:
        level = sorted(queue, key=lambda entry: -entry[1])  # stable
        queue.clear()
        for place, total in level:
            for action in range(3):
                after = int(maze.arrows[place, action])
                generated += 1
                atoms = set(enumerate(maze.variables[after].tolist()))
                if atoms - seen:
                    kept += 1
                    queue.append((after, total + (after % 7 == 3)))
                seen |= atoms
    return generated, kept


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_exactly_the_states_of_the_paper_are_pruned_in_batches(batch: int) -> None:
    generated, kept = _by_the_paper(Maze())
    assert kept > 20
    with plangym_like.make(Maze) as env:
        state, _, _ = env.reset(seed=0)
        plan = IW(env, batch=batch, discount=1).plan(state, budget=10_000, seed=0)
        assert plan.info["nodes"] == generated == 1 + 3 * kept
        assert plan.info["exhausted"]
        assert plan.replay(env) == plan.score == plan.curve["score"][-1]


@BOTH
def test_a_problem_of_width_1_is_solved_and_one_of_width_2_is_not(planner: Any) -> None:
    for prize, score in (((SIZE - 1, 0), 1), ((0, SIZE - 1), 1), ((SIZE - 1, SIZE - 1), 0)):
        with plangym_like.make(Board, prize=prize) as env:
            state, _, _ = env.reset(seed=0)
            plan = planner(env, batch=4).plan(state, budget=1000, seed=0)
            assert plan.info["exhausted"]
            assert plan.score == score == plan.replay(env)
            assert plan.ended == bool(score)
            if score:
                assert len(plan) == SIZE - 1
                assert (plan.actions == np.argmax(prize)).all()


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_rollouts_arrive_at_the_depths_of_the_breadth_first_search(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[Novelty] = []

    class Recorded(Novelty):
        def __init__(self, *, subtables: bool = False) -> None:
            super().__init__(subtables=subtables)
            tables.append(self)

    monkeypatch.setattr("plangym_like.planners.iw.Novelty", Recorded)
    with plangym_like.make(Maze) as env:
        state, _, _ = env.reset(seed=0)
        assert IW(env).plan(state, budget=9999).info["exhausted"]
        for seed in range(5):
            plan = RolloutIW(env, batch=batch).plan(state, budget=9999, seed=seed)
            assert plan.info["exhausted"]
            assert plan.replay(env) == plan.score
    expected, *found = (table.depth_of(np.arange(50, dtype=np.int32)).tolist() for table in tables)
    assert min(expected) == 1 and len(set(expected)) > 2
    assert found == [expected] * 5


@BOTH
def test_the_subtree_of_the_action_that_was_played_is_kept(planner: Any) -> None:
    with plangym_like.make(Maze) as env:
        state, _, _ = env.reset(seed=0)
        one = planner(env)
        plan = one.plan(state, budget=60, seed=0)
        after = env.step_batch(plan.actions[:1], state[None]).states[0]
        one.advance()
        kept = one.plan(after, budget=60, seed=0)
        assert 1 < kept.info["kept"] < plan.info["nodes"]
        assert kept.info["nodes"] == kept.info["kept"] + kept.spent.transitions
        assert kept.replay(env) == kept.score
        assert np.array_equal(kept.state, after)
        one.advance()
        assert one.plan(state, budget=60, seed=0).info["kept"] == 1, "another state"
        assert one.plan(state, budget=60, seed=0).info["kept"] == 1, "without advance"


class Cliff(gymnasium.Env[Any, Any]):
    """Action 1 takes a prize and a life; action 0 takes neither."""

    observation_space = gymnasium.spaces.Discrete(50)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.lives = 0, 3
        return self.place, {"lives": 3}

    def step(self, action: Any) -> Any:
        self.lives -= int(action) if self.place else 0
        self.place = min(self.place + 1 + int(action), 49)
        return self.place, 1.0 + action, self.place == 49, False, {"lives": self.lives}


@BOTH
def test_a_penalty_for_lost_lives(planner: Any) -> None:
    with plangym_like.make(Cliff) as env:
        state, _, _ = env.reset(seed=0)
        careless = planner(env, discount=1).plan(state, budget=5000, seed=0)
        careful = planner(env, discount=1, death_penalty=100).plan(state, budget=5000, seed=0)
        assert careless.actions[1:].sum() > 0
        assert careful.actions[1:].sum() == 0
        assert careful.replay(env) == careful.score, "the penalty is no reward"


def test_default_features() -> None:
    class Env:
        observation_space: Any

    env: Any = Env()
    spaces = gymnasium.spaces
    for space, obs, expected in [
        (spaces.Discrete(5, start=2), np.array([2, 4]), [[0], [2]]),
        (spaces.MultiDiscrete([3, 3], start=[1, 0]), np.array([[1, 2]]), [[0, 2]]),
        (spaces.MultiBinary((2, 2)), np.array([[[0, 1], [1, 1]]], np.int8), [[0, 1, 1, 1]]),
        (spaces.Box(0, 255, (3,), np.uint8), np.array([[7, 0, 255]], np.uint8), [[7, 0, 255]]),
        (spaces.Box(-2, 2, (2,), np.int16), np.array([[-2, 2]], np.int16), [[0, 4]]),
    ]:
        env.observation_space = space
        features: Any = default_features(env, "IW")
        assert features(obs, None).tolist() == expected
    env.observation_space = spaces.Box(0, 255, (210, 160, 3), np.uint8)
    screens = np.zeros((2, 210, 160, 3), np.uint8)
    screens[1, 40:50, 0] = 0, 255, 0
    features = default_features(env, "IW")
    black, green = features(screens, None)
    assert black.sum() == 14 * 16
    assert np.flatnonzero(green & ~black).tolist() == [tile * 256 + 28 for tile in (32, 48)]
    stacked = tile_colors(np.zeros((2, 4, 84, 84), np.uint8))
    assert stacked.shape == (2, 4 * 14 * 16 * 256) and stacked.sum() == 2 * 4 * 14 * 16
    many = np.random.default_rng(0).integers(0, 256, (2, 84, 84, 8), np.uint8)
    assert_same(tile_colors(many), tile_colors(np.moveaxis(many, -1, 1)))


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (lambda obs, infos: obs * 0.5, "array .* of integers or bools"),
        (lambda obs, infos: obs, "array .* of integers or bools"),
        (lambda obs, infos: obs[:1, None], r"\(1, 1\)"),
        (lambda obs, infos: obs[:, None] + (1 << 40), "values that are too large"),
        (lambda obs, infos: [obs + 0.5] * len(obs), "one-dimensional integer arrays"),
        (lambda obs, infos: [obs - 99] * len(obs), "at least 0, got -"),
    ],
)
def test_features_that_are_refused(features: Any, words: str) -> None:
    with plangym_like.make("FrozenLake-v1") as env, pytest.raises(InputError, match=words):
        IW(env, features=features).plan(env.reset(seed=0).state, budget=100)


def test_the_table_grows_and_knows_atoms_that_are_not_there() -> None:
    table = Novelty()
    first, gains = table.atoms(np.array([[-1, 2], [0, -5]]), 2), np.zeros(2)
    assert first.tolist() == [[-1, 5], [0, -1]]
    assert table.test(first, np.array([3, 3], np.int32), gains)[0].all()
    assert table.depth_of(first).tolist() == [[-1, 3], [3, -1]]
    later = table.atoms(np.array([[500, -1], [-1, -1]]), 2)
    assert table.test(later, np.array([0, 0], np.int32), gains)[0].tolist() == [True, False]
    assert table.depth_of(first).tolist() == [[-1, 3], [3, -1]]
    with pytest.raises(InputError, match="must have 2 columns, got 3"):
        table.atoms(np.zeros((1, 3), int), 1)


def test_states_of_different_returns_have_tables_of_their_own() -> None:
    table = Novelty(subtables=True)
    gains = np.array([-5.0, 0.0, 0.3, 1.0, 1.5, 2.0, 3.9, 4.0])
    assert table.keys(gains).tolist() == [0, 0, -2, 1, 1, 2, 2, 3]
    atoms = table.atoms(np.zeros((8, 1), int), 8)
    novel, _, seen = table.test(atoms, np.ones(8, np.int32), gains)
    assert novel.tolist() == [True, False, True, True, False, True, False, True] and not seen
    assert table.test(atoms[:1], np.zeros(1, np.int32), gains[5:6])[2] == [(2, 0)]
    assert [table.depth_of(atoms[:1], key).item() for key in (1, 2)] == [1, 0]


@pytest.mark.parametrize("is_rgb", [False, True])
def test_pairs_of_tiles(is_rgb: bool) -> None:
    screens = np.random.default_rng(0).choice([0, 64, 200], (1, 2, 28, 32)).astype(np.uint8)
    colors = screens >> 1
    if is_rgb:
        screens = np.repeat(screens[..., None], 3, -1)
        colors = (screens[..., 0] >> 5) * 16 + (screens[..., 0] >> 6) * 5
    for pair, atoms in zip(colors, tile_pairs(screens), strict=True):
        before, now = (
            {
                (row // 2, column // 2, int(screen[row, column]))
                for row in range(28)
                for column in range(32)
            }
            for screen in pair
        )
        same = {
            frozenset(
                [
                    (one[2], two[2], one[0] - two[0], one[1] - two[1]),
                    (two[2], one[2], two[0] - one[0], two[1] - one[1]),
                ]
            )
            for one in now
            for two in now
        }
        moved = {
            (one[2], two[2], one[0] - two[0], one[1] - two[1]) for one in now for two in before
        }
        assert len(set(atoms.tolist())) == len(atoms) == len(now) + len(same) + len(moved)


@pytest.mark.parametrize("obs_type", ["ram", "rgb"])
def test_a_game(obs_type: str) -> None:
    with plangym_like.make("ALE/MsPacman-v5", obs_type=obs_type) as env:
        state, _, _ = env.reset(seed=0)
        state = env.step_batch([0], state, dt=70).states[0]  # until the music ends
        for planner in (IW, RolloutIW):
            plan = planner(env, dt=4).plan(state, budget=90, seed=0)
            assert 0 < plan.spent.transitions <= 90
            assert plan.info["nodes"] == plan.spent.transitions + 1
            assert plan.score > 0
            assert plan.replay(env) == plan.score
