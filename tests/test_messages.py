"""What users read after a mistake: the message names the mistake and the remedy."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from suite import TAXI

import plangym_like
from plangym_like.errors import (
    ClosedError,
    EnvApiError,
    InputError,
    PlangymError,
    StateMismatchError,
)


@pytest.fixture
def env() -> Any:
    with plangym_like.make("CartPole-v1") as env:
        env.reset(seed=0)
        yield env


@pytest.mark.parametrize("name", ["CartPole-v1", "ALE/Pong-v5", "HalfCheetah-v5"])
@pytest.mark.parametrize("n_workers", [None, 1])
def test_a_misspelled_option(name: str, n_workers: int | None) -> None:
    words = r"neither make nor \w+Env has an option 'frame_skip_'; did you mean 'frameskip'"
    with pytest.raises(InputError, match=words):
        plangym_like.make(name, n_workers, frame_skip_=2)
    with pytest.raises(InputError, match="'n_worker'; did you mean 'n_workers'"):
        plangym_like.make_vec(name, 2, n_worker=2)
    with pytest.raises(InputError, match="has an option 'qqq'$"):
        plangym_like.make(name, n_workers, qqq=1)


class Plain(gymnasium.Env[Any, Any]):
    """Has no constructor of its own."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2), 0.0, False, False, {}


@pytest.mark.parametrize("n_workers", [None, 1])
def test_a_misspelled_option_of_a_class_without_a_constructor(n_workers: int | None) -> None:
    with pytest.raises(InputError, match="nor Plain has an option 'n_worker'; did you mean 'n_wo"):
        plangym_like.make(Plain, n_workers, wrappers=[], n_worker=2)


@pytest.mark.parametrize(
    ("option", "snapshot"),
    [("replay_capacity", "replay"), ("live_prefixes", "replay"), ("allow_pickle", "pickle")],
)
def test_an_option_of_another_way_to_save_states(option: str, snapshot: str) -> None:
    words = f"CartPoleEnv has no option '{option}'; it belongs to snapshot='{snapshot}'"
    with pytest.raises(InputError, match=words):
        plangym_like.make("CartPole-v1", **{option: 2})


@pytest.mark.parametrize("capacity", [-1, "2", 1.5])
def test_capacities_are_whole_numbers(capacity: Any) -> None:
    with pytest.raises(InputError, match="state_capacity must be a whole number of at least 1"):
        plangym_like.make(Plain, state_capacity=capacity)


class OldReset(Plain):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2)


class OldResetOfThree(Plain):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(3)


class OldStep(Plain):
    def step(self, action: Any) -> Any:
        return np.zeros(2), 0.0, False, {}


class ResetWithoutSeed(Plain):
    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(2), {}


class WithoutSpace(Plain):
    action_space = None  # type: ignore[assignment]


class WithoutInfo(Plain):
    def step(self, action: Any) -> Any:
        return np.zeros(2), 0.0, False, False, None


@pytest.mark.parametrize(
    ("env_class", "words"),
    [
        (OldReset, r"reset returned a ndarray, not \(obs, info\)"),
        (OldResetOfThree, r"reset returned a ndarray, not \(obs, info\)"),
        (OldStep, r"a tuple of 4 parts, not .* as in Gym before 0\.26"),
        (WithoutInfo, "the info must be a dict, got NoneType"),
        (ResetWithoutSeed, r"reset of ResetWithoutSeed cannot .* as reset\(self, \*, seed=Non"),
        (WithoutSpace, "action_space of WithoutSpace is None, not a space: set it"),
    ],
)
@pytest.mark.parametrize("n_workers", [None, 1])
def test_environments_of_another_api(env_class: Any, words: str, n_workers: int | None) -> None:
    with pytest.raises(EnvApiError, match=words):
        plangym_like.make(env_class, n_workers)


class WithoutSomeInfos(Plain):
    """Two actions, which trials do not take, give no info."""

    action_space = gymnasium.spaces.Discrete(1000)

    def step(self, action: Any) -> Any:
        return np.zeros(2), 0.0, False, False, {998: (), 999: None}.get(int(action), {})


@pytest.mark.parametrize(("action", "kind"), [(998, "tuple"), (999, "NoneType")])
def test_an_info_that_is_missing_later(action: int, kind: str) -> None:
    with plangym_like.make(WithoutSomeInfos, audit="off") as env:
        state = env.reset(seed=0).state
        for count in (1, 2):
            with pytest.raises(EnvApiError, match=f"must be a dict, got {kind}"):
                env.step_batch([action] * count, state)
            errors = env.step_batch([action] * count, state, on_error="mask").infos.errors
            assert list(errors) == list(range(count))
            assert all(isinstance(error, EnvApiError) for error in errors.values())
        with pytest.raises(EnvApiError, match=f"must be a dict, got {kind}"):
            env.step(action, state=state)


def test_a_callable_that_returns_no_environment() -> None:
    with pytest.raises(
        InputError, match=r"dict must return a gymnasium\.Env, got .* builtins\.dict"
    ):
        plangym_like.make(dict)


@pytest.mark.parametrize(
    "wrappers",
    [
        gymnasium.wrappers.FlattenObservation,
        ["FlattenObservation"],
        (gymnasium.wrappers.FrameStackObservation, {"stack_size": 2}),
    ],
)
@pytest.mark.parametrize("make", [plangym_like.make, plangym_like.ClassicControlEnv])
def test_wrappers_that_are_not_a_list_of_wrappers(make: Any, wrappers: Any) -> None:
    with pytest.raises(
        InputError, match=r"must be a list of wrapper classes or pairs \(class, arg"
    ):
        make("CartPole-v1", wrappers=wrappers)


def test_a_type_error_of_the_environment_itself_is_raised_unchanged() -> None:
    def broken() -> gymnasium.Env[Any, Any]:
        raise TypeError("broken() got an unexpected keyword argument 'depth'")

    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        plangym_like.make(broken)


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        ({}, {"sutton_barto_reward": True}, "kwargs is {'sutton_barto_reward': True} in the row"),
        ({}, {"name": "Acrobot-v1"}, "id is 'Acrobot-v1' in the row and 'CartPole-v1' here$"),
        ({}, {"name": TAXI}, "it is of the family TOYT, but the environment is of CLAS$"),
        (
            {"name": "ALE/MsPacman-v5"},
            {"name": "ALE/Pong-v5"},
            "game is 'pong' in the row and 'ms_pacman' here$",
        ),
        (
            {"name": "ALE/Pong-v5"},
            {"name": "ALE/Pong-v5", "frameskip": 2},
            "frameskip is 2 in the row and 4 here$",
        ),
    ],
)
def test_a_state_of_another_environment(
    here: dict[str, Any], there: dict[str, Any], words: str
) -> None:
    name: dict[str, Any] = {"name": "CartPole-v1"}
    with plangym_like.make(**{**name, **there}) as other:
        state = other.reset(seed=0).state
    with plangym_like.make(**{**name, **here}) as env:
        for use in (env.set_state, lambda row: env.step_batch([0], row)):
            with pytest.raises(StateMismatchError, match=words) as caught:
                use(state)
            assert len(str(caught.value)) < 400


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("n_workers", [None, 1])
def test_copies_of_a_live_environment(copied: Callable[[Any], Any], n_workers: int | None) -> None:
    env = plangym_like.make("CartPole-v1", n_workers)
    with env, pytest.raises(TypeError, match=r"use clone\(\)"):
        copied(env)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("n_workers", [None, 1])
def test_copies_of_a_closed_environment(
    copied: Callable[[Any], Any], n_workers: int | None
) -> None:
    env = plangym_like.make("CartPole-v1", n_workers)
    env.close()
    with pytest.raises(TypeError, match=r"is closed, and cannot be .* use clone\(\)"):
        copied(env)


def test_an_environment_in_place_of_its_id() -> None:
    live: Any = gymnasium.make("CartPole-v1")
    with live, pytest.raises(InputError, match=r"existing environment .*: make\('CartPole-v1'\)$"):
        plangym_like.make(live)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("MsPacman-v5", "ALE/MsPacman-v5"),
        ("ALE/MsPackman-v5", "ALE/MsPacman-v5"),
        ("HalfCheetah-v9", "HalfCheetah-v5"),
    ],
)
def test_ids_that_are_nearly_right(name: str, near: str) -> None:
    with pytest.raises(gymnasium.error.Error, match=f"Near matches: .*{near}"):
        plangym_like.make(name)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("walker-wallk", "walker-walk"),
        ("dm_control/walker-walk", "dm_control/walker-walk-v0"),
        ("dm_control/walkr-walk-v0", "dm_control/walker-walk-v0"),
    ],
)
def test_names_of_tasks_that_are_nearly_right(name: str, near: str) -> None:
    pytest.importorskip("dm_control", reason="dm_control is not installed")
    test_ids_that_are_nearly_right(name, near)


def test_statistics_without_workers(env: Any) -> None:
    env.step_batch([0, 1], env.get_state())
    assert env.stats.rows == 2


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ([[0], [1]], r"must have shape \(N\), got shape \(2, 1\)"),
        ([0.0, 1.0], "dtype float64 do not fit the action space Discrete"),
        ([0, 2], "action 2 .*is not in the action space Discrete"),
        ([None], "dtype object do not fit"),
    ],
)
def test_actions(env: Any, actions: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        env.step_batch(actions)


def test_tensors_are_taken_as_arrays(env: Any) -> None:
    state = env.get_state()
    expected = env.step_batch([0, 1], state)
    given = env.step_batch(torch.tensor([0, 1]), torch.tensor(state[None]))
    assert np.array_equal(expected.states, given.states)


class ForeignArray:
    """Becomes an array of NumPy as JAX's arrays do."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.values, dtype)

    def __index__(self) -> int:
        return int(self.values)

    def __getitem__(self, index: int) -> ForeignArray:
        return ForeignArray(self.values[index])


def test_arrays_of_other_libraries_are_taken_as_arrays(env: Any) -> None:
    state = env.get_state()
    expected = env.step_batch([0, 1], state)
    given = env.step_batch(ForeignArray([0, 1]), ForeignArray(state[None]))
    assert np.array_equal(expected.states, given.states)
    one = env.step(ForeignArray(1), ForeignArray(state))
    assert np.array_equal(expected.states[1], one.state)


def test_seeds_are_whole_numbers(env: Any) -> None:
    assert np.array_equal(env.reset(seed=np.int64(3)).state, env.reset(seed=3).state)
    for seed in ("a", -1, 0.5, True):
        with pytest.raises(InputError, match="seed must be a whole number of at least 0, got"):
            env.reset(seed=seed)


@pytest.mark.parametrize("n_workers", [0, -1, 2.5, "2"])
def test_numbers_of_workers(n_workers: Any) -> None:
    with pytest.raises(InputError, match="n_workers must be a whole number of at least 1, got"):
        plangym_like.make("CartPole-v1", n_workers=n_workers)


def test_use_after_close(env: Any) -> None:
    env.close()
    for use in (env.reset, env.get_state, lambda: env.step(0), lambda: env.step_batch([0])):
        with pytest.raises(ClosedError, match="CartPole-v1 has been closed"):
            use()
    with pytest.raises(AttributeError, match="closed 'PlanEnv' object has no attribute 'gravity'"):
        _ = env.gravity


def test_an_attribute_that_does_not_exist(env: Any) -> None:
    with pytest.raises(AttributeError, match="'PlanEnv' object has no attribute 'step_bach'"):
        env.step_bach([0])


class _Steps(torch.utils.data.Dataset[float]):
    def __init__(self, env: Any) -> None:
        self.env, self.state = env, env.reset(seed=0).state

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> float:
        return float(self.env.step_batch([index], self.state).rewards[0])


# Forking is what this test is about; Python 3.12 warns of it in programs with threads.
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_an_environment_in_a_data_loader() -> None:
    def load(env: Any) -> list[Any]:
        loader = torch.utils.data.DataLoader(
            _Steps(env), num_workers=1, multiprocessing_context="fork"
        )
        return [float(value) for value in loader]

    with plangym_like.make("CartPole-v1") as env:
        assert load(env) == [1.0, 1.0]
    env = plangym_like.make("CartPole-v1", n_workers=1)
    with env, pytest.raises(PlangymError, match="make or clone another one here"):
        load(env)
