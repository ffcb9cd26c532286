"""Bad input: the same error on every backend, raised before anything is sent or changed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from comparing import assert_same, content, reached
from conftest import BACKENDS, make_on
from hypothesis import given, settings
from hypothesis import strategies as st
from small_envs import Fuse, Levers, Nested

from plangym_like.errors import (
    ActionError,
    ClosedError,
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
    """One environment on every backend, with a good batch for it."""

    def __init__(self, name: Any, kwargs: dict[str, Any]) -> None:
        self.envs = {backend: make_on(backend, name, **kwargs) for backend in BACKENDS}
        serial = self.envs["serial"]
        space = serial.action_space
        space.seed(0)
        self.space = space
        self.actions = [space.sample() for _ in range(COUNT)]
        self.states = reached(serial, COUNT, every=2)
        for env in self.envs.values():
            env.set_state(self.states[1])

    def refusal(self, call: Any) -> BaseException:
        """Return what `call` raises on every backend, after checking that it is the same on all."""
        errors = {}
        for backend, env in self.envs.items():
            sent = env.stats.rows_sent if backend != "serial" else 0
            with pytest.raises((InputError, StateError)) as caught:
                call(env)
            errors[backend] = caught.value
            # The process that steps a row verifies its checksum.
            if backend != "serial" and "checksum" not in str(caught.value):
                assert env.stats.rows_sent == sent, backend
            assert_same(env.get_state(), self.states[1], f"the current state ({backend})")
        first = errors["serial"]
        for backend, error in errors.items():
            assert type(error) is type(first), backend
            assert str(error) == str(first), backend
            assert getattr(error, "__notes__", None) is None, backend
        return first

    def close(self) -> None:
        for env in self.envs.values():
            env.close()


@pytest.fixture(scope="module", params=list(SUITE))
def family(cluster: Any, request: pytest.FixtureRequest) -> Iterator[Family]:
    made = Family(*SUITE[request.param])
    yield made
    made.close()


@pytest.fixture(scope="module")
def alien() -> Any:
    """A state of another game."""
    env = make_on("serial", "ALE/Breakout-v5")
    state = env.reset(seed=0).state
    env.close()
    return state


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
BAD_DT: list[Any] = [0, -1, 1.5, 1.0, True, np.nan, None, "2", 2**63, np.bool_(True), [[1]]]
BAD_SEEDS: list[Any] = [-1, 0.5, True, "1", [None], [[1, 2]], 2**70]


def name_of(family: Family) -> str:
    return next(key for key, (name, _) in SUITE.items() if name in (family.envs["serial"]._name,))


@settings(max_examples=25)
@given(data=st.data())
def test_an_action_outside_the_space(family, data):
    bad = data.draw(st.sampled_from(BAD_ACTIONS[name_of(family)]))
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
    if name_of(family) == "CartPole":
        assert isinstance(family.refusal(lambda env: env.step(True)), ActionError)
        truths = [True] * COUNT
        family.refusal(lambda env: env.step_batch(truths, family.states))


@settings(max_examples=25)
@given(data=st.data())
def test_a_dt_that_is_no_step_count(family, data):
    bad = data.draw(st.sampled_from(BAD_DT))
    place = data.draw(st.integers(0, COUNT - 1))
    many = [1] * COUNT
    many[place] = bad
    for dt in (bad, many):
        if dt is many and isinstance(bad, bool | np.bool_):
            continue  # among ints, NumPy takes a truth value for one
        error = family.refusal(lambda env, dt=dt: env.step_batch(family.actions, family.states, dt))
        assert isinstance(error, InputError)
        family.refusal(lambda env, dt=dt: env.rollout_batch([family.actions], dt=dt))
    family.refusal(lambda env: env.step(family.actions[0], dt=bad))
    assert isinstance(
        family.refusal(lambda env: env.step(family.actions[0], family.states[0], [1, 2])),
        InputError,
    )


@settings(max_examples=15)
@given(bad=st.sampled_from(BAD_SEEDS))
def test_a_seed_that_is_none(family, bad):
    for call in (
        lambda env: env.step_batch(family.actions, family.states, seeds=bad),
        lambda env: env.rollout_batch([family.actions], family.states, seeds=bad),
    ):
        assert "seeds" in str(family.refusal(call))


@settings(max_examples=25)
@given(data=st.data())
def test_lengths_that_differ(family, data):
    lengths = data.draw(
        st.tuples(*[st.sampled_from([0, 1, 2, 3, 5])] * 4).filter(
            lambda lengths: len({length for length in lengths if length != 1}) > 1
        )
    )
    actions, states, dt, seeds = lengths
    error = family.refusal(
        lambda env: env.step_batch(
            family.actions[:actions], family.states[:states], [1] * dt, seeds=[1] * seeds
        )
    )
    assert isinstance(error, InputError)
    assert f"{actions} actions, {states} states" in str(error)


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


@pytest.mark.parametrize("states", [7, object(), "states", {}, [None] * COUNT, np.array(None)])
def test_what_is_no_batch_of_states(family, states):
    error = family.refusal(lambda env: env.step_batch(family.actions, states))
    assert isinstance(error, StateFormatError)


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


def test_good_batches_still_work_after_all_that(family):
    results = {}
    for backend, env in family.envs.items():
        with pytest.raises(InputError):
            env.step_batch(family.actions, family.states, dt=0)
        results[backend] = env.step_batch(family.actions, family.states)
    for backend, result in results.items():
        assert content(tuple(result)) == content(tuple(results["serial"])), backend


def test_the_empty_batch_is_no_error(family):
    for env in family.envs.values():
        assert len(env.step_batch([], family.states[:0]).rewards) == 0
        assert len(env.rollout_batch([], family.states[:0]).rewards) == 0
        assert_same(env.get_state(), family.states[1])


def test_use_after_close_is_the_same_everywhere(cluster):
    told = {}
    for backend in BACKENDS:
        env = make_on(backend, "CartPole-v1")
        state = env.reset(seed=0).state
        env.close()
        for what, use in {
            "step_batch": lambda env, state: env.step_batch([0, 1], state),
            "bad step_batch": lambda env, state: env.step_batch([7], state),
            "rollout_batch": lambda env, state: env.rollout_batch([[0, 1]], state),
            "step": lambda env, state: env.step(0),
            "reset": lambda env, state: env.reset(),
            "get_state": lambda env, state: env.get_state(),
            "set_state": lambda env, state: env.set_state(state),
            "save_states": lambda env, state: env.save_states("nowhere", state),
            "load_states": lambda env, state: env.load_states("nowhere"),
            "spaces": lambda env, state: env.observation_space,
        }.items():
            with pytest.raises(ClosedError) as caught:
                use(env, state)
            told.setdefault(what, set()).add((type(caught.value), str(caught.value)))
    assert {what: len(errors) for what, errors in told.items()} == dict.fromkeys(told, 1)


# What an environment itself raises


@pytest.fixture(scope="module")
def fuses(cluster: Any) -> Iterator[Family]:
    made = Family(Fuse, {})
    yield made
    made.close()


@settings(max_examples=15)
@given(blown=st.sets(st.integers(0, 29), min_size=1, max_size=4))
def test_the_lowest_row_that_raises_is_told_everywhere(fuses, blown):
    actions = np.array([3 if index in blown else index % 3 for index in range(30)])
    serial = fuses.envs["serial"]
    climb = serial.rollout_batch(np.full((1, 30), 1), fuses.states[:1], return_observations=True)
    assert climb.observations[0, -1] >= 30
    start = serial.reset(seed=0).state
    states = [start]
    for _ in range(29):
        states.append(serial.step(1, states[-1]).state)
    lowest = min(blown)
    for env in fuses.envs.values():
        env.set_state(fuses.states[1])
        with pytest.raises(ArithmeticError, match=rf"at a load of {lowest}\b") as caught:
            env.step_batch(actions, np.stack(states))
        assert [note for note in caught.value.__notes__ if f"row {lowest} " in note]
        assert_same(env.get_state(), fuses.states[1])
        good = env.step_batch(np.arange(30) % 3, np.stack(states))
        assert good.obs.tolist() == [index + index % 3 for index in range(30)]
        grid = np.stack([np.ones(30, int), actions])
        with pytest.raises(ArithmeticError):
            env.rollout_batch(grid, start)
