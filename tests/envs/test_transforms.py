"""Wrappers that only change one value of a step, on top of the environment's kernel."""

from __future__ import annotations

import enum
import functools
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from comparing import assert_same
from gymnasium import wrappers as gw
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

import plangym_like
from plangym_like.envs.transforms import TransformKernel

IDS = ["HalfCheetah-v5", "CartPole-v1", "Pendulum-v1", "FrozenLake-v1"]
BONUS, WEIGHTS, FAST = 0.25, np.linspace(-1, 1, 3), 1.0
HELD: dict[str, Any] = {}


class Penalty(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return reward - 0.1


class Scaled(gym.RewardWrapper):
    def __init__(self, env: gym.Env, scale: float = 3.0) -> None:
        super().__init__(env)
        self.scale = scale

    def reward(self, reward: Any) -> Any:
        return reward * self.scale


class ByType(gym.RewardWrapper):
    """Depends on the type of the reward, and on the sign of a zero."""

    def reward(self, reward: Any) -> Any:
        kind = isinstance(reward, float) + 2 * isinstance(reward, np.generic)
        return kind + np.copysign(0.5, reward)


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


class Parts(gym.RewardWrapper):
    """Uses a property, a static method, a list, and an array of its class."""

    table = np.arange(3.0)

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.shifts = [0.5, {"last": np.ones(2)}]

    @property
    def shift(self) -> Any:
        return self.shifts[0] + self.shifts[1]["last"][1]

    @staticmethod
    def halved(value: Any) -> Any:
        return value / 2

    def reward(self, reward: Any) -> Any:
        if not np.isfinite(reward):
            raise ValueError("a reward is not finite")
        return self.halved(reward) + self.shift + self.table[1]


def scalar(reward: Any) -> Any:
    return np.float32(reward)


CHAINS: dict[str, list[Any]] = {
    "reward": [Penalty],
    "attribute": [Scaled],
    "type": [ByType],
    "observation": [Sums],
    "action": [Mirrored],
    "global": [Global],
    "parts": [Parts],
    "partial": [(gw.TransformReward, {"func": partial(weighted, power=2)})],
    "function": [(gw.TransformReward, {"func": scalar})],
    "all": [Penalty, Mirrored, Sums, Scaled, (gw.ClipReward, {"min_reward": 0, "max_reward": 1})],
    "limit": [Sums, (gw.TimeLimit, {"max_episode_steps": 7}), Scaled, Mirrored],
    "only a limit": [
        (gw.TimeLimit, {"max_episode_steps": 7}),
        gw.OrderEnforcing,
        gw.FlattenObservation,
    ],
    "checked": [gw.PassiveEnvChecker, Scaled, gw.OrderEnforcing, Penalty],
}


def pair(env_id: str, wrappers: list[Any], **kwargs: Any) -> tuple[Any, Any]:
    """Return two environments; the second steps its rows one by one."""
    fast, slow = (
        plangym_like.make(env_id, wrappers=wrappers, audit="off", **kwargs) for _ in range(2)
    )
    slow.simulator.kernel_for = lambda actions: None
    return fast, slow


def is_in_use(env: Any) -> bool:
    """Return whether batches of `env` are stepped with a kernel below its wrappers."""
    kernel = env.simulator.kernel_for(np.zeros(0, env.action_space.dtype))
    return isinstance(kernel, TransformKernel) and not kernel._is_refuted


def batch(env: Any, count: int = 30, horizon: int = 0) -> tuple[Any, Any]:
    """Return states of one episode, and actions."""
    env.action_space.seed(3)
    rows = [env.reset(seed=3).state]
    while len(rows) < count:
        step = env.step(env.action_space.sample(), state=rows[-1])
        rows.append(
            env.reset(seed=len(rows)).state if step.terminated or step.truncated else step.state
        )
    shape = (count, horizon) if horizon else (count,)
    actions = [env.action_space.sample() for _ in range(int(np.prod(shape)))]
    return np.stack(rows), np.array(actions).reshape(*shape, *np.shape(actions[0]))


def compare(fast: Any, slow: Any) -> None:
    """Step batches of all kinds in both environments."""
    states, actions = batch(slow)
    count = len(states)
    for more in (
        {},
        {"dt": 3},
        {"dt": np.arange(count) % 3 + 1},
        {"seeds": np.arange(count)},
        {"return_state": False},
    ):
        assert_same(
            tuple(fast.step_batch(actions, states, **more)),
            tuple(slow.step_batch(actions, states, **more)),
        )
    assert_same(
        tuple(fast.step_batch(actions, states[0])), tuple(slow.step_batch(actions, states[0]))
    )
    _, plans = batch(slow, horizon=5)
    for more in ({}, {"dt": 2}, {"return_observations": True}):
        one, other = (env.rollout_batch(plans, states, **more) for env in (fast, slow))
        assert_same(tuple(one), tuple(other))
    for index in range(3):
        one, other = (env.step(actions[index], state=states[index]) for env in (fast, slow))
        assert_same(tuple(one), tuple(other))


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("env_id", IDS)
def test_rows_in_a_block_have_the_same_bytes(env_id: str, chain: str) -> None:
    if env_id == "FrozenLake-v1" and "Flatten" in str(CHAINS[chain]):
        pytest.skip("its observations are numbers")
    fast, slow = pair(env_id, CHAINS[chain])
    compare(fast, slow)
    assert is_in_use(fast)


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Taxi-v4", "CliffWalking-v1"])
def test_frames_of_one_action_are_changed_one_by_one(env_id: str) -> None:
    fast, slow = pair(env_id, [Scaled, (gw.TransformReward, {"func": abs}), Mirrored], frameskip=3)
    compare(fast, slow)
    assert is_in_use(fast)


@pytest.mark.parametrize("env_id", IDS)
def test_workers_give_the_same_bytes(env_id: str) -> None:
    wrappers = [Penalty, Sums, (gw.TimeLimit, {"max_episode_steps": 9}), Mirrored]
    _, slow = pair(env_id, wrappers)
    with plangym_like.make(env_id, wrappers=wrappers, n_workers=2, audit="off") as fast:
        compare(fast, slow)


# Wrappers that must be stepped row by row


class ReadsData(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return reward + self.unwrapped.data.qpos[0]


class ReadsSometimes(gym.RewardWrapper):
    """Uses the environment in few rows, which no trial sees."""

    def reward(self, reward: Any) -> Any:
        return self.unwrapped.data.qpos[1] if 0.0 < reward * 1e3 % 10 < 1.0 else reward


class HoldsBase(gym.ObservationWrapper):
    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def observation(self, observation: Any) -> Any:
        return self.env.unwrapped.data.qvel[:1].copy()


class Counter(gym.RewardWrapper):
    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.count = 0

    def reward(self, reward: Any) -> Any:
        self.count += 1
        return reward + self.count


class CountsSometimes(Counter):
    def reward(self, reward: Any) -> Any:
        self.count += int(0.0 < reward * 1e3 % 10 < 1.0)
        return reward + self.count


class Noisy(gym.RewardWrapper):
    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.noise = np.random.default_rng(3)

    def reward(self, reward: Any) -> Any:
        return reward + self.noise.normal()


class DrawsSometimes(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return self.np_random.normal() if 0.0 < reward * 1e3 % 10 < 1.0 else reward


class OwnStep(gym.RewardWrapper):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "twice": 2 * reward}

    def reward(self, reward: Any) -> Any:
        return -reward


class Forwards(gym.RewardWrapper):
    def __getattr__(self, name: str) -> Any:
        return getattr(self.env.unwrapped, name)

    def reward(self, reward: Any) -> Any:
        return reward + self.data.time


class ReadsLimit(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return reward + self.get_wrapper_attr("_elapsed_steps")


class Keeps(gym.ObservationWrapper):
    """Keeps the last observation, and adds the one before."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.last = np.zeros(env.observation_space.shape)

    def observation(self, observation: Any) -> Any:
        shown, self.last = observation + self.last, observation
        return shown


def over_data(env: gym.Env) -> gym.Env:
    """Wrap `env` in a function that reaches a part of it, and uses it in few steps."""
    HELD["data"] = env.unwrapped.data
    return gw.TransformReward(env, lambda r: data_of(r) if 0.0 < r * 1e3 % 10 < 1.0 else r)


def data_of(reward: Any) -> Any:
    return reward + len(HELD["data"].qpos)


def over_view(env: gym.Env) -> gym.Env:
    positions = env.unwrapped.data.qpos
    return gw.TransformReward(env, lambda r: positions[1] if 0.0 < r * 1e3 % 10 < 1.0 else r)


def over_base(env: gym.Env) -> gym.Env:
    base = env.unwrapped
    return gw.TransformReward(env, lambda r: base.data.qpos[1] if 0.0 < r * 1e3 % 10 < 1.0 else r)


LAST: dict[str, Any] = {"a": 4.0}
OTHER = {"a": 4.0}
BUFFER = np.zeros(6)


class Share(gym.ActionWrapper):
    """Passes actions to a reward wrapper, which uses them only in few rows."""

    last: ClassVar[dict[str, Any]] = {}

    def action(self, action: Any) -> Any:
        LAST["a"] = self.last["a"] = action
        return action


class FromGlobal(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return reward - float(np.sum(LAST["a"])) if reward > FAST else reward


class FromClass(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return reward - float(np.sum(Share.last["a"])) if reward > FAST else reward


class Marked(gym.ActionWrapper):
    def action(self, action: Any) -> Any:
        kept.last = action
        return action


class FromFunction(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return reward - float(kept.last[0]) if reward > FAST else reward


def kept() -> None:
    """Hold an attribute."""


class Listed(enum.Enum):
    A = [0.0]  # noqa: RUF012


class ToMember(gym.ActionWrapper):
    def action(self, action: Any) -> Any:
        Listed.A.value[0] = float(action[0])
        return action


class FromMember(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return reward + Listed.A.value[0] if reward > FAST else reward


class ToBuffer(gym.ActionWrapper):
    def action(self, action: Any) -> Any:
        BUFFER[:] = action > 0
        return action


class FromBuffer(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return reward + BUFFER[0] if reward > FAST else reward


class ToSpace(gym.ActionWrapper):
    def action(self, action: Any) -> Any:
        self.action_space.low[0] = -1 if action[0] > 0 else -0.5
        return action


class FromSpace(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return reward + float(self.action_space.low[0]) if reward > FAST else reward


class ToNonlocal:
    def __init__(self) -> None:
        self.last: Any = None

    def act(self, action: Any) -> Any:
        self.last = action
        return action

    def pay(self, reward: Any) -> Any:
        return reward - float(np.sum(self.last)) if reward > FAST else reward


def over_object(env: gym.Env) -> gym.Env:
    shared = ToNonlocal()
    return gw.TransformReward(gw.TransformAction(env, shared.act, env.action_space), shared.pay)


def over_closure(env: gym.Env) -> gym.Env:
    last = 0.0

    def act(action: Any) -> Any:
        nonlocal last
        last = float(action[0])
        return action

    return gw.TransformReward(
        gw.TransformAction(env, act, env.action_space), lambda r: r - last if r > FAST else r
    )


def over_list(env: gym.Env) -> gym.Env:
    last = [0.0]

    def act(action: Any, into: Any = last) -> Any:
        into[0] = float(action[0])
        return action

    pay = functools.partial(lambda last, r: r - last[0] if r > FAST else r, last)
    return gw.TransformReward(gw.TransformAction(env, act, env.action_space), pay)


class ByClass(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        is_cheetah = type(self.unwrapped) is HalfCheetahEnv
        return 2 * reward if reward > FAST and is_cheetah else reward


class ByDunder(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        name = self.unwrapped.__class__.__name__
        return 2 * reward if reward > FAST and name == "HalfCheetahEnv" else reward


class ByObject(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        if reward > FAST:
            return reward + object.__getattribute__(self.unwrapped, "data").qpos[1]
        return reward


TIME = "{0.env.unwrapped.data.time}"


class ByText(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return float(TIME.format(self)) if reward > FAST else reward


class Draws(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return np.random.random() if 0.0 < reward * 1e3 % 10 < 1.0 else reward


class Calls(gym.RewardWrapper):
    """Uses an operator of its own, which is no name in the code."""

    def __neg__(self) -> Any:
        return self.unwrapped.data.qpos[1]

    def reward(self, reward: Any) -> Any:
        return -self if reward > FAST else reward


class CallsPartial(Calls):
    __neg__ = functools.partialmethod(Calls.__neg__)


SLOW: dict[str, list[Any]] = {
    "data": [ReadsData],
    "data, sometimes": [ReadsSometimes],
    "base": [HoldsBase],
    "counter": [Counter],
    "counter, sometimes": [CountsSometimes],
    "generator": [Noisy],
    "generator of the base": [DrawsSometimes],
    "step": [OwnStep],
    "getattr": [Forwards],
    "limit": [(gw.TimeLimit, {"max_episode_steps": 50}), Penalty, ReadsLimit],
    "last": [Keeps],
    "global with data": [over_data],
    "closure over an array": [over_view],
    "closure over the base": [over_base],
    "statistics": [Penalty, gw.NormalizeObservation],
    "shared by a global": [Share, FromGlobal],
    "shared by a class": [Share, FromClass],
    "shared by a function": [Marked, FromFunction],
    "shared by a member": [ToMember, FromMember],
    "shared by an array": [ToBuffer, FromBuffer],
    "shared by a space": [ToSpace, FromSpace],
    "shared by an object": [over_object],
    "shared by a variable": [over_closure],
    "shared by a list": [over_list],
    "class": [ByClass],
    "dunder": [ByDunder],
    "object": [ByObject],
    "text": [ByText],
    "operator": [Calls],
    "operator of another kind": [CallsPartial],
}


@pytest.mark.parametrize("chain", SLOW)
def test_all_other_wrappers_are_stepped_row_by_row(chain: str) -> None:
    fast, slow = pair("HalfCheetah-v5", SLOW[chain])
    compare(fast, slow)
    assert not is_in_use(fast)


def test_a_method_that_draws_numbers_is_called_row_by_row() -> None:
    fast, _ = pair("CartPole-v1", [Draws])
    assert not is_in_use(fast)


# Errors and changes


class Raises(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        if self.limit < reward < self.limit + 1.0:
            raise ValueError(f"{reward:.6f}")
        return reward

    limit = 1e9


class Turncoat(gym.RewardWrapper):
    """Does only later what it must not do."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.marks = [False, {}]
        self.buffer = np.zeros(2)

    def reward(self, reward: Any) -> Any:
        if TURN == 1:
            self.marks[0] = 0.0 < reward * 1e3 % 10 < 1.0  # false before and after a block
            return reward - self.marks[0]
        if TURN == 2:
            self.marks[1].update(last=reward)
        if TURN == 3:
            self.buffer[0] += 1
            return reward + self.buffer[0]
        if TURN == 4:
            SCRATCH[0] = reward
            return reward + SCRATCH[0]
        return reward


TURN, SCRATCH = 0, np.zeros(1)


def failure(env: Any, *args: Any) -> tuple[str, list[str]]:
    with pytest.raises(ValueError) as raised:
        env.step_batch(*args)
    return str(raised.value), raised.value.__notes__


def test_an_error_of_a_row_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = pair("HalfCheetah-v5", [Penalty, Raises])
    states, actions = batch(slow)
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


@pytest.mark.parametrize("turn", [1, 2, 3, 4])
def test_what_a_method_does_later_is_noticed(turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = pair("HalfCheetah-v5", [Turncoat])
    states, actions = batch(slow)
    for env in (fast, slow):
        env.step_batch(actions, states)
    assert is_in_use(fast)
    monkeypatch.setitem(globals(), "TURN", turn)
    one, other = (env.step_batch(actions, states) for env in (fast, slow))
    assert_same(tuple(one), tuple(other))
    assert not is_in_use(fast)


class Beyond(gym.ActionWrapper):
    def action(self, action: Any) -> Any:
        return action + 1


def test_an_action_that_the_environment_refuses_is_refused() -> None:
    fast, slow = pair("CartPole-v1", [Beyond])
    state = slow.reset(seed=0).state
    for env in (fast, slow):
        with pytest.raises(AssertionError, match="invalid"):
            env.step_batch([0, 0, 1, 0], state)


def test_rows_may_have_other_attributes_than_the_wrapper_now() -> None:
    fast, slow = pair("CartPole-v1", [Scaled])
    for env in (fast, slow):
        state = env.reset(seed=0).state
        env.gym_env.scale = 7.0
        other = env.get_state()
    assert fast.step_batch([0, 1], other).rewards.tolist() == [7.0, 7.0]
    assert fast.step_batch([0, 1], state).rewards.tolist() == [3.0, 3.0]
    mixed = np.stack([state, other, state])
    assert_same(tuple(fast.step_batch([0, 1, 1], mixed)), tuple(slow.step_batch([0, 1, 1], mixed)))
    assert is_in_use(fast)


def test_globals_and_functions_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = pair("CartPole-v1", [Global, (gw.TransformReward, {"func": scalar})])
    state = fast.reset(seed=0).state
    assert fast.step_batch([0, 1], state).rewards.tolist() == [1.25, 1.25]
    monkeypatch.setitem(globals(), "BONUS", 1.0)
    assert fast.step_batch([0, 1], state).rewards.tolist() == [2.0, 2.0]
    assert is_in_use(fast)
    for changed, expected in ((lambda r, power: OTHER["a"] + r, 7.0), (weighted, 2.0)):
        monkeypatch.setitem(globals(), "weighted", changed)
        assert fast.step_batch([0, 1], state).rewards.tolist() == [expected, expected]
    fast.gym_env.func = lambda reward: -reward
    assert fast.step_batch([0, 1], state).rewards.tolist() == [-2.0, -2.0]
    monkeypatch.setattr(
        Global, "step", lambda self, action: (*self.env.step(action)[:1], 5.0, True, False, {})
    )
    assert fast.step_batch([0, 1], state).terminateds.all()


def test_a_zero_keeps_its_sign() -> None:
    fast, slow = pair("Pendulum-v1", [ByType])
    rest = fast.make_state(fast.reset(seed=0).state, x=[0.0, 0.0])
    one, other = (env.step_batch(np.zeros((2, 1), np.float32), rest) for env in (fast, slow))
    assert_same(tuple(one), tuple(other))


def test_a_table_with_rewards_of_several_types_is_not_used() -> None:
    make = partial(gym.make, "FrozenLake-v1", disable_env_checker=True)

    def mixed() -> Any:
        env = make()
        table = env.unwrapped.P
        for place in table:
            for action, ways in table[place].items():
                table[place][action] = [
                    (p, s, float(r) if s == 15 else int(r), t) for p, s, r, t in ways
                ]
        return env

    env = plangym_like.make(mixed, wrappers=[ByType], audit="off")
    assert not is_in_use(env)


MADE: list[str] = []


class Registered(PendulumEnv):
    def __init_subclass__(cls, **kwargs: Any) -> None:
        MADE.append(cls.__name__)


class Derived(Registered):
    pass


@pytest.mark.parametrize("env_id", [Registered, Derived])
def test_no_class_is_derived_from_that_of_the_environment(env_id: Any) -> None:
    made = [*MADE]
    env = plangym_like.make(env_id, wrappers=[Penalty], audit="off")
    env.step_batch(np.zeros((4, 1), np.float32), env.reset(seed=0).state)
    assert made == MADE
