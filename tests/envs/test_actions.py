"""Actions of a `Box`: in the dtype they are given in, out of bounds or not, as in Gymnasium."""

import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest
from block_steps import compare, pair
from classic_rows import random_rows
from comparing import assert_same
from suite import ROBOTS
from usual import first_of, third_of

import plangym_like
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.errors import ActionError, InputError

pytestmark = [
    pytest.mark.filterwarnings("ignore:builtin type .* has no __module__"),
    pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning"),
]

KINDS: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "int64": np.int64,
    "int8": np.int8,
    "list": None,
}
IDS = ["MountainCarContinuous-v0", "Pendulum-v1"]
if importlib.util.find_spec("Box2D"):
    IDS += ["BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CarRacing-v3"]
    IDS += ["LunarLanderContinuous-v3"]
if importlib.util.find_spec("mujoco"):
    IDS += ROBOTS


def drawn(space: Any, rng: np.random.Generator, kind: str, lead: tuple[int, ...] = ()) -> Any:
    """Return actions of which about half are out of bounds."""
    numbers = rng.uniform(-2, 2, (*lead, *space.shape))
    if "int" in kind:
        return numbers.round().astype(KINDS[kind])
    numbers *= np.maximum(np.abs(space.low), np.abs(space.high))
    return numbers.tolist() if kind == "list" else numbers.astype(KINDS[kind])


@pytest.mark.parametrize("name", third_of(IDS))
def test_an_episode_is_gymnasiums_whatever_the_dtype(name: str) -> None:
    single = plangym_like.make(name, remove_time_limit=False, autoreset=False)
    batched = plangym_like.make(name, remove_time_limit=False)
    rng = np.random.default_rng(3)
    for kind in KINDS:
        # BipedalWalker's episodes depend on those that the same object has played before.
        theirs = gymnasium.make(name, disable_env_checker=True)
        theirs.reset(seed=5)
        state = single.reset(seed=5).state
        for _ in range(2 if name.startswith("CarRacing") else 4):
            action = drawn(theirs.action_space, rng, kind)
            obs, reward, terminated, truncated, info = theirs.step(np.asarray(action))
            one = single.step(action, state)
            many = batched.step_batch([action] * 2, state)
            plan = batched.rollout_batch([[action]] * 2, state, return_observations=True)
            results = [
                (one.obs, one.reward, one.terminated, one.truncated),
                [column[0] for column in many[1:5]],
                [column[0, 0] for column in plan[1:5]],
            ]
            for result in results:
                assert np.asarray(result[0]).tobytes() == np.asarray(obs).tobytes(), kind
                assert float(result[1]) == float(reward), kind
                assert (result[2], result[3]) == (terminated, truncated)
            assert_same(many.states[0], one.state, kind)
            assert_same(plan.states[1], one.state, kind)
            for key, value in info.items():
                np.testing.assert_array_equal(one.info[key], value, key)
                np.testing.assert_array_equal(many.infos[0][key], value, key)
            state = one.state
            if terminated or truncated:
                break
        theirs.close()
    sim = batched.simulator
    has_form = type(sim).make_kernel is not GymnasiumSimulator.make_kernel
    assert all(sim._kernels.values()) == has_form
    single.close()
    batched.close()


@pytest.mark.parametrize("name", ["Pendulum-v1", "MountainCarContinuous-v0"])
@pytest.mark.parametrize("kind", first_of(["float64", "float16", "int8", "float32"], 3))
def test_blocks_equal_the_loop(name: str, kind: str) -> None:
    rng = np.random.default_rng(4)
    fast, slow = pair(name)
    plans = drawn(fast.action_space, rng, kind, (40, 4))
    compare(fast, slow, random_rows(slow, rng, 40), plans)
    assert None not in fast.simulator._kernels.values()


@pytest.mark.parametrize("kind", first_of(["list", "float64", "float32", "int64"]))
def test_pendulums_image_has_the_torque_of_the_last_action(kind: str) -> None:
    theirs = gymnasium.make("Pendulum-v1", render_mode="rgb_array", disable_env_checker=True)
    theirs.reset(seed=1)
    with plangym_like.make("Pendulum-v1", render_mode="rgb_array") as env:
        env.reset(seed=1)
        rng = np.random.default_rng(5)
        for _ in range(4):
            action = drawn(env.action_space, rng, kind)
            theirs.step(np.asarray(action))
            state = env.step(action, return_state=True).state
            expected: Any = theirs.unwrapped
            env.set_state(env.step_batch([action, action], env.get_state()).states[0])
            env.set_state(state)
            assert env.simulator.base.last_u == expected.last_u
            assert_same(env.get_image(), theirs.render())
    theirs.close()


# Out of bounds


def test_clipping_comes_before_the_environment() -> None:
    state, costs = None, []
    for policy in ("pass", "clip"):
        with plangym_like.make("MountainCarContinuous-v0", out_of_bounds=policy) as env:
            state = env.reset(seed=0).state
            costs.append(env.step([3.0], state).reward)
            assert env.step_batch([[3.0]] * 2, state).rewards.tolist() == [costs[-1]] * 2
    # Gymnasium makes the car pay for what was asked, not for what it got.
    assert np.allclose(costs, [-0.9, -0.1])
    with pytest.raises(InputError, match="'pass', 'raise' or 'clip'"):
        plangym_like.make("Pendulum-v1", out_of_bounds="wrap")


def test_what_no_environment_computes_with_is_refused() -> None:
    with plangym_like.make("Pendulum-v1") as env:
        for action in ([np.nan], [np.inf], [-np.inf], 1.0, [1.0, 1.0], ["a"], [None], [True]):
            with pytest.raises(ActionError):
                env.step(action)
            with pytest.raises(ActionError):
                env.step_batch([action, action])


def test_what_an_environment_says_of_an_action_is_said() -> None:
    with plangym_like.make("MountainCarContinuous-v0") as env:
        state = env.reset(seed=0).state
        with pytest.raises(OverflowError):
            env.step([1e300])
        with pytest.raises(OverflowError):
            env.step_batch([[0.5], [1e300]], state)


# Joysticks


@pytest.mark.parametrize("kind", first_of(["list", "float32", "float64"]))
def test_continuous_atari(kind: str) -> None:
    import ale_py

    gymnasium.register_envs(ale_py)
    kwargs = {"continuous": True, "obs_type": "ram"}
    theirs = gymnasium.make("ALE/Breakout-v5", repeat_action_probability=0.0, **kwargs)
    env = plangym_like.make("ALE/Breakout-v5", **kwargs)
    obs, _ = theirs.reset(seed=2)
    assert_same(env.reset(seed=2).obs, obs)
    rng = np.random.default_rng(8)
    for _ in range(12):
        numbers = rng.uniform([0, -4, -0.5], [1, 4, 1.5])
        action = numbers.tolist() if kind == "list" else numbers.astype(kind)
        expected = theirs.step(np.asarray(action, np.float32))  # it takes no other dtype
        found = env.step(action)
        assert_same(found.obs, expected[0])
        assert found[1:4] == expected[1:4]
    theirs.close()
    env.close()
