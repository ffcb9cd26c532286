"""What all planners share: budgets, seeds, progress, results, and playing in closed loop."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import plangym_like
from plangym_like.errors import InputError, MissingExtraError, StateError
from plangym_like.planners import (
    UCT,
    BeamSearch,
    BestFirst,
    OpenLoopMCTS,
    Plan,
    Planner,
    Progress,
    RandomShooting,
    Search,
    play,
)
from plangym_like.planners.action_sets import ActionSampler, all_actions, bounds


@pytest.fixture
def cartpole() -> Iterator[Any]:
    with plangym_like.make("CartPole-v1") as env:
        env.reset(seed=0)
        yield env


def _same(one: Plan, other: Plan) -> bool:
    return bool(
        np.array_equal(one.actions, other.actions)
        and np.array_equal(one.rewards, other.rewards)
        and one.score == other.score
        and np.array_equal(one.curve["score"], other.curve["score"])
        and np.array_equal(one.curve["transitions"], other.curve["transitions"])
    )


class Precise(Planner):
    """Its actions are more precise than the dtype of the space."""

    def _search(self, state: Any, search: Search) -> Plan:
        plans = search.rng.uniform(-2, 2, (16, 5, 1))
        assert search.has(80)
        rewards = search.rollout_batch(plans, state).rewards
        best = int(rewards.sum(axis=1).argmax())
        return search.plan(state, plans[best], rewards[best], ended=False)


def test_actions_of_a_plan_keep_their_precision(tmp_path: Path) -> None:
    with plangym_like.make("Pendulum-v1") as env:
        state = env.reset(seed=0).state
        plan = Precise(env).plan(state, budget=80, seed=0)
        assert plan.actions.dtype == np.float64
        assert plan.score == plan.replay(env)
        plan.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json").replay(env) == plan.score
        played = play(Precise(env), 3, state, budget=80, seed=0)
        assert played.score == played.replay(env)


def test_a_time_ends_a_search(cartpole: Any) -> None:
    plan = RandomShooting(cartpole).plan(seconds=0.05, seed=0)
    assert plan.spent.seconds >= 0.05
    plan = RandomShooting(cartpole).plan(seconds=1e-9, seed=0)
    assert plan.spent.transitions <= 256 * 30, "only one batch"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "a budget in transitions, or seconds"),
        ({"budget": 0}, "budget must be a whole number of at least 1"),
        ({"seconds": 0}, "seconds must be a number of seconds above 0"),
        ({"seconds": float("nan")}, "seconds must be a number of seconds above 0"),
        ({"seconds": "5"}, "seconds must be a number of seconds above 0, got '5'"),
        ({"budget": 29}, "a budget of 29 transitions is too small: .* has 30"),
        *(
            ({"budget": 300, "seed": seed}, "seed must be a whole number of at least 0")
            for seed in (-1, 1.5, "one", [0, -1])
        ),
    ],
)
def test_limits_and_seeds_that_are_refused(cartpole: Any, options: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        RandomShooting(cartpole, horizon=30).plan(**options)


@pytest.mark.parametrize("planner", [RandomShooting, UCT, BestFirst, BeamSearch, OpenLoopMCTS])
def test_states_are_checked_before_the_search(cartpole: Any, planner: Any) -> None:
    state = cartpole.get_state()
    expected = planner(cartpole).plan(state, budget=300, seed=0)
    assert _same(planner(cartpole).plan(state[None], budget=300, seed=0), expected), "one row"
    for wrong in (state.astype(int), state[:-1], "state", np.zeros_like(state)):
        with pytest.raises(StateError):
            planner(cartpole).plan(wrong, budget=300)
    with pytest.raises(InputError, match="expected one state row, got 2"):
        planner(cartpole).plan(np.stack([state, state]), budget=300)


def test_kinds_of_seeds(cartpole: Any) -> None:
    planner = RandomShooting(cartpole, horizon=10)
    for run in (planner.plan, partial(play, planner, 3)):
        plans = [
            run(budget=200, seed=seed)
            for seed in (4, np.int64(4), np.random.SeedSequence(4), np.random.default_rng(4))
        ]
        assert all(_same(plan, plans[0]) for plan in plans)


def test_a_plan_is_the_same_after_saving_and_loading(cartpole: Any, tmp_path: Path) -> None:
    plan = RandomShooting(cartpole).plan(budget=10_000, seed=0)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert _same(plan, again)
    assert np.array_equal(plan.state, again.state)
    assert again.spent == plan.spent
    assert again.actions.dtype == plan.actions.dtype
    assert again.replay(cartpole) == plan.score
    saved, path = json.loads((tmp_path / "plan.json").read_text()), tmp_path / "other.json"
    too_large = [2**70] * len(plan)
    for name, wrong in (("rewards", [1.0]), ("dt", [1]), ("seeds", [1]), ("dt", too_large)):
        path.write_text(json.dumps({**saved, name: wrong}))
        with pytest.raises(InputError, match=r"other\.json holds no plan"):
            Plan.load(path)
    path.write_text("[1, 2]")
    with pytest.raises(InputError, match=r"other\.json holds no plan"):
        Plan.load(path)


def test_a_plan_is_saved_completely_or_not_at_all(cartpole: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = RandomShooting(cartpole).plan(budget=100, seed=0)
    plan.save(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # as if the disk were full
    try:
        with pytest.raises(OSError, match="File too large"):
            RandomShooting(cartpole).plan(budget=200, seed=1).save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert _same(Plan.load(path), plan)
    assert list(tmp_path.iterdir()) == [path]


def test_a_progress_bar_on_a_terminal(
    cartpole: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    RandomShooting(cartpole).plan(budget=10_000, progress=True)
    shown = capsys.readouterr().err
    assert "RandomShooting:" in shown
    assert "transitions/s" in shown
    monkeypatch.setitem(__import__("sys").modules, "tqdm", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'plangym_like\[viz\]'"):
        RandomShooting(cartpole).plan(budget=10_000, progress=True)


def test_play_takes_first_actions_and_ends_with_the_episode(cartpole: Any) -> None:
    start = cartpole.get_state()
    episode = play(RandomShooting(cartpole, horizon=10), 30, start, budget=500, seed=5)
    assert len(episode) == 30
    assert episode.score == 30
    assert episode.replay(cartpole) == episode.score
    assert episode.spent.transitions <= 30 * 500
    again = play(RandomShooting(cartpole, horizon=10), 30, start, budget=500, seed=5)
    assert _same(episode, again)
    short = play(RandomShooting(cartpole, horizon=1, batch=1), 500, start, budget=1, seed=0)
    assert short.ended
    assert len(short) < 500


def test_play_says_which_actions_came_too_late(cartpole: Any) -> None:
    planner = RandomShooting(cartpole, horizon=5, batch=20)
    late = play(planner, 3, budget=400, seconds=1e-9, seed=0).info["late"]
    assert late.shape == (3,) and (late > 0).all()
    assert play(planner, 3, budget=400, seconds=1e9, seed=0).info["late"].tolist() == [0.0] * 3
    assert "late" not in play(planner, 3, budget=400, seed=0).info


def test_play_reports_every_batch_and_every_step(cartpole: Any) -> None:
    seen: list[Progress] = []
    planner = RandomShooting(cartpole, horizon=5, batch=20)
    episode = play(planner, 3, budget=400, seed=0, progress=seen.append)
    assert [one.done for one in seen] == sorted(one.done for one in seen)
    assert len(seen) == 3 * (4 + 1) and seen[-1].done == 1
    assert [one.score for one in seen] == [0] * 4 + [1] * 5 + [2] * 5 + [3]
    assert [one.spent.transitions for one in seen[:6]] == [100, 200, 300, 400, 400, 500]
    assert seen[-1].spent == episode.spent and seen[4].note == "step 1"


@pytest.mark.parametrize(
    "seed", [np.random.RandomState(3), np.random.RandomState(3)._bit_generator]
)
def test_play_refuses_seeds_that_cannot_spawn_others(cartpole: Any, seed: Any) -> None:
    with pytest.raises(InputError, match="play spawns a seed for each search|got RandomState"):
        play(RandomShooting(cartpole), 2, budget=300, seed=seed)


@pytest.mark.parametrize(
    ("space", "count"),
    [
        (gymnasium.spaces.Discrete(3, start=-1), 3),
        (gymnasium.spaces.MultiDiscrete([2, 3], start=[1, 0]), 6),
        (gymnasium.spaces.MultiDiscrete([[2, 3], [1, 2]]), 12),
        (gymnasium.spaces.MultiDiscrete([6], start=[250], dtype=np.uint8), 6),
        (gymnasium.spaces.MultiBinary(4), 16),
    ],
)
def test_all_actions_of_finite_spaces(space: Any, count: int) -> None:
    class Env:
        action_space = space

    env: Any = Env()
    actions = all_actions(env, "UCT")
    assert len(actions) == count
    assert all(action in space for action in actions)
    assert len({action.tobytes() for action in actions}) == count
    drawn = ActionSampler(env, "UCT")(np.random.default_rng(0), 50, 20)
    assert drawn.shape == (50, 20, *space.shape)
    assert {action.tobytes() for row in drawn for action in row} == {
        action.tobytes() for action in actions
    }


def test_spaces_that_are_refused() -> None:
    class Env:
        action_space: Any = gymnasium.spaces.MultiDiscrete([1000] * 20)

    env: Any = Env()
    with pytest.raises(InputError, match="has 1,000,000,[0,]* of them"):
        all_actions(env, "UCT")
    env.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    with pytest.raises(InputError, match=r"finite bounds.*control_range="):
        bounds(env, "CEM")
    env.action_space = gymnasium.spaces.Dict({})
    with pytest.raises(InputError, match="RandomShooting needs a Discrete"):
        ActionSampler(env, "RandomShooting")
