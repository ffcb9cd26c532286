"""Bad input: an error that says what is wrong, raised before anything is stepped or changed.

`tests/test_batches.py` has wrong numbers and lengths; `tests/test_every_backend.py` tests that
errors are the same on every backend, and nothing is sent.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from comparing import assert_same, reached
from hypothesis import given, settings
from hypothesis import strategies as st
from small_envs import Fuse, Levers, Nested

import plangym_like
from plangym_like.errors import (
    ActionError,
    InputError,
    StateError,
    StateFormatError,
    StateMismatchError,
)

STRICT = {"out_of_bounds": "raise"}
SUITE: dict[str, tuple[Any, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", {}),
    "Pendulum": ("Pendulum-v1", STRICT),
    "MsPacman": ("ALE/MsPacman-v5", {"obs_type": "ram"}),
    "Levers": (Levers, STRICT),
    "Nested": (Nested, STRICT),
}
COUNT = 6


class Family:
    """An environment, with a good batch for it."""

    def __init__(self, key: str, name: Any, kwargs: dict[str, Any]) -> None:
        self.key = key
        self.env = plangym_like.make(name, **kwargs)
        space = self.env.action_space
        space.seed(0)
        self.actions = [space.sample() for _ in range(COUNT)]
        self.states = reached(self.env, COUNT, every=2)
        self.env.set_state(self.states[1])

    def refusal(self, call: Any) -> BaseException:
        """Return what `call` raises, after checking that it has changed nothing."""
        with pytest.raises((InputError, StateError)) as caught:
            call(self.env)
        assert_same(self.env.get_state(), self.states[1], "the current state")
        assert getattr(caught.value, "__notes__", None) is None
        return caught.value


@pytest.fixture(scope="module", params=list(SUITE))
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    made = Family(request.param, *SUITE[request.param])
    yield made
    made.env.close()


@pytest.fixture(scope="module")
def alien() -> Any:
    """A state of another game."""
    with plangym_like.make("ALE/Breakout-v5") as env:
        return env.reset(seed=0).state


BAD_ACTIONS: dict[str, list[Any]] = {
    "CartPole": [2, -1, 1.0, 0.5, np.nan, "0", None, [0], 2**40, 2**70, {}],
    "Pendulum": [[2.1], [-2.1], [np.nan], [np.inf], 0.5, [0, 0], ["a"], [None], [1e300], []],
    "MsPacman": [9, -1, np.nan, 1.5, "1", None, 10**6],
    "Levers": [[201, 0], [0, 256], [-1, 0], [0.5, 0], [np.nan, 0], 3, [0, 0, 0]],
    "Nested": [
        *(3, None, "a", {}, {"move": [0, 0]}),
        {"move": np.array([0, 2], np.float32), "pick": 0},
        {"move": np.array([0, np.nan], np.float32), "pick": 0},
        {"move": np.zeros(2, np.float32), "pick": 3},
    ],
}


@settings(max_examples=25)
@given(data=st.data())
def test_an_action_outside_the_space(family, data):
    bad = data.draw(st.sampled_from(BAD_ACTIONS[family.key]))
    place = data.draw(st.integers(0, COUNT - 1))
    actions = [*family.actions[:place], bad, *family.actions[place + 1 :]]
    error = family.refusal(lambda env: env.step_batch(actions, family.states))
    assert isinstance(error, ActionError)
    family.refusal(lambda env: env.step_batch(actions))
    family.refusal(lambda env: env.step_batch(actions, family.states[0], blocking=False))
    family.refusal(lambda env: env.step(bad, family.states[0]))
    family.refusal(lambda env: env.step(bad))
    grid = [[action, action] for action in family.actions]
    grid[place] = [family.actions[0], bad]
    assert isinstance(
        family.refusal(lambda env: env.rollout_batch(grid, family.states)), ActionError
    )


def test_truth_values_are_no_actions(family):
    # Among ints in one list, NumPy takes a truth value for one.
    if family.key == "CartPole":
        assert isinstance(family.refusal(lambda env: env.step(True)), ActionError)
        truths = [True] * COUNT
        family.refusal(lambda env: env.step_batch(truths, family.states))


@settings(max_examples=30)
@given(data=st.data())
def test_states_that_are_none(family, data):
    place = data.draw(st.integers(0, COUNT - 1))
    good, width = list(family.states), family.states.shape[1]
    wrong = data.draw(
        st.sampled_from(
            [
                None,
                good[place][:-1],
                good[place][:-8],
                good[place][:20],
                np.append(good[place], np.uint8(0)),
                good[place].astype(np.int64),
                good[place].astype(np.float32),
                good[place].tobytes(),
                np.zeros(width, np.uint8),
                np.full(width, 255, np.uint8),
                7,
                "state",
            ]
        )
    )
    states = [*good[:place], wrong, *good[place + 1 :]]
    error = family.refusal(lambda env: env.step_batch(family.actions, states))
    assert isinstance(error, StateFormatError)
    if wrong is None:
        assert f"None in place of row {place}" in str(error)
    else:
        family.refusal(lambda env: env.step_batch(family.actions, wrong))
        family.refusal(lambda env: env.step(family.actions[0], wrong))
    family.refusal(lambda env: env.rollout_batch([family.actions], states))
    family.refusal(lambda env: env.set_state(wrong))
    family.refusal(lambda env: env.view_state(wrong))


def test_a_state_of_another_game(family, alien):
    for call in (
        lambda env: env.step_batch(family.actions, alien),
        lambda env: env.step_batch(family.actions, np.stack([alien] * COUNT)),
        lambda env: env.rollout_batch([family.actions], alien),
        lambda env: env.step(family.actions[0], alien),
        lambda env: env.set_state(alien),
        lambda env: env.make_state(alien),
        lambda env: env.view_state(alien),
    ):
        error = family.refusal(call)
        assert isinstance(error, StateMismatchError)
        assert "breakout" in error.got and "breakout" not in error.expected


@settings(max_examples=20)
@given(data=st.data())
def test_a_state_whose_header_was_changed(family, data):
    states = family.states.copy()
    bit = data.draw(st.integers(0, 8 * 32 - 1))
    states[3, bit // 8] ^= 1 << bit % 8
    error = family.refusal(lambda env: env.step_batch(family.actions, states))
    assert "row 3" in str(error)
    family.refusal(lambda env: env.set_state(states[3]))


def test_many_states_where_one_is_meant(family):
    for call in (
        lambda env: env.set_state(family.states),
        lambda env: env.step(family.actions[0], family.states),
    ):
        assert "one state row" in str(family.refusal(call))


# What an environment itself raises


@settings(max_examples=15)
@given(blown=st.sets(st.integers(0, 29), min_size=1, max_size=4))
def test_the_lowest_row_that_raises_is_told(blown):
    actions = np.array([3 if index in blown else index % 3 for index in range(30)])
    lowest = min(blown)
    with plangym_like.make(Fuse) as env:
        start = env.reset(seed=0).state
        states = [start]
        for _ in range(29):
            states.append(env.step(1, states[-1]).state)
        env.set_state(states[1])
        with pytest.raises(ArithmeticError, match=rf"at a load of {lowest}\b") as caught:
            env.step_batch(actions, np.stack(states))
        assert [note for note in caught.value.__notes__ if f"row {lowest} " in note]
        assert_same(env.get_state(), states[1])
        good = env.step_batch(np.arange(30) % 3, np.stack(states))
        assert good.obs.tolist() == [index + index % 3 for index in range(30)]
        with pytest.raises(ArithmeticError):
            env.rollout_batch(np.stack([np.ones(30, int), actions]), start)
