"""What the fingerprint of a state row says about functions and objects in arguments."""

import functools
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TransformReward

import plangym_like
from plangym_like.errors import StateMismatchError
from plangym_like.snapshots.descriptions import describe


class Scale:
    """A function with an argument, which counts its calls."""

    def __init__(self, factor: float, weights: Any = ()) -> None:
        self.factor, self.weights = factor, weights
        self.calls = 0
        self.recent = [0.0]

    def __call__(self, reward: Any) -> float:
        self.calls += 1
        self.recent[0] = reward
        return float(reward * self.factor)


@dataclass(frozen=True)
class Frozen:
    limits: list[int]


@dataclass
class Settings:
    slope: float
    used: int = 0


class Slope(gymnasium.Env[Any, Any]):
    """Its state is a number; its settings are not part of it."""

    observation_space = Box(-np.inf, np.inf, (1,))
    action_space = Discrete(2)

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = np.zeros(1)
        return self.x.astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.settings.used += 1
        self.x = self.x + self.settings.slope * action
        return self.x.astype(np.float32), 0.0, False, False, {}

    def save_state(self) -> Any:
        return self.x

    def load_state(self, saved: Any) -> None:
        self.x = saved


class MakeSlope:
    """A factory that is an object."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def __call__(self) -> Slope:
        return Slope(Settings(self.slope))


def scaled(function: Any) -> Any:
    return lambda reward: function(reward)


def keyword(*, factor: float) -> Any:
    def function(reward: float, *, by: float = factor) -> float:
        return reward * by

    return function


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Scale(1), Scale(2)),
        (Scale(1, (1, 2)), Scale(1, (1, 3))),
        (Scale(1).__call__, Scale(2).__call__),
        (functools.partial(max, Scale(1)), functools.partial(max, Scale(2))),
        (functools.lru_cache(Scale(1)), functools.lru_cache(Scale(2))),
        (scaled(Scale(1)), scaled(Scale(2))),
        (scaled(abs), scaled(round)),
        (scaled(lambda reward: reward), scaled(lambda reward: -reward)),
        (keyword(factor=1), keyword(factor=2)),
        (Frozen([1]), Frozen([2])),
        (Settings(1.0), Settings(2.0)),
        ([Scale(1), Scale(1)], [Scale(1), Scale(2)]),
    ],
)
def test_other_numbers_in_an_object_or_function_are_described_otherwise(
    one: Any, other: Any
) -> None:
    assert describe(one) != describe(other)


def test_what_an_object_counts_is_not_described() -> None:
    used = Scale(2, np.ones(3))
    used(1.0)
    used.weights[0] = 5
    assert used.calls and used.recent[0]
    assert describe(used) == describe(Scale(2, np.ones(3)))
    assert describe(Settings(1.0, used=3), Slope) == describe(Settings(1.0), Slope)


def test_objects_and_functions_that_contain_themselves_are_described() -> None:
    one: Any = Scale(1)
    one.factor = one

    def repeated(count: int) -> Any:
        return repeated(count - 1) if count else None

    assert describe(one) and describe(repeated)


def test_an_object_without_numbers_is_described_by_its_class() -> None:
    assert describe(Slope(None)) == f"{__name__}.Slope"
    assert describe(object()) == "builtins.object"


@pytest.mark.parametrize("n_workers", [None, 2])
def test_rows_of_a_wrapper_with_another_object_are_refused(n_workers: int | None) -> None:
    def make(factor: float) -> Any:
        wrappers = [(TransformReward, {"func": Scale(factor)})]
        return plangym_like.make("CartPole-v1", wrappers=wrappers, n_workers=n_workers)

    with make(1.0) as one, make(2.0) as other:
        state, *_ = one.reset(seed=0)
        for _ in range(2):
            assert (one.step_batch([0, 1] * 4, state).rewards == 1).all()
        with pytest.raises(StateMismatchError):
            other.step_batch([0], state)


@pytest.mark.parametrize("as_argument", [True, False])
def test_rows_of_an_environment_with_other_settings_are_refused(as_argument: bool) -> None:
    def make(slope: float) -> Any:
        if as_argument:
            return plangym_like.make(Slope, settings=Settings(slope), n_workers=2)
        return plangym_like.make(MakeSlope(slope), n_workers=2)

    with make(1.0) as one, make(2.0) as other:
        assert one.snapshot == "native"
        state, *_ = one.reset(seed=0)
        for _ in range(2):
            assert one.step_batch([0, 1] * 4, state).obs[:2].tolist() == [[0], [1]]
        with pytest.raises(StateMismatchError):
            other.step_batch([1], state)


def test_an_argument_that_grows_does_not_stop_the_trial() -> None:
    class Log(Scale):
        def __call__(self, reward: Any) -> float:
            self.recent.append(reward)
            return float(reward)

    wrappers = [(TransformReward, {"func": Log(1)})]
    with plangym_like.make("CartPole-v1", wrappers=wrappers) as env:
        state, *_ = env.reset(seed=0)
        assert env.step_batch([0], state).rewards == 1
