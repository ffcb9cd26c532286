"""Rollouts, in every environment."""

from typing import Any

import numpy as np
from comparing import assert_same, content, reached
from suite import batch_of, np_leaves

from plangym_like import (
    Rollout,
)


def test_a_rollout_is_its_steps(env):
    actions, states = batch_of(env, 24)
    states, grid = states[:6], [actions[4 * index : 4 * index + 4] for index in range(6)]
    dt = np.array([1, 2, 1, 3, 1, 2])
    result = env.rollout_batch(grid, states, dt=dt, return_observations=True)
    assert type(result) is Rollout
    assert result.rewards.shape == result.terminateds.shape == result.truncateds.shape == (6, 4)
    for index in range(6):
        state, ended = states[index], False
        for time in range(4):
            reward = 0.0
            if not ended:
                step = env.step(grid[index][time], state, dt=int(dt[index]))
                state, reward = step.state, step.reward
                ended = step.terminated or step.truncated
            place = (index, time)
            assert result.rewards[place] == reward
            assert result.terminateds[place] == step.terminated
            assert result.truncateds[place] == step.truncated
            got = np_leaves(_at(result.observations, place))
            assert content(got) == content(np_leaves(_cast(env, step.obs)))
        assert_same(result.states[index], state, f"state {index}")
    without = env.rollout_batch(grid, states, dt=dt)
    assert without.observations is None
    assert_same(without.states, result.states)


def _at(batch: Any, place: tuple[int, int]) -> Any:
    if isinstance(batch, dict):
        return {key: _at(value, place) for key, value in batch.items()}
    return tuple(_at(v, place) for v in batch) if isinstance(batch, tuple) else batch[place]


def _cast(env: Any, obs: Any) -> Any:
    return obs if isinstance(obs, dict) else np.asarray(obs, env.observation_space.dtype)


def test_rollouts_stay_where_they_ended(shared_env):
    env = shared_env("CartPole-v1")
    states = reached(env, 5)
    result = env.rollout_batch(np.ones((5, 60), int), states, return_observations=True)
    for index in range(5):
        (over,) = np.nonzero(result.terminateds[index])
        first = over[0]
        assert over.tolist() == list(range(first, 60))
        assert (result.rewards[index, first + 1 :] == 0).all()
        assert_same(
            result.observations[index, first:], result.observations[index, [first] * (60 - first)]
        )
