"""What a reset does: with and without a seed, the first time, after batches, and when it fails."""

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import content
from gymnasium import spaces
from gymnasium.wrappers import NormalizeObservation
from suite import TAXI
from usual import third_of

import plangym_like
from plangym_like.errors import StateLostError

pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__")


class Drifter(gymnasium.Env):
    """Draws in its steps alone, from Gymnasium's generator, which it has not touched before."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self.place = np.zeros(1)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = np.zeros(1)
        return self.place.copy(), {}

    def step(self, action: Any) -> Any:
        self.place = self.place + self.np_random.normal(size=1) + int(action)
        return self.place.copy(), float(self.place[0]), False, False, {}

    def save_state(self) -> Any:
        return self.place.copy()

    def load_state(self, saved: Any) -> None:
        self.place = saved


class Dealer(Drifter):
    """Begins its episodes at random places."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=1)
        return self.place.copy(), {}


FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", {}),
    "Pendulum": ("Pendulum-v1", {}),
    "Blackjack": ("Blackjack-v1", {}),
    "pickle": (Dealer, {"snapshot": "pickle"}),
    "own": (Dealer, {"snapshot": "native"}),
    "Taxi": (TAXI, {}),
    "replay": (Dealer, {"snapshot": "replay"}),
    "FrozenLake": ("FrozenLake-v1", {"is_slippery": True}),
}
if importlib.util.find_spec("mujoco"):
    FAMILIES["HalfCheetah"] = ("HalfCheetah-v5", {})
with contextlib.suppress(ImportError), warnings.catch_warnings():
    # Its import crashes where warnings are errors.
    warnings.simplefilter("ignore")
    import Box2D  # noqa: F401

    FAMILIES["LunarLander"] = ("LunarLander-v3", {})
family = pytest.mark.parametrize("family", third_of(FAMILIES))


def foreign_rows(name: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Return actions and states of another environment of the same kind."""
    with plangym_like.make(name, **kwargs) as env:
        state = env.reset(seed=11).state
        env.action_space.seed(0)
        actions = [env.sample_action() for _ in range(4)]
        return actions, env.step_batch(actions, state).states


# Without a seed


@family
def test_unseeded_resets_are_gymnasiums_whatever_batches_did(new_env: Any, family: str) -> None:
    name, kwargs = FAMILIES[family]
    actions, states = foreign_rows(name, **kwargs)
    env = new_env(name, autoreset=False, **kwargs)
    if callable(name):
        raw = name()
    else:
        raw = gymnasium.make(name, **kwargs, disable_env_checker=True)
    env.reset(seed=5)
    raw.reset(seed=5)
    for count in range(4):
        for _ in range(count):
            env.step_batch(actions, states)
        assert content(env.reset().obs) == content(raw.reset()[0])
        assert content(env.step(actions[1])[:4]) == content(
            (lambda obs, reward, *rest: (obs, float(reward), *map(bool, rest[:2])))(
                *raw.step(actions[1])
            )
        )
    raw.close()


@pytest.mark.parametrize("snapshot", ["native", "pickle", "replay"])
def test_a_row_that_was_never_seeded_has_one_future(new_env: Any, snapshot: str) -> None:
    env = new_env(Drifter, snapshot=snapshot)
    assert env.snapshot == snapshot and env.exactness == "exact"
    state = env.reset().state
    for _ in range(2):
        single = env.step(1, state=state)
        result = env.step_batch([1] * 6, state)
        assert {content(single.obs)} == {content(obs) for obs in result.obs}
        assert {content(single.state)} == {content(after) for after in result.states}
        state = single.state


class Counting(gymnasium.Wrapper):
    """Counts the episodes that it sees."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.episodes = 0

    def reset(self, **kwargs: Any) -> Any:
        self.episodes += 1
        obs, info = self.env.reset(**kwargs)
        return obs, {**info, "episodes": self.episodes}


def begins_alike(env: Any, raw: Any, foreign: Any, batches: int) -> Iterator[None]:
    """Compare resets, after so many batches each; yield after each reset."""
    for seed in (3, None, 4):
        for _ in range(batches):
            env.step_batch(*foreign)
        _, obs, info = env.reset(seed=seed)
        expected, told = raw.reset(seed=seed)
        assert (content(obs), info) == (content(expected), told)
        yield


@pytest.mark.parametrize("snapshot", ["native", "pickle", "replay"])
@pytest.mark.parametrize("batches", [0, 2])
def test_wrappers_see_their_first_episode_first(new_env: Any, snapshot: str, batches: int) -> None:
    wrappers = [NormalizeObservation, Counting]
    kwargs = {"snapshot": snapshot, "wrappers": wrappers}
    env, raw = new_env(Dealer, **kwargs), Counting(NormalizeObservation(Dealer()))
    assert len(list(begins_alike(env, raw, foreign_rows(Dealer, **kwargs), batches))) == 3


# Resets that fail


class Picky(Drifter):
    """Takes no bad options, and finds that out half-way."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed)
        self.place = self.place + 100
        if options is not None:
            raise ValueError("bad options")
        return self.place.copy(), info

    def step(self, action: Any) -> Any:
        self.place = self.place + 7
        if int(action) == 2:
            raise ArithmeticError("a bad action")
        return super().step(action)

    def load_state(self, saved: Any) -> None:
        self.place = saved


@pytest.mark.parametrize("snapshot", ["native", "pickle", "replay"])
@pytest.mark.parametrize("batch", [False, True])
def test_a_failed_reset_leaves_the_current_state(new_env: Any, snapshot: str, batch: bool) -> None:
    env = new_env(Picky, snapshot=snapshot)
    with pytest.raises(ValueError, match="bad options"):  # the first one, too
        env.reset(seed=0, options={"bad": 1})
    root = env.reset(seed=0).state
    env.step(1)
    before = env.get_state()
    expected = env.step(0, state=before)
    env.set_state(root)
    env.step(1)
    for seed in (None, 3):
        if batch:
            env.step_batch([0, 1, 0], root)
        with pytest.raises(ValueError, match="bad options"):
            env.reset(seed=seed, options={"bad": 1})
        assert content(env.get_state()) == content(before)
    assert content(env.step(0).obs) == content(expected.obs)
    assert content(env.get_state()) == content(expected.state)


@pytest.mark.parametrize("snapshot", ["native", "pickle", "replay"])
@pytest.mark.parametrize("batch", [False, True])
def test_a_failed_step_from_a_given_state_loses_the_current_state(
    new_env: Any, snapshot: str, batch: bool
) -> None:
    env = new_env(Picky, snapshot=snapshot)
    state = env.reset(seed=1).state
    env.step(0)
    if batch:  # the current state may be kept as a row meanwhile
        env.step_batch([0, 1], state)
    with pytest.raises(ArithmeticError, match="a bad action"):
        env.step(2, state=state)
    for ask in (env.get_state, env.step, env.step_batch):
        with pytest.raises(StateLostError, match="reset the environment or set a state"):
            ask(*([] if ask == env.get_state else [np.int64(1)]))
    assert len(env.step_batch([0, 1], state).states) == 2
    with pytest.raises(StateLostError):
        env.get_state()
    env.set_state(state)
    assert content(env.get_state()) == content(state)
    with pytest.raises(ArithmeticError, match="a bad action"):
        env.step(2, state=state)
    assert content(env.reset(seed=1).state) == content(state)
