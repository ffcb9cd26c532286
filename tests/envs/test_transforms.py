"""Wrappers that only change one value of a step, on top of the environment's kernel."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from block_steps import compare, pair
from comparing import assert_same
from gymnasium import wrappers as gw
from usual import first_of

import plangym_like
from plangym_like.envs.transforms import TransformKernel

IDS = ["HalfCheetah-v5", "CartPole-v1", "Pendulum-v1", "FrozenLake-v1"]
BONUS, WEIGHTS = 0.25, np.linspace(-1, 1, 3)


class Penalty(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return reward - 0.1


class Scaled(gym.RewardWrapper):
    def __init__(self, env: gym.Env, scale: float = 3.0) -> None:
        super().__init__(env)
        self.scale = scale

    def reward(self, reward: Any) -> Any:
        return reward * self.scale


class Sums(gym.ObservationWrapper):
    """Observes a sum, and changes the observation of the environment in place."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def observation(self, observation: Any) -> Any:
        observation = np.atleast_1d(observation)
        observation += 1
        return [observation.sum(), observation[0]]


class Mirrored(gym.ActionWrapper):
    """Mirrors actions in place, if they are arrays."""

    def action(self, action: Any) -> Any:
        if isinstance(action, np.ndarray):
            action *= -1
            return action
        return self.action_space.n - 1 - action


class Global(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return reward + BONUS + weighted(reward, power=2)


def weighted(value: Any, power: int = 1) -> Any:
    return sum(weight * value**power for weight in WEIGHTS)


def scalar(reward: Any) -> Any:
    return np.float32(reward)


CHAINS: dict[str, list[Any]] = {
    "all": [Mirrored, Sums, Scaled, (gw.ClipReward, {"min_reward": 0, "max_reward": 1})],
    "limit": [Sums, (gw.TimeLimit, {"max_episode_steps": 7}), Scaled, Mirrored],
    "functions": [Global, (gw.TransformReward, {"func": scalar})],
    "checked": [gw.PassiveEnvChecker, Scaled, gw.OrderEnforcing, Penalty],
    "only a limit": [
        (gw.TimeLimit, {"max_episode_steps": 7}),
        gw.OrderEnforcing,
        gw.FlattenObservation,
    ],
}


def is_in_use(env: Any) -> bool:
    """Return whether batches of `env` are stepped with a kernel below its wrappers."""
    kernel = env.simulator.kernel_for(np.zeros(0, env.action_space.dtype))
    return isinstance(kernel, TransformKernel)


def batch(env: Any, count: int = 12) -> tuple[Any, Any]:
    """Return states of one episode, and plans of five actions."""
    env.action_space.seed(3)
    rows = [env.reset(seed=3).state]
    while len(rows) < count:
        step = env.step(env.action_space.sample(), state=rows[-1])
        rows.append(
            env.reset(seed=len(rows)).state if step.terminated or step.truncated else step.state
        )
    return np.stack(rows), np.array(
        [[env.action_space.sample() for _ in range(5)] for _ in range(count)]
    )


@pytest.mark.parametrize(
    ("env_id", "chain"),
    [
        *[(env_id, chain) for env_id in IDS for chain in ("all", "limit")],
        *first_of([("CartPole-v1", chain) for chain in list(CHAINS)[2:]], 3),
        *first_of([(env_id, chain) for env_id in IDS for chain in ("functions", "checked")], 0),
    ],
)
def test_rows_in_a_block_have_the_same_bytes(env_id: str, chain: str) -> None:
    fast, slow = pair(env_id, wrappers=CHAINS[chain])
    compare(fast, slow, *batch(slow))
    assert is_in_use(fast)


@pytest.mark.parametrize("env_id", first_of(["CliffWalking-v1", "HalfCheetah-v5", "Taxi-v4"]))
def test_frames_of_one_action_are_changed_one_by_one(env_id: str) -> None:
    fast, slow = pair(
        env_id, wrappers=[Scaled, (gw.TransformReward, {"func": abs}), Mirrored], frameskip=3
    )
    compare(fast, slow, *batch(slow))
    assert is_in_use(fast)


# Wrappers that must be stepped row by row


class ReadsData(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return reward + self.unwrapped.data.qpos[0]


class ReadsLater(gym.RewardWrapper):
    """Uses the environment only after the kernel was tested."""

    turned = 0

    def reward(self, reward: Any) -> Any:
        return self.unwrapped.data.qpos[1] if self.turned else reward


class Holds(gym.RewardWrapper):
    def __init__(self, env: gym.Env, held: Any) -> None:
        super().__init__(env)
        self.held = held

    def reward(self, reward: Any) -> Any:
        return reward


class HidesErrors(gym.RewardWrapper):
    """Uses the environment only after the kernel was tested, and catches the error."""

    turned = 0

    def reward(self, reward: Any) -> Any:
        try:
            return self.unwrapped.data.qpos[1] if self.turned else reward
        except Exception:
            return 0.0


class Counter(gym.RewardWrapper):
    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.count = 0

    def reward(self, reward: Any) -> Any:
        self.count += 1
        return reward + self.count


class CountsLater(Counter):
    turned = 0

    def reward(self, reward: Any) -> Any:
        self.count += self.turned
        return reward + self.count


class MarksLater(gym.RewardWrapper):
    """Changes an array in place."""

    turned = 0

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.buffer = np.zeros(2)

    def reward(self, reward: Any) -> Any:
        self.buffer[0] += self.turned
        return reward + self.buffer[0]


class OwnStep(gym.RewardWrapper):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "twice": 2 * reward}

    def reward(self, reward: Any) -> Any:
        return -reward


def over_view(env: gym.Env) -> gym.Env:
    positions = env.unwrapped.data.qpos
    return gw.TransformReward(env, lambda reward: reward + positions[1])


SLOW: dict[str, list[Any]] = {
    "data": [ReadsData],
    "counter": [Counter],
    "step": [OwnStep],
    "closure over an array": [over_view],
    "statistics": [Penalty, gw.NormalizeObservation],
}


@pytest.mark.parametrize("chain", SLOW)
def test_all_other_wrappers_are_stepped_row_by_row(chain: str) -> None:
    fast, slow = pair("HalfCheetah-v5", wrappers=SLOW[chain])
    states, plans = batch(slow)
    actions = plans[:, 0]
    one, other = (env.step_batch(actions, states) for env in (fast, slow))
    assert_same(tuple(one), tuple(other))
    assert not is_in_use(fast)


class Owner:
    def __init__(self, env: gym.Env) -> None:
        self.env = env


def by_name(env: gym.Env) -> gym.Env:
    global EVERY
    EVERY = [env]
    return gw.TransformReward(env, lambda reward: reward if EVERY else 0.0)


HOLDERS: list[Any] = [
    by_name,
    lambda env: Holds(env, {"a": [{"b": env}]}),
    lambda env: Holds(env, partial(getattr, env.unwrapped)),
    lambda env: Holds(env, Owner(env)),
    lambda env: Holds(env, env.get_wrapper_attr),
    lambda env: gw.TransformReward(env, lambda reward: reward if env else 0.0),
    lambda env: gw.TransformReward(env, lambda reward, env=env: reward),
]


@pytest.mark.parametrize("hold", HOLDERS)
def test_a_wrapper_that_can_reach_the_environment_is_stepped_row_by_row(hold: Any) -> None:
    with plangym_like.make("MountainCar-v0", wrappers=[hold]) as env:
        assert env.snapshot == "native" and not is_in_use(env)


def test_drawing_from_a_space_changes_nothing() -> None:
    same = {"func": lambda action: action, "action_space": gym.spaces.Discrete(2)}
    with plangym_like.make("CartPole-v1", wrappers=[(gw.TransformAction, same)]) as env:
        env.simulator.env.action_space.sample()
        assert is_in_use(env)


@pytest.mark.parametrize("kind", [ReadsLater, HidesErrors, CountsLater, MarksLater])
def test_what_a_method_does_later_is_noticed(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = pair("HalfCheetah-v5", wrappers=[kind])
    states, plans = batch(slow)
    fast.step_batch(plans[:, 0], states)
    assert is_in_use(fast)
    monkeypatch.setattr(kind, "turned", 1)
    one, other = (env.step_batch(plans[:, 0], states) for env in (fast, slow))
    assert_same(tuple(one), tuple(other))


# Errors and changes


class Raises(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        if self.limit < reward < self.limit + 1.0:
            raise ValueError(f"{reward:.6f}")
        return reward

    limit = 1e9


def failure(env: Any, *args: Any) -> tuple[str, list[str]]:
    with pytest.raises(ValueError) as raised:
        env.step_batch(*args)
    return str(raised.value), raised.value.__notes__


def test_an_error_of_a_row_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = pair("HalfCheetah-v5", wrappers=[Penalty, Raises])
    states, plans = batch(slow)
    actions = plans[:, 0]
    fast.step_batch(actions, states[0])
    assert is_in_use(fast)
    rewards = slow.step_batch(actions, states).rewards
    monkeypatch.setattr(Raises, "limit", float(np.sort(rewards)[len(rewards) // 2]) - 0.001)
    assert failure(fast, actions, states) == failure(slow, actions, states)
    one, other = (env.step_batch(actions, states, on_error="mask") for env in (fast, slow))
    assert_same(one.rewards, other.rewards)
    assert_same(one.states, other.states)
    assert {row: str(error) for row, error in one.infos.errors.items()} == {
        row: str(error) for row, error in other.infos.errors.items()
    }


class Beyond(gym.ActionWrapper):
    def action(self, action: Any) -> Any:
        return action + 1


def test_an_action_that_the_environment_refuses_is_refused() -> None:
    fast, slow = pair("CartPole-v1", wrappers=[Beyond])
    state = slow.reset(seed=0).state
    for env in (fast, slow):
        with pytest.raises(AssertionError, match="invalid"):
            env.step_batch([0, 0, 1, 0], state)


def test_rows_may_have_other_attributes_than_the_wrapper_now() -> None:
    fast, slow = pair("CartPole-v1", wrappers=[Scaled])
    for env in (fast, slow):
        state = env.reset(seed=0).state
        env.gym_env.scale = 7.0
        other = env.get_state()
    assert fast.step_batch([0, 1], other).rewards.tolist() == [7.0, 7.0]
    assert fast.step_batch([0, 1], state).rewards.tolist() == [3.0, 3.0]
    mixed = np.stack([state, other, state])
    assert_same(tuple(fast.step_batch([0, 1, 1], mixed)), tuple(slow.step_batch([0, 1, 1], mixed)))
    assert is_in_use(fast)
