"""What all of Gymnasium's environments share: time limits, rewards, and what is observed."""

import re
import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from backends import make_on
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from usual import first_of

import plangym_like
from plangym_like.errors import (
    EnvApiError,
    InputError,
    ObservationError,
    RewardError,
    SnapshotError,
)
from plangym_like.snapshots.chains import links


class Lamp(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(0, 1000, (1,), np.int64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.hours = int(self.np_random.integers(10))
        return np.array([self.hours]), {}

    def step(self, action: Any) -> Any:
        self.hours += int(action)
        return np.array([self.hours]), float(self.np_random.random()), False, False, {}


def test_the_recipe_for_a_family_works() -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(recipe, names)
    with names["LampEnv"](Lamp) as env:
        assert (env.exactness, env.snapshot) == ("exact", "native")
        state = env.reset(seed=3).state
        batch = env.step_batch([0, 1, 1], state)
        assert batch.obs[:, 0].tolist() == [batch.obs[0, 0] + each for each in (0, 1, 1)]
        assert batch.rewards.tolist() == [env.step(1).reward] * 3


# Arguments of gymnasium.make


def steps_until_truncated(env: Any, action: Any = 0, most: int = 600) -> int | None:
    env.reset(seed=0)
    for count in range(1, most):
        if env.step(action).truncated:
            return count
    return None


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("MountainCar-v0", "isolated"),
        ("ALE/Breakout-v5", "serial"),
        ("FrozenLake-v1", "serial"),
    ],
)
def test_max_episode_steps_is_heard(name: str, backend: str) -> None:
    kwargs = {"is_slippery": False} if name == "FrozenLake-v1" else {}
    env = make_on(backend, name, max_episode_steps=7, autoreset=False, **kwargs)
    assert steps_until_truncated(env) == 7
    copy = env.clone()
    assert steps_until_truncated(copy) == 7
    state = env.reset(seed=0).state
    plan = env.rollout_batch(np.zeros((2, 9), int), state)
    assert plan.truncateds[0].tolist() == [False] * 6 + [True] * 3
    env.close()
    copy.close()


def test_the_limit_of_an_id_is_left_out_unless_asked_for() -> None:
    for kwargs, limit in (
        ({}, None),
        ({"remove_time_limit": True}, None),
        ({"remove_time_limit": False}, 200),
        ({"remove_time_limit": False, "max_episode_steps": 9}, 9),
        ({"max_episode_steps": -1}, None),
        ({"max_episode_steps": None}, None),
    ):
        with plangym_like.make("MountainCar-v0", autoreset=False, **kwargs) as env:
            assert steps_until_truncated(env) == limit, kwargs


def test_the_limit_in_a_wrapper_is_kept() -> None:
    wrappers = [(TimeLimit, 5)]
    for more in ({}, {"remove_time_limit": True}, {"remove_time_limit": False}):
        with plangym_like.make("MountainCar-v0", wrappers=wrappers, autoreset=False, **more) as env:
            assert steps_until_truncated(env) == 5
    mine = partial(gymnasium.make, "MountainCar-v0", max_episode_steps=11)
    for more, limit in (({}, 11), ({"remove_time_limit": True}, None)):
        with plangym_like.make(mine, autoreset=False, **more) as env:
            assert steps_until_truncated(env) == limit


@pytest.mark.parametrize("name", ["CartPole-v1", *first_of(["ALE/Breakout-v5"], 0)])
def test_the_checker_can_be_had(name: str) -> None:
    # In Gymnasium, None stands for what the id registers.
    for kwargs, checked in (
        ({}, False),
        ({"disable_env_checker": True}, False),
        ({"disable_env_checker": False}, True),
        ({"disable_env_checker": None}, True),
    ):
        with plangym_like.make(name, **kwargs) as env:
            kinds = set(map(type, links(env.gym_env)))
            assert (PassiveEnvChecker in kinds) == checked
            assert OrderEnforcing not in kinds  # it costs time in each step
            env.reset(seed=0)
            env.step(1)


class Line(gymnasium.Env):
    """Never ends; its class has no constructor."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 1e9, (1,), np.float64)
    place = 0.0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 0.0
        return np.array([self.place]), {}

    def step(self, action: Any) -> Any:
        self.place += float(action)
        return np.array([self.place]), 1.0, False, False, {}


class Swallowing(Line):
    """Takes every option and uses none."""

    def __init__(self, **options: Any) -> None:
        pass


CALLABLES: dict[str, Callable[..., Any]] = {
    "class": Line,
    "function": lambda: Line(),
    "limited": lambda: TimeLimit(Line(), 5),
    "swallowing": Swallowing,
    "function of options": lambda **options: gymnasium.make("MountainCar-v0", **options),
}


@pytest.mark.parametrize(
    ("kind", "snapshot", "backend"),
    [
        *[(kind, "pickle", "serial") for kind in CALLABLES],
        ("function of options", "replay", "isolated"),
        *first_of([(kind, "replay", "isolated") for kind in CALLABLES], 0),
    ],
)
def test_max_episode_steps_of_a_callable(kind: str, snapshot: str, backend: str) -> None:
    options: dict[str, Any] = {"snapshot": snapshot, "max_episode_steps": 7, "autoreset": False}
    env = make_on(backend, CALLABLES[kind], **options)
    assert steps_until_truncated(env) == 7
    # The steps are part of the state.
    state = env.reset(seed=0).state
    for _ in range(6):
        state = env.step_batch([0], state).states[0]
    assert env.step_batch([0, 1], state).truncateds.tolist() == [True, True]
    env.close()


def test_a_callable_without_a_time_limit() -> None:
    for limit in (None, -1):
        with plangym_like.make(Line, max_episode_steps=limit, autoreset=False) as env:
            assert steps_until_truncated(env, most=40) is None
    with plangym_like.make(CALLABLES["limited"], max_episode_steps=-1, autoreset=False) as env:
        assert steps_until_truncated(env, most=40) is None
    for limit in (0, "seven", 2.5):
        with pytest.raises(InputError, match="max_episode_steps must be a whole number"):
            plangym_like.make(Line, max_episode_steps=limit)
    with pytest.raises(InputError, match="contradict each other"):
        plangym_like.make(Line, max_episode_steps=7, remove_time_limit=True)


def test_an_argument_that_nobody_knows_is_an_error() -> None:
    for name in ("CartPole-v1", "ALE/Breakout-v5"):
        with pytest.raises(InputError, match="additional_wrappers"):
            plangym_like.make(name, additional_wrappers=[])


# Environments that say something odd

GOOD = np.array([1, 2], np.uint8)


class Odd(gymnasium.Env):
    """Action 0 is harmless; action 1 gives what it was told to give."""

    action_space = spaces.Discrete(2)
    observation_space: Any = spaces.Box(0, 255, (2,), np.uint8)

    def __init__(self, obs: Any = GOOD, reward: Any = 1.0) -> None:
        self.obs, self.reward = obs, reward

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.usual(), {}

    def usual(self) -> Any:
        return GOOD.copy()

    def step(self, action: Any) -> Any:
        if action:
            return self.obs, self.reward, False, False, {}
        return self.usual(), 1.0, False, False, {}


class OddNest(Odd):
    observation_space = spaces.Dict(a=spaces.Tuple((spaces.Discrete(3), Odd.observation_space)))

    def usual(self) -> Any:
        return {"a": (1, GOOD.copy())}


class Rewarding(Odd):
    """All rewards are what it was told to give."""

    def step(self, action: Any) -> Any:
        return self.usual(), self.reward, False, False, {}


ODD_OBSERVATIONS: list[Any] = [
    [300, 1],
    np.array([300, 1]),
    None,
    7,
    np.array([7], np.uint8),
    np.array([0.5, 1.0]),
    "ab",
]


@pytest.mark.parametrize(
    ("kind", "obs"),
    [
        *[(Odd, obs) for obs in ODD_OBSERVATIONS],
        *first_of([(OddNest, obs) for obs in ODD_OBSERVATIONS]),
    ],
    ids=str,
)
def test_an_observation_that_does_not_fit_its_space(kind: Any, obs: Any) -> None:
    given = {"a": (1, obs)} if kind is OddNest else obs
    with plangym_like.make(partial(kind, given), snapshot="pickle") as env:
        state = env.reset(seed=0).state
        for _ in range(2):
            good = env.step_batch([0, 0], state)
            assert good.rewards.tolist() == [1, 1]
            with pytest.raises(ObservationError) as caught:
                env.step_batch([0, 0, 1], state)
            assert "(in row 2 of a batch of 3)" in caught.value.__notes__
            assert str(caught.value).startswith("obs['a'][1]: ") == (kind is OddNest)
            with pytest.raises(ObservationError) as caught:
                env.rollout_batch([[0, 0], [0, 1]], state, return_observations=True)
            assert "(in row 1 of a batch of 2)" in caught.value.__notes__
        masked = env.step_batch([0, 1, 0], state, on_error="mask")
        assert masked.infos.failed.tolist() == [False, True, False]
        # A single step gives what the environment gave, as in Gymnasium.
        assert str(env.step(1).obs) == str(given)


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        (np.array([1.0, 2.0]), "which is not one number"),
        ([1.0, 2.0], "which is not one number"),
        (np.zeros(0), "which is not one number"),
        (None, "None, which is not one number"),
        ("1.5", "'1.5', which is not one number"),
        (1j, "1j, which is not one number"),
        ({"a": 1.0}, "which is not one number"),
        (10**400, "class int that is too large for float64"),
        (-Fraction(10**5000), "class Fraction that is too large for float64"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_reward_that_is_not_one_number(reward: Any, told: str) -> None:
    env = plangym_like.make(partial(Rewarding, reward=reward), snapshot="pickle")
    state = env.reset(seed=0).state
    for call in (
        lambda: env.step(0),
        lambda: env.step_batch([0, 0, 0], state),
        lambda: env.rollout_batch([[0, 0]] * 3, state),
    ):
        with pytest.raises(RewardError, match=told):
            call()
    env.close()


@pytest.mark.parametrize(
    "reward",
    [2, 2.0, np.float32(2), np.float64(2), np.int8(2), np.array(2.0), np.array([2.0]), [2]],
    ids=repr,
)
def test_a_reward_that_is_one_number(reward: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with plangym_like.make(partial(Rewarding, reward=reward), snapshot="pickle") as env:
            state = env.reset(seed=0).state
            single = env.step(0, dt=3)
            assert type(single.reward) is float and single.reward == 6.0
            assert env.step_batch([0, 1], state).rewards.tolist() == [2.0, 2.0]
    with plangym_like.make(partial(Rewarding, reward=True), snapshot="pickle") as env:
        assert env.step(0).reward == 1.0


class Flagged(Odd):
    """Both flags are what it was told to give."""

    def __init__(self, flag: Any) -> None:
        super().__init__()
        self.flag = flag

    def step(self, action: Any) -> Any:
        return self.usual(), 1.0, self.flag, self.flag, {}


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        (None, False),
        (0, False),
        (0.0, False),
        (np.bool_(True), True),
        (1, True),
        (np.array(False), False),
        (np.array([True]), True),
        ([True], True),
    ],
    ids=repr,
)
def test_a_flag_means_the_same_everywhere(flag: Any, meant: bool) -> None:
    with plangym_like.make(partial(Flagged, flag), snapshot="pickle", autoreset=False) as env:
        state = env.reset(seed=0).state
        single = env.step(0)
        assert single.terminated is meant and single.truncated is meant
        for count in (1, 3):
            batch = env.step_batch([0] * count, state)
            assert batch.terminateds.tolist() == batch.truncateds.tolist() == [meant] * count
        rollout = env.rollout_batch([[0, 0]], state)
        assert rollout.terminateds.tolist() == [[meant, meant]]
    with plangym_like.make_vec(partial(Flagged, flag), 2) as envs:
        envs.reset(seed=0)
        _, _, terminated, truncated, _ = envs.step([0, 0])
        assert terminated.tolist() == truncated.tolist() == [meant, meant]


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("False", "a str"),
        ([True, False], "a list of 2 parts"),
        ([[1], [2, 3]], "a list of 2 parts"),
        ({}, "a dict"),
        (1j, "a complex"),
    ],
    ids=repr,
)
def test_a_flag_that_is_none_is_refused_everywhere(flag: Any, told: str) -> None:
    told = f"step returned {told} as terminated, which must be True or False"
    with pytest.raises(EnvApiError, match=told):
        plangym_like.make(partial(Flagged, flag), snapshot="pickle")
    with plangym_like.make_vec(partial(Flagged, flag), 2) as envs:
        envs.reset(seed=0)
        with pytest.raises(EnvApiError, match=told):
            envs.step([0, 0])


# Wrappers that do not reset their environment


class Replacing(gymnasium.Wrapper):
    def reset(self, **kwargs: Any) -> Any:
        self.env = gymnasium.make("Pendulum-v1")
        return self.env.reset(**kwargs)


@pytest.mark.parametrize("snapshot", first_of(["native", "pickle"]))
def test_a_wrapper_that_replaces_its_environment_is_refused(snapshot: str) -> None:
    with pytest.raises(SnapshotError, match="a wrapper replaces its environment"):
        plangym_like.make("Pendulum-v1", wrappers=[Replacing], snapshot=snapshot)


@pytest.mark.parametrize("snapshot", first_of(["auto", "replay"]))
def test_a_wrapper_that_replaces_its_environment_is_replayed(snapshot: str) -> None:
    theirs = Replacing(gymnasium.make("Pendulum-v1"))
    with plangym_like.make("Pendulum-v1", wrappers=[Replacing], snapshot=snapshot) as env:
        assert (env.snapshot, env.exactness) == ("replay", "exact")
        for seed in (1, 2):
            assert np.array_equal(env.reset(seed=seed).obs, theirs.reset(seed=seed)[0])
            for _ in range(5):
                state = env.get_state()
                wanted = theirs.step(np.array([0.5], np.float32))
                assert env.step(np.array([0.5], np.float32)).reward == wanted[1]
                assert env.step(np.array([0.5], np.float32), state=state).reward == wanted[1]
    theirs.close()


# Options of reset


class Configured(gymnasium.Wrapper):
    """Sets an attribute of the environment that an option of reset names."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        for name, value in (options or {}).items():
            setattr(self.unwrapped, name, value)
        return self.env.reset(seed=seed)


@pytest.mark.parametrize("backend", first_of(["serial", "isolated"]))
def test_pickled_rows_hold_what_options_of_resets_change(backend: str) -> None:
    with make_on(backend, "CartPole-v1", wrappers=[Configured], snapshot="pickle") as env:
        roots = [env.reset(seed=0, options={"gravity": each}).state for each in (9.8, 20.0)]
        light, heavy = env.rollout_batch(np.ones((2, 5), int), np.stack(roots)).states
        assert env.view_state(light)["gravity"] == 9.8
        assert env.view_state(light)["state"][3] != env.view_state(heavy)["state"][3]
