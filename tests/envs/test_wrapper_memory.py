"""Wrappers: what they remember is in the row, and what cannot be is refused by name."""

import enum
import functools
import io
import threading
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from continuation import (
    PlainSimulator,
    assert_equals_gymnasium,
    assert_goes_on,
    content,
    format_of,
    restore,
    saved,
)
from gymnasium import wrappers

import plangym_like
from plangym_like.envs.gymnasium_simulator import without_time_limit
from plangym_like.envs.wrapper_memory import WrapperMemory
from plangym_like.errors import SnapshotError, StateCapacityError, StateFormatError
from plangym_like.random_state import seeded_generator

# Ended episodes are played on, which has to be as deterministic as any other step.
pytestmark = pytest.mark.filterwarnings("ignore:.*already returned terminated")


class Counting(gym.Wrapper):
    """Remembers in every plain way there is."""

    def __init__(self, env: gym.Env, scale: float = 1.0) -> None:
        super().__init__(env)
        self.scale = scale
        self.steps = 0
        self.best: float | None = None
        self.last: Any = None
        self.frames: deque = deque(maxlen=3)
        self.visits: dict[tuple[int, ...], int] = {}
        self.seen: set[int] = set()
        self.noise = np.random.default_rng(7)

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        self.steps, self.best, self.last = 0, None, None
        self.frames.clear()
        self.visits, self.seen = {}, set()
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        reward = float(reward) * self.scale + self.noise.normal()
        self.best = reward if self.best is None else max(reward, self.best)
        self.frames.append(obs)
        self.last = self.frames[0]
        cell = tuple(int(x) for x in np.sign(np.ravel(obs)))
        self.visits[cell] = self.visits.get(cell, 0) + 1
        self.seen.add(self.steps % 5)
        info = {"best": self.best, "first": self.last.sum(), "seen": len(self.seen), **info}
        return obs, reward + 1 / self.visits[cell], terminated, truncated, info


class Blender(gym.ObservationWrapper):
    """Keeps an array that it changes in place, and a view of it."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.ring = np.zeros((3, *env.observation_space.shape), np.float32)
        self.newest = self.ring[0]

    def observation(self, observation: Any) -> Any:
        self.ring = np.roll(self.ring, 1, axis=0)
        self.newest = self.ring[0]
        self.newest[...] = observation
        return self.ring.mean(axis=0)


class Tracker:
    def __init__(self) -> None:
        self.total = 0.0
        self.log: list[float] = []


class Tracking(gym.Wrapper):
    """Holds an object of its own class, and makes a new one in each reset."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.tracker = Tracker()

    def reset(self, **kwargs: Any) -> Any:
        self.tracker = Tracker()
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.tracker.total += float(reward)
        self.tracker.log = [*self.tracker.log[-3:], self.tracker.total]
        info = {"log": list(self.tracker.log)}
        return obs, self.tracker.total, terminated, truncated, info


class Late(Tracking):
    """Makes its helper in the first reset."""

    def __init__(self, env: gym.Env) -> None:
        gym.Wrapper.__init__(self, env)


class Mode(enum.Enum):
    CALM = 0
    WILD = 1


class Moody(gym.Wrapper):
    """An enumeration, a table of functions, a dynamic attribute, and the base's own generator."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.mode = Mode.CALM
        self.plans = [np.abs, np.negative]
        self.rng = env.unwrapped.np_random

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        self.rng = self.np_random
        vars(self).pop("late", None)
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self.rng.random() < 0.3:
            self.mode = Mode.WILD if self.mode is Mode.CALM else Mode.CALM
            self.plans = self.plans[::-1]
            self.late = float(self.np_random.random())
        info = {"mode": self.mode.value, "late": getattr(self, "late", None)}
        return self.plans[0](obs), reward, terminated, truncated, info


CHAINS: dict[str, tuple[str, list[Any]]] = {
    "time limit": ("CartPole-v1", [(wrappers.TimeLimit, {"max_episode_steps": 9})]),
    "autoreset": ("CartPole-v1", [wrappers.Autoreset]),
    "frame stack": ("CartPole-v1", [(wrappers.FrameStackObservation, {"stack_size": 4})]),
    "frame stack of zeros": (
        "Pendulum-v1",
        [(wrappers.FrameStackObservation, {"stack_size": 3, "padding_type": "zero"})],
    ),
    "delay": ("Pendulum-v1", [(wrappers.DelayObservation, {"delay": 5})]),
    "time": (
        "CartPole-v1",
        [(wrappers.TimeLimit, {"max_episode_steps": 50}), wrappers.TimeAwareObservation],
    ),
    "max and skip": ("CartPole-v1", [(wrappers.MaxAndSkipObservation, {"skip": 3})]),
    "normalised observations": ("Pendulum-v1", [wrappers.NormalizeObservation]),
    "normalised rewards": ("Pendulum-v1", [wrappers.NormalizeReward]),
    "sticky": ("CartPole-v1", [(wrappers.StickyAction, {"repeat_action_probability": 0.5})]),
    "sticky for long": (
        "Pendulum-v1",
        [
            (
                wrappers.StickyAction,
                {"repeat_action_probability": 0.4, "repeat_action_duration": (1, 5)},
            )
        ],
    ),
    "repeat": ("CartPole-v1", [(wrappers.RepeatAction, {"num_repeats": 2})]),
    "functions": (
        "Pendulum-v1",
        [
            (wrappers.RescaleAction, {"min_action": np.float32(-1), "max_action": np.float32(1)}),
            (wrappers.TransformReward, {"func": lambda reward: reward / 10}),
            (wrappers.ClipReward, {"min_reward": -1.0, "max_reward": 0.0}),
            (wrappers.ReshapeObservation, {"shape": (3, 1)}),
        ],
    ),
    "many": (
        "CartPole-v1",
        [
            (wrappers.StickyAction, {"repeat_action_probability": 0.3}),
            (wrappers.TimeLimit, {"max_episode_steps": 30}),
            wrappers.NormalizeObservation,
            (wrappers.DelayObservation, {"delay": 2}),
            (wrappers.FrameStackObservation, {"stack_size": 3}),
            wrappers.NormalizeReward,
        ],
    ),
    "counting": ("Pendulum-v1", [(Counting, {"scale": 2.0})]),
    "blender": ("CartPole-v1", [Blender]),
    "tracking": ("CartPole-v1", [Tracking]),
    "late": ("CartPole-v1", [Late]),
    "moody": ("CartPole-v1", [Moody]),
    "the user's around Gymnasium's": (
        "CartPole-v1",
        [(wrappers.FrameStackObservation, {"stack_size": 2}), Counting, Tracking, Blender, Moody],
    ),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_a_restored_chain_goes_on_as_if_nothing_had_happened(chain: str) -> None:
    name, made = CHAINS[chain]
    sim = PlainSimulator(name, wrappers=made)
    for seed in range(6):
        assert_goes_on(sim, seed=seed, ends=seed % 2 == 0)
    sim.close()


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_plays_seeded_episodes_as_gymnasium_does(chain: str) -> None:
    name, made = CHAINS[chain]

    def make() -> gym.Env:
        env = without_time_limit(gym.make(name))
        for item in made:
            env = item[0](env, **item[1]) if isinstance(item, tuple) else item(env)
        return env

    sim = PlainSimulator(name, wrappers=made)
    assert_equals_gymnasium(sim, make, seed=3)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_row_of_one_simulator_goes_on_in_another(chain: str) -> None:
    name, made = CHAINS[chain]
    one, other = (PlainSimulator(name, wrappers=made) for _ in range(2))
    assert format_of(one) == format_of(other)
    one.action_space.seed(0)
    one.reset(seed=1)
    for _ in range(5):
        one.step(one.action_space.sample(), 1)
    restore(other, saved(one))
    for _ in range(5):
        action = one.action_space.sample()
        assert content(one.step(action, 1)) == content(other.step(action, 1))
        assert saved(one).tobytes() == saved(other).tobytes()


def test_a_time_limit_alone_is_eight_bytes() -> None:
    env = gym.make("CartPole-v1")
    env.reset(seed=0)
    memory = WrapperMemory(env)
    assert memory.nbytes == 8
    assert memory.time_limit is env
    env.step(0)
    payload = np.zeros(8, np.uint8)
    memory.read(payload)
    assert payload.view("<i8")[0] == 1
    env.step(0)
    memory.write(payload)
    assert env._elapsed_steps == 1
    assert memory.fields(payload[None])["elapsed_steps"].tolist() == [1]


def test_wrappers_without_memory_take_no_bytes() -> None:
    env = gym.make("Pendulum-v1", max_episode_steps=-1)
    env = wrappers.ClipAction(wrappers.TransformObservation(env, np.copy, env.observation_space))
    env.reset()
    memory = WrapperMemory(env)
    assert memory.nbytes == 0
    assert memory.time_limit is None
    assert memory.fields(np.zeros((3, 0), np.uint8)) == {}


def test_the_memory_has_names() -> None:
    env = wrappers.RecordEpisodeStatistics(
        wrappers.FrameStackObservation(wrappers.TimeLimit(gym.make("CartPole-v1"), 5), 2)
    )
    env.reset(seed=0)
    memory = WrapperMemory(env)
    payloads = np.zeros((3, memory.nbytes), np.uint8)
    for payload in payloads:
        env.step(1)
        memory.read(payload)
    fields = memory.fields(payloads)
    assert fields["elapsed_steps"].tolist() == [1, 2, 3]
    assert fields["RecordEpisodeStatistics.episode_lengths"].tolist() == [1, 2, 3]


def test_statistics_of_episodes_are_kept_and_the_clock_is_not() -> None:
    env = wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1", max_episode_steps=6))
    env.reset(seed=0)
    memory = WrapperMemory(env)
    payload = np.zeros(memory.nbytes, np.uint8)
    started = env.episode_start_time
    env.step(0)
    memory.read(payload)
    env.reset(seed=1)
    again = np.zeros_like(payload)
    memory.write(payload)
    memory.read(again)
    assert (again == payload).all()
    assert env.episode_start_time != started
    assert (env.episode_lengths, env.episode_returns) == (1, 1.0)
    for _ in range(5):
        info = env.step(0)[4]
    assert (info["episode"]["l"], info["episode"]["r"]) == (6, 6.0)
    assert list(env.return_queue) == [6.0]
    assert list(env.length_queue) == [6]
    assert env.episode_count == 1
    memory.write(payload)
    assert list(env.return_queue) == []
    assert list(env.length_queue) == []
    assert env.episode_count == 0


def test_a_row_saved_at_the_end_of_an_episode_still_resets_in_the_next_step() -> None:
    sim = PlainSimulator("CartPole-v1", wrappers=[wrappers.Autoreset])
    sim.reset(seed=0)
    while not sim.step(1, 1)[2]:
        pass
    row = saved(sim)
    begun = content(sim.step(1, 1))
    for _ in range(3):
        sim.step(1, 1)
    restore(sim, row)
    assert content(sim.step(1, 1)) == begun


def test_full_statistics_fit_into_the_row() -> None:
    env = wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1", max_episode_steps=3))
    env.reset(seed=0)
    memory = WrapperMemory(env)
    payload = np.zeros(memory.nbytes, np.uint8)
    for _ in range(150):
        for _ in range(3):
            env.step(0)
        env.reset()
        memory.read(payload)
    assert len(env.return_queue) == 100


@pytest.mark.parametrize("kind", [wrappers.NormalizeObservation, wrappers.NormalizeReward])
def test_frozen_statistics_stay_frozen(kind: Any) -> None:
    env = kind(gym.make("Pendulum-v1"))
    env.reset(seed=0)
    env.update_running_mean = False
    memory = WrapperMemory(env)
    payload = np.zeros(memory.nbytes, np.uint8)
    memory.read(payload)
    env.update_running_mean = True
    env.step(env.action_space.sample())
    memory.write(payload)
    assert env.update_running_mean is False
    again = np.zeros_like(payload)
    for _ in range(5):
        env.step(env.action_space.sample())
    memory.read(again)
    names = [name for name in memory.fields(again[None]) if "_rms." in name]
    assert len(names) == 3
    for name in names:
        before, after = (memory.fields(row[None])[name] for row in (payload, again))
        assert (before == after).all()


def test_nothing_shares_memory_with_the_row() -> None:
    env = wrappers.MaxAndSkipObservation(Blender(gym.make("CartPole-v1")))
    env.reset(seed=0)
    memory = WrapperMemory(env)
    payload = np.zeros(memory.nbytes, np.uint8)
    memory.read(payload)
    kept = payload.copy()
    env._obs_buffer[:] = 5
    env.env.ring[:] = 6
    assert (payload == kept).all()
    memory.write(payload)
    env._obs_buffer[:] = 5
    env.env.ring[:] = 6
    assert (payload == kept).all()
    memory.write(payload)
    payload[:] = 0xFF
    assert (env._obs_buffer == 0).all()


def test_reseeding_restarts_the_wrappers_own_generators() -> None:
    sim = PlainSimulator("Pendulum-v1", wrappers=[Counting, Moody])
    sim.reset(seed=0)
    row = saved(sim)

    def draws(seed: int) -> tuple[float, float]:
        restore(sim, row)
        sim.reseed(seed)
        return sim.env.env.noise.random(), sim.base.np_random.random()

    assert draws(3) == draws(3)
    assert draws(3) != draws(4)
    assert draws(3)[1] == seeded_generator(3).random()
    assert draws(3)[0] != draws(3)[1]


def test_a_damaged_row_changes_nothing() -> None:
    env = wrappers.FrameStackObservation(wrappers.TimeLimit(gym.make("CartPole-v1"), 5), 2)
    env.reset(seed=0)
    memory = WrapperMemory(env)
    payload = np.zeros(memory.nbytes, np.uint8)
    memory.read(payload)
    env.step(0)
    before = np.zeros_like(payload)
    memory.read(before)
    random = np.random.default_rng(0)
    for length in (-1, 2**40, 0, memory.nbytes, 3):
        damaged = payload.copy()
        damaged[:8].view("<i8")[0] = length
        with pytest.raises(StateFormatError):
            memory.write(damaged)
    after = np.zeros_like(payload)
    memory.read(after)
    assert (after == before).all()
    for _ in range(300):
        damaged = payload.copy()
        damaged[random.integers(len(payload), size=3)] = random.integers(256, size=3)
        try:
            memory.write(damaged)
        except StateFormatError:
            memory.read(after)
            assert (after == before).all()
        else:
            memory.write(before)


class Hoarding(gym.Wrapper):
    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.history: list[Any] = []

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.history.append(result[0])
        return result


def test_memory_without_end_says_which_option_makes_room() -> None:
    env = Hoarding(gym.make("CartPole-v1"))
    env.reset(seed=0)
    memory = WrapperMemory(env)
    payload = np.zeros(memory.nbytes, np.uint8)
    with pytest.raises(StateCapacityError, match=r"Hoarding.*state_capacity=\d+"):
        for _ in range(200):
            env.step(0)
            memory.read(payload)
    roomy = WrapperMemory(env, 100_000)
    assert roomy.nbytes == 100_000
    payload = np.zeros(roomy.nbytes, np.uint8)
    roomy.read(payload)
    kept = len(env.history)
    env.step(0)
    roomy.write(payload)
    assert len(env.history) == kept
    with pytest.raises(StateCapacityError, match="state_capacity"):
        WrapperMemory(env, 64)


def test_the_option_reaches_the_wrappers() -> None:
    sim = PlainSimulator("CartPole-v1", wrappers=[Hoarding], state_capacity=50_000)
    assert sim.payload_nbytes == 2048 + 50_000


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


# On a real game


@pytest.mark.parametrize(
    ("frameskip", "made"),
    [
        (4, [wrappers.GrayscaleObservation, (wrappers.FrameStackObservation, {"stack_size": 4})]),
        (1, [(wrappers.MaxAndSkipObservation, {"skip": 4}), Blender, wrappers.NormalizeReward]),
        (
            2,
            [
                (wrappers.StickyAction, {"repeat_action_probability": 0.4}),
                (wrappers.TimeLimit, {"max_episode_steps": 15}),
                (wrappers.DelayObservation, {"delay": 2}),
                wrappers.Autoreset,
            ],
        ),
    ],
)
def test_wrappers_around_a_game_go_on(frameskip: int, made: list[Any]) -> None:
    pytest.importorskip("ale_py")
    env = plangym_like.make("ALE/Breakout-v5", frameskip=frameskip, wrappers=made)
    assert_goes_on(env.simulator, seed=2, steps=20)
    env.close()


@pytest.mark.parametrize("terminal_on_life_loss", [False, True])
def test_the_usual_preprocessing_goes_on(terminal_on_life_loss: bool) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    made = [
        (wrappers.AtariPreprocessing, {"terminal_on_life_loss": terminal_on_life_loss}),
        (wrappers.FrameStackObservation, {"stack_size": 4}),
    ]
    env = plangym_like.make("ALE/Breakout-v5", frameskip=1, wrappers=made)
    for seed in range(2):
        assert_goes_on(env.simulator, seed=seed, steps=40, ends=seed % 2 == 0)
    state = env.step(1, env.reset(seed=0).state).state
    preprocessing = env.gym_env.env
    frames = [frame.copy() for frame in preprocessing.obs_buffer]
    preprocessing.game_over = True
    env.step(2, env.step(2, state).state)
    env.set_state(state)
    # An episode that ends between two observations shows what is left in these.
    assert content(preprocessing.obs_buffer) == content(frames)
    assert preprocessing.game_over is False
    env.close()


def test_lives_are_counted_against_the_restored_state() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    made = [(wrappers.AtariPreprocessing, {"terminal_on_life_loss": True})]
    env = plangym_like.make("ALE/Breakout-v5", frameskip=1, wrappers=made, autoreset=False)
    full = env.reset(seed=0).state
    random = np.random.default_rng(0)
    before, lost = full, full
    for _ in range(500):
        action = int(random.integers(4))
        before, (lost, _, _, terminated, _, _) = lost, env.step(action, lost)
        if terminated:
            break
    assert int(env.view_state(lost)["lives"]) == 4
    # A branch with five lives was stepped before: that is no life lost in the rows with four.
    batch = env.step_batch([0, 0, action, 0], [lost, full, before, lost])
    assert batch.terminateds.tolist() == [False, False, True, False]


def test_workers_have_the_same_wrappers() -> None:
    made = [
        (wrappers.FrameStackObservation, {"stack_size": 3}),
        (wrappers.TransformReward, {"func": lambda reward: reward * 2}),
        wrappers.NormalizeObservation,
        (wrappers.TimeLimit, {"max_episode_steps": 3}),
    ]
    results = []
    state = None
    for options in ({}, {"n_workers": 2, "isolate": True}):
        with plangym_like.make("CartPole-v1", wrappers=made, **options) as env:
            state = env.reset(seed=0).state if state is None else state
            rows = np.repeat(state[None], 60, axis=0)
            for step in range(3):
                batch = env.step_batch((np.arange(60) >> step) % 2, rows)
                rows = batch.states
            results.append((rows.tobytes(), batch.obs.tobytes(), batch.truncateds.tolist()))
    assert results[0] == results[1]
    assert all(results[0][2])
