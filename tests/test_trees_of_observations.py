"""Observations with parts of no fixed size, such as text, are trees of arrays and lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from small_envs import Labelled

import plangym_like
from plangym_like.errors import ObservationError
from plangym_like.testing import check_env


@pytest.fixture
def env() -> Iterator[Any]:
    """Every backend steps it in `tests/test_every_backend.py`."""
    with plangym_like.make(Labelled) as env:
        yield env


def alone(env: Any, state: Any, actions: Any) -> list[Any]:
    """Return the observation of each action, stepped on its own."""
    return [env.step(action, state).obs for action in actions]


def test_a_batch_is_a_tree(env: Any) -> None:
    state = env.reset(seed=1).state
    actions = [0, 1, 2, 1, 0, 2]
    for count in (1, 6):
        obs = env.step_batch(actions[:count], state).obs
        rows = alone(env, state, actions[:count])
        assert obs["place"].dtype == np.float32
        assert obs["place"].tolist() == [row["place"].tolist() for row in rows]
        assert obs["told"][0] == [row["told"][0] for row in rows]
        assert obs["told"][1].dtype == np.int64
        assert obs["told"][1].tolist() == [row["told"][1] for row in rows]


def test_a_rollout_is_a_tree(env: Any) -> None:
    state = env.reset(seed=1).state
    plans = np.array([[0, 1, 2], [1, 1, 0]])
    found = env.rollout_batch(plans, state, return_observations=True).observations
    assert found["place"].shape == (2, 3, 2) and found["told"][1].shape == (2, 3)
    for row, plan in enumerate(plans):
        env.set_state(state)
        for time, action in enumerate(plan):
            obs = env.step(int(action)).obs
            assert found["place"][row, time].tolist() == obs["place"].tolist()
            assert (found["told"][0][row][time], found["told"][1][row, time]) == obs["told"]


def test_a_row_that_fails_is_blank(env: Any) -> None:
    state = env.reset(seed=1).state
    with pytest.raises(ObservationError, match=r"^obs\['place'\]: .*\(3,\)") as caught:
        env.step_batch([1, 1, 3, 1], state)
    assert [note for note in caught.value.__notes__ if "row 2 " in note]
    masked = env.step_batch([1, 1, 3, 1], state, on_error="mask")
    assert masked.infos.failed.tolist() == [False, False, True, False]
    assert masked.obs["place"][2].tolist() == [0.0, 0.0] and masked.obs["place"][3].all()
    assert [text is None for text in masked.obs["told"][0]] == [False, False, True, False]


def test_it_is_what_make_vec_gives() -> None:
    with plangym_like.make(Labelled) as env, plangym_like.make_vec(Labelled, 3) as envs:
        envs.reset(seed=[4, 5, 6])
        states = [env.reset(seed=seed).state for seed in (4, 5, 6)]
        theirs, ours = envs.step([0, 1, 2])[0], env.step_batch([0, 1, 2], states).obs
        assert theirs["place"].tobytes() == ours["place"].tobytes()
        assert list(theirs["told"][0]) == ours["told"][0]
        assert theirs["told"][1].tobytes() == ours["told"][1].tobytes()


def test_minigrid() -> None:
    pytest.importorskip("minigrid")
    with plangym_like.make("MiniGrid-Empty-5x5-v0") as env:
        state, first, _ = env.reset(seed=0)
        obs = env.step_batch([0, 1, 2], state).obs
        assert obs["image"].shape == (3, 7, 7, 3) and obs["image"].dtype == np.uint8
        assert obs["direction"].tolist() == [3, 1, 0]
        assert obs["mission"] == [first["mission"]] * 3


class Legal(Labelled):
    """Only actions that observations fit."""

    action_space = gymnasium.spaces.Discrete(3)


def test_check_env_understands_trees() -> None:
    report = check_env(Legal, states=4, steps=5, workers=(1,))
    assert report.ok, report
