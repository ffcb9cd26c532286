"""Wrappers that cannot be saved are refused by name; the others say what their rows mean."""

import functools
import io
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from continuation import (
    PlainSimulator,
    assert_goes_on,
)
from gymnasium import wrappers
from remembering_wrappers import Counting, Tracker, Tracking

from plangym_like.errors import SnapshotError
from plangym_like.snapshots.wrapper_memory import WrapperMemory

# Ended episodes are played on, which has to be as deterministic as any other step.
pytestmark = pytest.mark.filterwarnings("ignore:.*already returned terminated")


# What cannot be saved


class Holding(gym.Wrapper):
    def __init__(self, env: gym.Env, thing: Any) -> None:
        super().__init__(env)
        self.thing = thing


class Slotted(gym.Wrapper):
    __slots__ = ("count",)


class Video(wrappers.RecordVideo):
    def __init__(self, env: gym.Env) -> None:
        gym.Wrapper.__init__(self, env)


class Window(wrappers.HumanRendering):
    def __init__(self, env: gym.Env) -> None:
        gym.Wrapper.__init__(self, env)


def _forgetful(reward: float) -> float:
    return reward + 1


def _counter() -> Any:
    count = 0

    def func(reward: float) -> float:
        nonlocal count
        count += 1
        return reward * count

    return func


def _collector(container: Any) -> Any:
    def func(reward: float) -> float:
        container.append(reward)
        return reward

    return func


def _writer(table: Any) -> Any:
    def func(reward: float) -> float:
        table[int(reward)] = reward
        return reward

    return func


def _drawer(generator: Any) -> Any:
    return lambda reward: reward + generator.normal()


_GLOBAL: list[float] = []


def _into_the_module(reward: float) -> float:
    _GLOBAL.append(reward)
    return reward


def _into_its_default(reward: float, log: list[float] = []) -> float:  # noqa: B006
    log.append(reward)
    return reward


FUNCTIONS_THAT_REMEMBER = {
    "nonlocal": (_counter, "assigns to 'count' of its closure"),
    "list": (lambda: _collector([]), "changes 'container', a list"),
    "array": (lambda: _writer(np.zeros(3)), "changes 'table', a ndarray"),
    "dict": (lambda: _writer({}), "changes 'table', a dict"),
    "generator": (lambda: _drawer(np.random.default_rng(0)), "draws from 'generator'"),
    "module": (lambda: _into_the_module, "changes the global '_GLOBAL'"),
    "default": (lambda: _into_its_default, "changes the default of 'log'"),
    "partial": (
        lambda: functools.partial(_collector, container=[]),
        "changes the argument of a partial, a list",
    ),
    "global generator": (lambda: lambda r: r + np.random.random(), "numpy.random"),
    "inner": (lambda: functools.partial(_counter()), "assigns to 'count'"),
}


@pytest.mark.parametrize("kind", FUNCTIONS_THAT_REMEMBER)
def test_a_function_that_remembers_is_refused(kind: str) -> None:
    make, reason = FUNCTIONS_THAT_REMEMBER[kind]
    env = wrappers.TransformReward(gym.make("CartPole-v1"), make())
    env.reset()
    with pytest.raises(SnapshotError, match=reason) as caught:
        WrapperMemory(env)
    assert "TransformReward.func" in str(caught.value)


@pytest.mark.parametrize(
    "func",
    [
        _forgetful,
        np.tanh,
        functools.partial(np.multiply, 2.0),
        functools.partial(np.add, np.ones(1)),
        (lambda goal: lambda reward: np.append(goal, reward)[0])(np.zeros(2)),
        (lambda table: lambda reward: reward + table["bonus"])({"bonus": 1}),
        (lambda mean: lambda reward: [out := np.zeros(1), out.fill(mean[0])] and reward)([1.0]),
        functools.lru_cache(_forgetful),
    ],
)
def test_a_function_that_remembers_nothing_is_left_alone(func: Any) -> None:
    env = wrappers.TransformReward(gym.make("CartPole-v1", max_episode_steps=-1), func)
    env.reset()
    assert WrapperMemory(env).nbytes == 0


class Normalizer:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, reward: float) -> float:
        self.count += 1
        return reward / self.count

    def scaled(self, reward: float) -> float:
        return self(reward)


@pytest.mark.parametrize(
    "make",
    [Normalizer, lambda: Normalizer().scaled, lambda: (lambda n: lambda r: n(r))(Normalizer())],
)
def test_an_object_that_is_called_is_part_of_the_state(make: Any) -> None:
    sim = PlainSimulator(
        "CartPole-v1", wrappers=[lambda env: wrappers.TransformReward(env, make())]
    )
    for seed in range(3):
        assert_goes_on(sim, seed=seed)


REFUSED = {
    "lock": (lambda env: Holding(env, [1, threading.Lock()]), r"Holding\.thing.*lock"),
    "thread": (lambda env: Holding(env, threading.Thread()), r"Holding\.thing.*not plain data"),
    "file": (lambda env: Holding(env, io.StringIO()), r"Holding\.thing.*_io\.StringIO"),
    "generator": (lambda env: Holding(env, (x for x in "ab")), r"Holding\.thing.*generator"),
    "legacy": (lambda env: Holding(env, np.random.RandomState(0)), r"thing.*RandomState"),
    "env": (lambda env: Holding(env, gym.make("CartPole-v1")), r"thing.*another environment"),
    "objects": (lambda env: Holding(env, np.array([object()])), r"thing.*dtype object"),
    "nested": (lambda env: Holding(env, {"a": [Tracker()]}), r"thing\['a'\].*Tracker"),
    "slots": (Slotted, "Slotted cannot be saved"),
    "video": (Video, "Video cannot be saved: it writes files"),
    "window": (Window, "Window cannot be saved: it owns a window"),
    "pictures": (wrappers.RenderCollection, "RenderCollection cannot be saved.*no end"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_saved_is_refused_by_name(kind: str) -> None:
    make, reason = REFUSED[kind]
    inner = gym.make("CartPole-v1", render_mode="rgb_array")
    inner.reset()
    env = make(inner)
    with pytest.raises(SnapshotError, match=reason):
        WrapperMemory(env)
    inner.close()


def test_an_attribute_that_becomes_unsaveable_is_named_when_it_does() -> None:
    env = Holding(gym.make("CartPole-v1"), 3)
    env.reset()
    memory = WrapperMemory(env)
    env.thing = object()
    with pytest.raises(SnapshotError, match=r"Holding\.thing.*keep what a wrapper remembers"):
        memory.read(np.zeros(memory.nbytes, np.uint8))
    env = Holding(gym.make("CartPole-v1"), _forgetful)
    env.reset()
    memory = WrapperMemory(env)
    env.thing = len
    with pytest.raises(SnapshotError, match=r"Holding\.thing.*has been replaced"):
        memory.read(np.zeros(memory.nbytes, np.uint8))


def test_a_class_may_say_itself_what_its_memory_is() -> None:
    class Declared(Holding):
        state_attributes = ("count",)

        def __init__(self, env: gym.Env) -> None:
            super().__init__(env, threading.Thread())
            self.count = 0

    env = Declared(gym.make("CartPole-v1"))
    env.reset()
    memory = WrapperMemory(env)
    payload = np.zeros(memory.nbytes, np.uint8)
    memory.read(payload)
    env.count = 5
    memory.write(payload)
    assert env.count == 0


def test_a_declared_attribute_has_to_exist() -> None:
    class Misspelled(Holding):
        state_attributes = ("thing", "thong")

    env = Misspelled(gym.make("CartPole-v1"), 3)
    env.reset()
    with pytest.raises(SnapshotError, match="Misspelled.*thong"):
        WrapperMemory(env)


def test_a_helper_that_changes_its_class_is_refused() -> None:
    env = Tracking(gym.make("CartPole-v1"))
    env.reset()
    memory = WrapperMemory(env)
    env.tracker = Normalizer()
    with pytest.raises(SnapshotError, match=r"Tracking\.tracker was an object of class .*Tracker"):
        memory.read(np.zeros(memory.nbytes, np.uint8))


# What a row means


def test_the_meaning_tells_wrappers_and_their_arguments_apart() -> None:
    def meaning(make: Any) -> Any:
        env = make(gym.make("CartPole-v1", max_episode_steps=-1))
        env.reset()
        return WrapperMemory(env).meaning()

    makes = [
        lambda env: env,
        lambda env: Counting(env),
        lambda env: Counting(env, 2.0),
        lambda env: wrappers.FrameStackObservation(env, 2),
        lambda env: wrappers.FrameStackObservation(env, 3),
        lambda env: wrappers.TransformReward(env, lambda r: r + 1),
        lambda env: wrappers.TransformReward(env, lambda r: r + 2),
        lambda env: wrappers.TransformReward(env, (lambda k: lambda r: r + k)(1)),
        lambda env: wrappers.TransformReward(env, (lambda k: lambda r: r + k)(2)),
    ]
    meanings = [repr(meaning(make)) for make in makes]
    assert len(set(meanings)) == len(makes)
    assert meanings == [repr(meaning(make)) for make in makes]
    assert "0x" not in "".join(meanings)


def test_a_checking_wrapper_gives_rows_no_other_meaning() -> None:
    plain, checked = (
        gym.make("CartPole-v1", disable_env_checker=disabled) for disabled in (True, False)
    )
    assert WrapperMemory(plain).meaning() == WrapperMemory(checked).meaning()
