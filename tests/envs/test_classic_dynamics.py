"""Blocks of rows against Gymnasium's own step, to the last bit, and where there are none."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from block_steps import compare, pair
from classic_rows import (
    CONFIGURATIONS,
    IDS,
    TOLD,
    edited,
    falls_back,
    make,
    random_actions,
    random_rows,
)
from comparing import assert_same
from gymnasium.envs.classic_control import CartPoleEnv
from usual import first_of

from plangym_like.envs.classic.env import ClassicControlEnv
from plangym_like.errors import SnapshotError

# Bit-identical to Gymnasium


@pytest.mark.parametrize(("name", "kwargs", "edits"), CONFIGURATIONS, ids=TOLD)
def test_blocks_equal_the_loop(name: str, kwargs: dict[str, Any], edits: dict[str, Any]) -> None:
    rng = np.random.default_rng(len(name))
    fast, slow = pair(name, **kwargs)
    for env in (fast, slow):
        edited(env.simulator.base, edits)
    count = 30 if name == "Acrobot-v1" else 100
    compare(fast, slow, random_rows(slow, rng, count), random_actions(slow, rng, count, 4))
    assert not falls_back(fast)


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("frameskip", first_of([3, None]))
def test_blocks_hold_actions_and_count_steps(name: str, frameskip: int | None) -> None:
    rng = np.random.default_rng(7)
    fast, slow = pair(name, frameskip=frameskip, remove_time_limit=False)
    compare(fast, slow, random_rows(slow, rng, 20), random_actions(slow, rng, 20, 6))


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("limited", first_of([True, False]))
def test_a_seeded_episode_equals_gymnasium(name: str, limited: bool) -> None:
    theirs = gymnasium.make(name) if limited else gymnasium.make(name, max_episode_steps=-1)
    ours = ClassicControlEnv(name, remove_time_limit=not limited, autoreset=False)
    batched = ClassicControlEnv(name, remove_time_limit=not limited)
    rng = np.random.default_rng(9)
    for seed in (3, None):
        obs, info = theirs.reset(seed=seed)
        state, our_obs, our_info = ours.reset(seed=seed)
        assert our_obs.tobytes() == obs.tobytes() and our_info == info
        ended = False
        for _ in range(1000 if limited else 60):
            action = random_actions(theirs, rng)
            obs, reward, terminated, truncated, _ = theirs.step(action)
            results = ours.step(action), batched.step_batch([action] * 2, state)
            for index, result in enumerate(results):
                told = [result[-5], result[-4], result[-3], result[-2]]
                if index:
                    told = [array[0] for array in told]
                assert told[0].tobytes() == obs.tobytes() and told[0].dtype == obs.dtype
                assert told[1:] == [reward, terminated, truncated]
            state = results[1].states[0]
            assert state.tobytes() == ours.get_state().tobytes()
            ended = terminated or truncated
            if ended:
                break
        assert ended or not limited
    theirs.close()


# Where there is no array form


def test_noise_is_drawn_row_by_row() -> None:
    env = make("Acrobot-v1")
    assert not falls_back(env)
    env.simulator.base.torque_noise_max = 0.5
    assert falls_back(env)
    states = np.repeat(env.get_state()[None], 6, axis=0)
    first = env.step_batch([1], states, seeds=[1, 2, 3, 1, 2, 3])
    assert (first.states[:3] == first.states[3:]).all()
    assert len({row.tobytes() for row in first.obs}) == 3
    same = env.step_batch([1], states)
    assert len({row.tobytes() for row in same.states}) == 1
    env.simulator.base.torque_noise_max = 0.0
    assert not falls_back(env)


def _torque(base: Any) -> None:
    base.AVAIL_TORQUE[0] = -3.0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("CartPole-v1", lambda base: setattr(base, "gravity", 20.0)),
        ("Pendulum-v1", lambda base: setattr(base, "g", 20.0)),
        ("Acrobot-v1", _torque),
        ("Acrobot-v1", lambda base: setattr(base, "_get_ob", lambda: np.ones(6, np.float32))),
    ],
)
def test_what_is_edited_later_counts(name: str, change: Any) -> None:
    env = make(name)
    base, state = env.simulator.base, env.get_state()
    action = np.zeros(env.action_space.shape, env.action_space.dtype)
    if name == "Acrobot-v1":
        base.AVAIL_TORQUE = [-1.0, 0.0, 1.0]
    before = env.step_batch([action] * 3, state)
    assert_same(before.obs[0], env.step(action, state).obs)
    change(base)
    after = env.step_batch([action] * 3, state)
    assert (before.obs != after.obs).any()
    assert_same(after.obs[0], env.step(action, state).obs)
    env.set_state(state)
    assert_same(after.obs[0], env.step(action).obs)


def test_a_replaced_method_is_called() -> None:
    env = make()
    base = env.simulator.base
    original = base.step

    def doubled(action: Any) -> Any:
        obs, reward, *rest = original(action)
        return obs, 2 * reward, *rest

    base.step = doubled
    assert falls_back(env)
    assert env.step_batch([0, 1], env.get_state()).rewards.tolist() == [2.0, 2.0]


class Slippery(CartPoleEnv):
    def step(self, action: Any) -> Any:
        self.state = self.state * 0.5
        return super().step(action)


@pytest.mark.parametrize("source", [Slippery, "FrozenLake-v1"])
def test_other_environments_are_refused(source: Any) -> None:
    with pytest.raises(SnapshotError, match="not one of the classic control environments"):
        ClassicControlEnv(source)
