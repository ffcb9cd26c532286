"""Wrappers that cannot be saved are refused by name; the others say what their rows mean."""

import io
import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from continuation import PlainSimulator, assert_goes_on
from gymnasium import wrappers
from impure_wrappers import REFUSED, CounterOnTheBase
from remembering_wrappers import Counting, Tracking
from usual import first_of

import plangym_like
from plangym_like.errors import SnapshotError
from plangym_like.snapshots.chain_state import WrapperState

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


def _counter() -> Any:
    count = 0

    def func(reward: float) -> float:
        nonlocal count
        count += 1
        return reward * count

    return func


# What changes something outside, and the results with it.
FUNCTIONS_THAT_REMEMBER = {
    "nonlocal": (_counter, "the reward of step"),
    "global generator": (lambda: lambda r: r + np.random.random(), "numpy.random"),
    "clock": (lambda: lambda r: r + time.perf_counter(), "the reward of step"),
}


@pytest.mark.parametrize("kind", FUNCTIONS_THAT_REMEMBER)
def test_a_function_that_remembers_is_refused(kind: str) -> None:
    make, reason = FUNCTIONS_THAT_REMEMBER[kind]
    with pytest.raises(SnapshotError, match=f"(?s){reason}"):
        plangym_like.make("CartPole-v1", wrappers=[(wrappers.TransformReward, make())])


class Normalizer:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, reward: float) -> float:
        self.count += 1
        return reward / self.count

    def scaled(self, reward: float) -> float:
        return self(reward)


@pytest.mark.parametrize("make", [Normalizer, lambda: Normalizer().scaled])
def test_an_object_that_is_called_is_part_of_the_state(make: Any) -> None:
    sim = PlainSimulator(
        "CartPole-v1", wrappers=[lambda env: wrappers.TransformReward(env, make())]
    )
    for seed in range(3):
        assert_goes_on(sim, seed=seed)


UNSAVEABLE = {
    "lock": (lambda env: Holding(env, [1, threading.Lock()]), r"Holding\.thing.*lock"),
    "thread": (lambda env: Holding(env, threading.Thread()), r"Holding\.thing.*not plain data"),
    "file": (lambda env: Holding(env, io.StringIO()), r"Holding\.thing.*_io\.StringIO"),
    "generator": (lambda env: Holding(env, (x for x in "ab")), r"Holding\.thing.*generator"),
    "env": (lambda env: Holding(env, gym.make("CartPole-v1")), r"thing.*another environment"),
    "objects": (lambda env: Holding(env, np.array([object()])), r"thing.*dtype object"),
    "slots": (Slotted, "Slotted cannot be saved"),
    "video": (Video, "Video cannot be saved: it writes files"),
}


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning",
    # In Gymnasium 1.1, a video that was not saved is a warning.
    "ignore:.*<function RecordVideo.__del__:pytest.PytestUnraisableExceptionWarning",
)
@pytest.mark.parametrize("kind", UNSAVEABLE)
def test_what_cannot_be_saved_is_refused_by_name(kind: str) -> None:
    make, reason = UNSAVEABLE[kind]
    inner = gym.make("CartPole-v1", render_mode="rgb_array")
    inner.reset()
    env = make(inner)
    with pytest.raises(SnapshotError, match=reason):
        WrapperState(env)
    inner.close()


def test_an_attribute_that_becomes_unsaveable_is_named_when_it_does() -> None:
    env = Holding(gym.make("CartPole-v1"), 3)
    env.reset()
    memory = WrapperState(env)
    env.thing = object()
    with pytest.raises(SnapshotError, match=r"Holding\.thing.*keep the state of a wrapper in"):
        memory.read(np.zeros(memory.nbytes, np.uint8))
    tracking = Tracking(gym.make("CartPole-v1"))
    tracking.reset()
    memory = WrapperState(tracking)
    tracking.tracker = Normalizer()
    with pytest.raises(SnapshotError, match=r"Tracking\.tracker was an object of class .*Tracker"):
        memory.read(np.zeros(memory.nbytes, np.uint8))


def test_an_attribute_that_becomes_another_object_of_the_wrapper_is_an_error() -> None:
    env: Any = Holding(gym.make("CartPole-v1"), Normalizer())
    first, env.other = env.thing, Normalizer()
    env.reset()
    memory = WrapperState(env)
    payload = np.zeros(memory.nbytes, np.uint8)
    memory.read(payload)
    env.thing = env.other
    with pytest.raises(SnapshotError, match=r"Holding\.other and Holding\.thing were two objects"):
        memory.read(payload.copy())
    memory.write(payload)
    assert env.thing is first and env.other is not first


@pytest.mark.parametrize("names", [("count",), "count"])
def test_a_class_may_say_itself_what_its_memory_is(names: Any) -> None:
    class Declared(Holding):
        state_attributes = names

        def __init__(self, env: gym.Env) -> None:
            super().__init__(env, threading.Thread())
            self.count = 0

    env = Declared(gym.make("CartPole-v1"))
    env.reset()
    memory = WrapperState(env)
    payload = np.zeros(memory.nbytes, np.uint8)
    memory.read(payload)
    env.count = 5
    memory.write(payload)
    assert env.count == 0


# What depends on something that no row holds

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "classic control": ("CartPole-v1", {}),
    "atari": ("ALE/MsPacman-v5", {"obs_type": "ram"}),
    "toy text": ("Blackjack-v1", {}),
    "mujoco": ("HalfCheetah-v5", {}),
    "dm_control": ("cartpole-balance", {}),
    "box2d": ("LunarLander-v3", {}),
    "retro": ("Airstriker-Genesis-v0", {"obs_type": "ram"}),
    "pickle": ("CartPole-v1", {"snapshot": "pickle"}),
    "replay": ("CartPole-v1", {"snapshot": "replay"}),
}
_NEEDS = {"atari": "ale_py", "mujoco": "mujoco", "dm_control": "dm_control"}
_NEEDS |= {"box2d": "Box2D", "retro": "stable_retro"}


# In `make test`, each kind is refused by one family.
_ON_FAMILIES = [
    (kind, [*FAMILIES][(at + turn) % len(FAMILIES)])
    for turn in range(len(FAMILIES))
    for at, kind in enumerate(REFUSED)
]


@pytest.mark.parametrize(
    ("kind", "family"),
    first_of(_ON_FAMILIES, len(REFUSED)),
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_no_row_holds_is_refused_on_every_family(kind: Any, family: str) -> None:
    pytest.importorskip(_NEEDS.get(family, "gymnasium"))
    name, options = FAMILIES[family]
    if family not in ("atari", "dm_control", "retro") and kind is CounterOnTheBase:
        env = plangym_like.make(name, wrappers=[kind], **options)
        # The pickle holds what lies on the base, and a replay, also of a robot, leads to it.
        assert env.exactness == "exact"
        assert env.snapshot == "replay" if family in ("replay", "box2d", "mujoco") else "pickle"
        return
    with pytest.raises(SnapshotError, match=f"(?s){REFUSED[kind]}"):
        plangym_like.make(name, wrappers=[kind], **options)


def test_the_trial_is_not_run_for_known_wrappers_on_known_families(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(self: Any) -> str:
        raise AssertionError("it was tried")

    monkeypatch.setattr("plangym_like.snapshots.trial.Trial.run", never)
    plangym_like.make("CartPole-v1").close()
    known: list[Any] = [
        (wrappers.TimeLimit, 9),
        (wrappers.ClipReward, (0, 1)),
        (wrappers.StickyAction, 0.2),
    ]
    known += [(wrappers.TransformReward, {"func": np.tanh})]
    plangym_like.make("CartPole-v1", wrappers=known).close()
    for foreign in (Counting, (wrappers.TransformReward, {"func": lambda reward: reward})):
        with pytest.raises(AssertionError, match="it was tried"):
            plangym_like.make("CartPole-v1", wrappers=[foreign])


def test_the_trial_leaves_the_environment_as_it_was() -> None:
    class Plain(gym.Wrapper):
        pass

    for options in ({}, {"snapshot": "pickle"}, {"snapshot": "replay"}):
        firsts = []
        for _ in range(2):
            chain = [wrappers.NormalizeObservation, Plain]
            env = plangym_like.make("Pendulum-v1", wrappers=chain, **options)
            firsts.append(env.reset().obs)
            again = plangym_like.make("Pendulum-v1", wrappers=chain, **options)
            raw = Plain(wrappers.NormalizeObservation(gym.make("Pendulum-v1")))
            assert np.array_equal(again.reset(seed=3).obs, raw.reset(seed=3)[0])
        assert not np.array_equal(*firsts), "the first reset without a seed is always the same"


# What a row means


def test_the_meaning_tells_wrappers_and_their_arguments_apart() -> None:
    def meaning(make: Any) -> Any:
        env = make(gym.make("CartPole-v1", max_episode_steps=-1))
        env.reset()
        return WrapperState(env).fingerprint_fields()

    makes = [
        lambda env: env,
        Counting,
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
    checked = gym.make("CartPole-v1", max_episode_steps=-1, disable_env_checker=False)
    assert repr(WrapperState(checked).fingerprint_fields()) == meanings[0]
