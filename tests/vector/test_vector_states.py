"""States of vectorised environments: batches of rows, seeds, and environments that differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from small_envs import Nested
from test_make_vec import HAS_BOX2D, same
from usual import first_of

import plangym_like
from plangym_like.envs.mujoco.env import MujocoSimulator
from plangym_like.errors import InputError, StateMismatchError

SOURCES = [
    "CartPole-v1",
    "FrozenLake-v1",
    "Hopper-v5",
    *(["LunarLander-v3"] if HAS_BOX2D else []),
]
WORKERS = pytest.mark.parametrize("n_workers", first_of([2, None]))
IN_TURN = pytest.mark.parametrize(
    ("source", "n_workers"),
    [
        pytest.param(source, n_workers, marks=() if number % 2 == place else pytest.mark.full)
        for number, source in enumerate(SOURCES)
        for place, n_workers in enumerate([None, 2])
    ],
)
pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__")


@pytest.fixture(autouse=True)
def _few_rows(always_in_processes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use every form of lanes for few environments, too."""
    monkeypatch.setattr(MujocoSimulator, "fewest_rows", 4)


@IN_TURN
def test_the_rows_are_those_of_make(
    make: Callable[..., Any], source: str, n_workers: int | None
) -> None:
    if source == "Hopper-v5":
        pytest.importorskip("mujoco")
    envs = make(source, 4, n_workers)
    assert len(envs.pids) == (n_workers or 1) - 1
    envs.action_space.seed(0)
    envs.reset(seed=3)
    with plangym_like.make(source, remove_time_limit=False) as env:
        for _ in range(3):
            actions = envs.action_space.sample()
            branched = env.step_batch(actions, envs.get_states())
            going_on = ~envs.ended  # the others are reset
            stepped = envs.step(actions)
            for ours, theirs in zip(stepped[:4], branched[1:5], strict=True):
                assert same(ours[going_on], theirs[going_on])
            assert same(envs.get_states()[going_on], branched.states[going_on])


@pytest.mark.skipif(not HAS_BOX2D, reason="Box2D is not installed")
@pytest.mark.parametrize("source", ["LunarLander-v3", "BipedalWalker-v3"])
def test_a_copy_whose_episode_is_in_no_row_is_used_again(
    make: Callable[..., Any], source: str
) -> None:
    envs = make(source, 2, max_episode_steps=20)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    caches = [env.simulator._proxy.cache for env in envs._lanes.envs]
    with plangym_like.make(source, max_episode_steps=20) as env:
        for number in range(70):
            actions = envs.action_space.sample()
            if number in (50, 66):
                # Another environment replays the episodes, and compares their digests.
                branched, going_on = env.step_batch(actions, envs.get_states()), ~envs.ended
                stepped = envs.step(actions)[0]
                assert going_on.any() and same(stepped[going_on], branched.obs[going_on])
            else:
                envs.step(actions)
            copies = 1 if number <= 50 else 2
            assert all(len(cache._copies) <= copies for cache in caches)
        assert [len(cache._copies) for cache in caches] == [2, 2]


@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_an_episode_that_was_followed_by_another_has_not_ended(
    make: Callable[..., Any], mode: str, batch_size: int | None
) -> None:
    envs = make("CartPole-v1", 4, autoreset_mode=mode, batch_size=batch_size)
    envs.reset(seed=0)
    over = np.zeros(4, bool)
    while not over.any():
        if batch_size:
            envs.send(np.ones(4, int))
        _, _, terminations, truncations, _ = envs.recv() if batch_size else envs.step([1] * 4)
        over = terminations | truncations
    assert envs.ended.tolist() == (over & (mode == "NextStep")).tolist()


@IN_TURN
def test_seeds_make_environments_diverge(
    make: Callable[..., Any], source: str, n_workers: int | None
) -> None:
    if source == "Hopper-v5":
        pytest.importorskip("mujoco")
    envs = make(source, 4, n_workers, max_episode_steps=2)
    env = plangym_like.make(source, remove_time_limit=False, max_episode_steps=2)
    envs.reset(seed=3)
    envs.action_space.seed(0)
    actions, state = envs.action_space.sample(), envs.get_states([1])[0]
    envs.set_states(state, seeds=[5, 6, 7, 5])
    stepped = envs.step(actions)
    expected = env.step_batch(actions, state, seeds=[5, 6, 7, 5])
    assert same(stepped[0], expected.obs) and same(envs.get_states(), expected.states)
    while not envs.ended.all():
        envs.step(actions)
    first = envs.step(actions)[0]
    assert same(first[0], first[3])
    assert source == "FrozenLake-v1" or not same(first[0], first[1])
    envs.set_states(state, [2, 0])
    assert same(envs.get_states([0, 2]), np.stack([state, state]))
    envs.set_states(np.stack([state, state]), [2, 0], seeds=np.array([8, 9]))
    rows = envs.get_states([2, 0])
    assert not same(rows[0], rows[1])
    env.close()


def test_wrong_seeds_change_nothing(make: Callable[..., Any]) -> None:
    envs = make("CartPole-v1", 3)
    envs.reset(seed=0)
    states = envs.get_states()
    for wrong in (1, [1, 2], [1, 2, -1], [1, 2, 0.5], [1, 2, None]):
        with pytest.raises(InputError, match="seeds must"):
            envs.set_states(states[::-1].copy(), seeds=wrong)
    assert same(envs.get_states(), states)


@WORKERS
def test_environments_that_differ_take_their_own_states(
    make: Callable[..., Any], n_workers: int | None
) -> None:
    factories = [
        partial(plangym_like.make, "FrozenLake-v1", is_slippery=slips) for slips in (True, False)
    ] * 2
    envs = make(factories, None, n_workers)
    envs.reset(seed=0)
    states = envs.get_states()
    before = envs.step([2, 2, 1, 1])
    envs.set_states(states)
    assert same(envs.step([2, 2, 1, 1])[:4], before[:4])
    envs.set_states(states[[2, 3]], [0, 1])
    envs.set_states(states[1], [3, 1])
    assert same(envs.get_states([0, 1, 3]), states[[2, 1, 1]])
    now = envs.get_states()
    for wrong, lanes in ((states, [1, 0, 2, 3]), (states[0], None), (states[:1], [3])):
        with pytest.raises(StateMismatchError):
            envs.set_states(wrong, lanes)
    with pytest.raises(InputError, match="2 states were given for 4"):
        envs.set_states(states[:2])
    assert same(envs.get_states(), now)


def test_rows_of_different_lengths(make: Callable[..., Any]) -> None:
    envs = make(
        [
            partial(plangym_like.make, "FrozenLake-v1"),
            partial(plangym_like.make, "FrozenLake-v1", remove_time_limit=False),
        ]
    )
    envs.reset(seed=0)
    with pytest.raises(InputError, match="different lengths"):
        envs.get_states()
    for index in (0, 1):
        row = envs.get_states([index])
        envs.set_states(row, [index])
        with pytest.raises(StateMismatchError):
            envs.set_states(row, [1 - index])


def test_states_are_set_completely_or_not_at_all(make: Callable[..., Any]) -> None:
    envs = make(partial(plangym_like.make, Nested), 3)
    envs.reset(seed=3)
    before = envs.get_states()
    envs.step(envs.action_space.sample())
    now, seen = envs.get_states(), envs.ended
    place, cargo = np.zeros((3, 2)), (np.zeros(3, int), np.zeros((3, 3), np.int8))
    for options, words in (
        ({"ended": [True, False]}, r"ended must be a bool or an array \(3,\) of bools"),
        ({"ended": "no"}, "ended must be a bool"),
        ({"ended": [0, 1, 0]}, "ended must be a bool"),
        ({"observations": np.zeros((3, 2))}, "observations must have the parts"),
        ({"observations": {"place": place}}, "observations must have the parts"),
        (
            {"observations": {"place": place[:2], "cargo": cargo}},
            r"has shape \(2, 2\), but the shape is \(3, 2\)",
        ),
        (
            {"observations": {"place": place, "cargo": ("a", "b")}},
            "do not fit the observation space",
        ),
    ):
        with pytest.raises(InputError, match=words):
            envs.set_states(before, **options)
        assert np.array_equal(envs.get_states(), now)
        assert np.array_equal(envs.ended, seen)
    envs.set_states(before, ended=np.array([True, False, False]))
    assert envs.ended.tolist() == [True, False, False]
    assert np.array_equal(envs.get_states(), before)


def test_states_that_are_ended_are_not_set_where_none_stays_ended(make: Callable[..., Any]) -> None:
    envs = make("CartPole-v1", 2, autoreset_mode="SameStep")
    envs.reset(seed=0)
    states = envs.get_states()
    with pytest.raises(InputError, match="no environment stays at the end"):
        envs.set_states(states[[1, 0]], ended=[False, True])
    assert same(envs.get_states(), states)
    envs.set_states(states, ended=envs.ended)
    assert not envs.ended.any()


@WORKERS
def test_flags_and_states_belong_together(make: Callable[..., Any], n_workers: int | None) -> None:
    """After `send`, which does not wait."""
    source = partial(gymnasium.make, "CartPole-v1", max_episode_steps=1)
    envs = make(lambda: plangym_like.make(source), 2, n_workers, batch_size=1)
    envs.async_reset(seed=0)
    for _ in range(2):
        envs.recv()
    envs.send([0, 0])
    assert envs.ended.tolist() == [True, True]
