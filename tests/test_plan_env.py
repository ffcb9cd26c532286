"""Single steps, and what calls return, in every environment."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from backends import KINDS, SUITE
from comparing import assert_same, content, reached, sampler
from small_envs import Teller

from plangym_like import (
    BatchStep,
    BatchTransition,
    ResetObservation,
    ResetResult,
    Step,
    Transition,
    check_env,
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_check_passes(kind: str) -> None:
    name, kwargs = SUITE[kind]
    report = check_env(name, states=8, steps=8, workers=(), **kwargs)
    assert report.ok, report


# Results


def test_reset_gives_state_observation_and_info(env):
    result = env.reset(seed=0)
    assert type(result) is ResetResult
    state, obs, info = result
    assert state.shape == (env.state_nbytes,) and state.dtype == np.uint8
    assert state.flags.c_contiguous and state.flags.writeable
    assert obs in env.observation_space
    assert isinstance(info, dict)
    assert_same(env.get_state(), state)
    without = env.reset(seed=0, return_state=False)
    assert type(without) is ResetObservation
    assert_same(tuple(without), (obs, info))


def test_step_gives_states_exactly_where_they_were_given(env):
    state = env.reset(seed=0).state
    action = sampler(env, 0).sample()
    assert type(env.step(action)) is Step
    assert type(env.step(action, return_state=True)) is Transition
    assert type(env.step(action, state=state)) is Transition
    assert type(env.step(action, state)) is Transition
    assert type(env.step(action, state=state, return_state=False)) is Step
    assert type(env.step_batch([action])) is BatchStep
    assert type(env.step_batch([action], return_state=True)) is BatchTransition
    assert type(env.step_batch([action], states=state)) is BatchTransition
    assert type(env.step_batch([action], state, return_state=False)) is BatchStep


def test_a_single_step_gives_python_scalars(env):
    state = env.reset(seed=0).state
    new, obs, reward, terminated, truncated, info = env.step(sampler(env, 0).sample(), state=state)
    assert new.shape == state.shape and new.dtype == np.uint8
    assert obs in env.observation_space
    assert type(reward) is float
    assert type(terminated) is bool and type(truncated) is bool
    assert type(info["n_step"]) is int and info["dt"] == 1


# Steps


def test_seeded_resets_repeat_and_others_differ(env):
    first = env.reset(seed=11)
    space = sampler(env, 0)
    actions = [space.sample() for _ in range(5)]
    walk = [content(env.step(action)) for action in actions]
    env.reset(seed=12)
    assert_same(env.reset(seed=11), first)
    assert [content(env.step(action)) for action in actions] == walk
    seeded = {content(env.reset(seed=seed).state) for seed in range(5)}
    unseeded = {content(env.reset().state) for _ in range(3)}
    assert len(seeded) == 1 if "MsPacman" in env.name else len(seeded) == 5
    assert len(unseeded) == 3 and not seeded & unseeded


# Episodes


def play_to_the_end(env: Any) -> Any:
    for _ in range(500):
        result = env.step(1, return_state=True)
        if result.terminated or result.truncated:
            return result
    raise AssertionError("the pole never fell")


def test_autoreset_begins_anew_and_returns_the_ended_state(new_env):
    env = new_env("CartPole-v1")
    env.reset(seed=0)
    ended = play_to_the_end(env)
    assert abs(env.view_state(ended.state)["x"][2]) > 0.2
    now = env.get_state()
    assert (np.abs(env.view_state(now)["x"]) <= 0.05).all()
    assert content(now) != content(ended.state)
    assert not env.step(1).terminated
    stays = new_env("CartPole-v1", autoreset=False)
    stays.reset(seed=0)
    ended = play_to_the_end(stays)
    assert_same(stays.get_state(), ended.state)
    assert stays.step(1).terminated


def test_a_kept_time_limit_counts_in_the_state(new_env):
    env = new_env("Pendulum-v1", remove_time_limit=False)
    state = env.reset(seed=0).state
    assert env.view_state(state)["elapsed_steps"] == 0
    actions = [[0.5], [-0.5], [0.1]]
    walked = env.rollout_batch([[action] * 198 for action in actions], state)
    assert env.view_state(walked.states)["elapsed_steps"].tolist() == [198] * 3
    assert not walked.truncateds.any()
    batch = env.step_batch(actions, walked.states, dt=[1, 2, 9])
    assert batch.truncateds.tolist() == [False, True, True]
    assert batch.infos["n_step"].tolist() == [1, 2, 2]
    assert not batch.terminateds.any()
    again = env.step_batch(actions, np.stack([state] * 3))
    assert not again.truncateds.any()
    env.set_state(batch.states[0])
    assert env.step([0.0]).truncated


# Observations that are no arrays


def test_text_is_observed_in_lists(new_env):
    env = new_env(Teller)
    state = env.reset(seed=0).state
    result = env.step_batch([0, 1, 2, 1, 0], state)
    assert list(result.obs) == ["a", "b", "c", "b", "a"]
    again = env.step_batch([0, 1, 2, 1, 0], result.states)
    assert list(again.obs) == ["aa", "bb", "cc", "bb", "aa"]
    assert again.terminateds.tolist() == [False, False, True, False, False]
    rollout = env.rollout_batch([[0, 1], [2, 2], [1, 0]], state, return_observations=True)
    told = [[rollout.observations[row][time] for time in range(2)] for row in range(3)]
    assert told == [["a", "ab"], ["c", "cc"], ["b", "ba"]]


# Nothing to do


def test_an_empty_batch_gives_empty_arrays(env):
    states = reached(env, 2)
    for actions, given_states in (([], states[:0]), ([], states[0]), ([], []), ([], None)):
        result = env.step_batch(actions, given_states, return_state=True)
        assert type(result) is BatchTransition
        assert result.states.shape == (0, env.state_nbytes) and result.states.dtype == np.uint8
        assert result.rewards.shape == (0,) and result.rewards.dtype == np.float64
        assert result.terminateds.shape == result.truncateds.shape == (0,)
        assert result.terminateds.dtype == result.truncateds.dtype == bool
        assert len(result.infos) == 0 and result.infos["n_step"].shape == (0,)
        if env.obs_shape is not None:
            assert result.obs.shape == (0, *env.obs_shape)
            assert result.obs.dtype == env.observation_space.dtype
    if isinstance(env.observation_space, gymnasium.spaces.Dict):
        assert result.obs["place"].shape == (0, 2)
    one = sampler(env, 0).sample()
    assert env.step_batch(one, states[:0]).rewards.shape == (0,)
    assert env.step_batch([], states[:0], dt=[], seeds=[], blocking=False)().rewards.shape == (0,)
