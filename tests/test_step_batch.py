"""Batches of states, in every environment."""

from typing import Any

import numpy as np
import pytest
from backends import RANDOM
from comparing import assert_same, content, reached, row, sampler
from small_envs import Fuse, Labelled
from suite import batch_of

import plangym_like
from plangym_like.batch.spaces import take
from plangym_like.errors import ObservationError

# Purity


def test_the_current_state_is_untouched(env):
    actions, states = batch_of(env, 8)
    env.reset(seed=5)
    env.step(actions[0])
    expected = [content(env.step(action)) for action in actions]
    final = env.get_state()
    env.reset(seed=5)
    env.step(actions[0])
    for action, wanted in zip(actions, expected, strict=True):
        before = env.get_state()
        env.step_batch(actions, states)
        env.step_batch(actions)
        env.rollout_batch([[action] * 3], states[:1])
        env.view_state(states) if env.name != "Nested" else None
        assert_same(env.get_state(), before)
        assert content(env.step(action)) == wanted
    assert_same(env.get_state(), final)


def test_no_states_means_from_the_current_one(env):
    actions, _ = batch_of(env, 8)
    env.reset(seed=2)
    env.step(actions[0])
    here = env.get_state()
    branched = env.step_batch(actions)
    assert_same(tuple(branched), tuple(env.step_batch(actions, here))[1:])
    with_states = env.step_batch(actions, return_state=True)
    assert_same(with_states, env.step_batch(actions, here))
    assert_same(env.get_state(), here)


@pytest.mark.parametrize("random_env", ["CartPole", "FrozenLake", "MsPacman"], indirect=True)
def test_ended_states_can_be_stepped(random_env):
    env = random_env
    space = sampler(env, 1)
    env.reset(seed=1)
    for _ in range(3000):
        result = env.step(space.sample(), env.get_state(), dt=3)
        if result.terminated:
            break
    assert result.terminated
    count = 6
    actions = [space.sample() for _ in range(count)]
    ended = np.stack([result.state] * count)
    first = env.step_batch(actions, ended)
    assert_same(env.step_batch(actions, ended), first)
    onward = env.step_batch(actions, first.states)
    assert_same(env.step_batch(actions[::-1], first.states[::-1]).states[::-1], onward.states)


# Broadcasting


def test_lists_and_single_values_are_batches_too(env):
    actions, states = batch_of(env, 5)
    expected = env.step_batch(actions, states)
    assert_same(env.step_batch(actions, list(states)), expected)
    assert_same(env.step_batch(actions, np.repeat(states, 2, axis=0)[::2]), expected)
    expected = env.step_batch([actions[2]] * 5, np.stack([states[4]] * 5), dt=[1, 2, 3, 4, 5])
    for state in (states[4], states[4:5], [states[4]]):
        assert_same(env.step_batch(actions[2], state, dt=[1, 2, 3, 4, 5]), expected)
    assert_same(env.step_batch(actions[2], np.stack([states[4]] * 5), dt=range(1, 6)), expected)


# How long an action is held


def test_frameskip_multiplies_dt(new_env):
    env = new_env("CartPole-v1", frameskip=3)
    assert env.frameskip == 3
    plain_env = plangym_like.make("CartPole-v1")
    env.reset(seed=0)
    plain_env.reset(seed=0)
    skipped = env.step(1, dt=2)
    held = plain_env.step(1, dt=6)
    assert_same(skipped.obs, held.obs)
    assert skipped.reward == held.reward == 6
    assert skipped.info == {"n_step": 6, "dt": 2}
    batch = env.step_batch([1, 1], plain_batch(env), dt=[1, 2])
    assert batch.infos["n_step"].tolist() == [3, 6]


def plain_batch(env: Any) -> np.ndarray:
    return np.stack([env.reset(seed=seed).state for seed in range(2)])


# Seeds


@pytest.mark.parametrize("random_env", RANDOM, indirect=True)
def test_seeds_decide_what_chance_does(random_env):
    env = random_env
    state = reached(env, 20, every=3)[-1]
    space = sampler(env, 3)
    actions = [space.sample() for _ in range(60)]
    seeds = np.arange(60)
    first = env.step_batch(actions, state, dt=2, seeds=seeds)
    assert_same(env.step_batch(actions, state, dt=2, seeds=seeds), first)
    backward = env.step_batch(actions[::-1], state, dt=2, seeds=seeds[::-1])
    assert_same(backward.states[::-1], first.states)
    other = env.step_batch(actions, state, dt=2, seeds=seeds + 1000)
    differ = [content(row(other, index)[1:4]) != content(row(first, index)[1:4]) for index in seeds]
    assert sum(differ) > 10
    assert len({row.tobytes() for row in first.states}) > 50
    one = env.step_batch(actions[7], state, dt=2, seeds=7)
    assert_same(row(one, 0), row(first, 7))


# Without waiting


def test_later_changes_of_inputs_do_not_change_futures(shared_env):
    env = shared_env("CartPole-v1")
    _, states = batch_of(env, 400)
    actions, dt, seeds = np.arange(400) % 2, np.arange(400) % 3 + 1, np.arange(400)
    expected = env.step_batch(actions, states, dt=dt, seeds=seeds)
    wanted = content(tuple(expected))
    for _ in range(5):
        given = [array.copy() for array in (actions, states, dt, seeds)]
        future = env.step_batch(given[0], given[1], dt=given[2], seeds=given[3], blocking=False)
        for array in given:
            array[:] = 1
        assert content(tuple(future())) == wanted


# Observations that are trees


def test_a_batch_is_a_tree(shared_env: Any) -> None:
    env = shared_env(Labelled)
    state = env.reset(seed=1).state
    actions = [0, 1, 2, 1, 0, 2]
    for count in (1, 6):
        obs = env.step_batch(actions[:count], state).obs
        rows = [env.step(action, state).obs for action in actions[:count]]
        assert obs["place"].dtype == np.float32
        assert obs["place"].tolist() == [row["place"].tolist() for row in rows]
        assert obs["told"][0] == [row["told"][0] for row in rows]
        assert obs["told"][1].dtype == np.int64
        assert obs["told"][1].tolist() == [row["told"][1] for row in rows]


def test_a_row_that_fails_is_blank(shared_env: Any) -> None:
    env = shared_env(Labelled)
    state = env.reset(seed=1).state
    with pytest.raises(ObservationError, match=r"^obs\['place'\]: .*\(3,\)") as caught:
        env.step_batch([1, 1, 3, 1], state)
    assert [note for note in caught.value.__notes__ if "row 2 " in note]
    masked = env.step_batch([1, 1, 3, 1], state, on_error="mask")
    assert masked.infos.failed.tolist() == [False, False, True, False]
    assert masked.obs["place"][2].tolist() == [0.0, 0.0] and masked.obs["place"][3].all()
    assert [text is None for text in masked.obs["told"][0]] == [False, False, True, False]


# What an environment itself raises


@pytest.mark.parametrize("blown", [{0}, {29, 4, 17}])
def test_the_lowest_row_that_raises_is_told(blown):
    actions = np.array([3 if index in blown else index % 3 for index in range(30)])
    lowest = min(blown)
    with plangym_like.make(Fuse) as env:
        start = env.reset(seed=0).state
        states = [start]
        for _ in range(29):
            states.append(env.step(1, states[-1]).state)
        env.set_state(states[1])
        with pytest.raises(ArithmeticError, match=rf"at a load of {lowest}\b") as caught:
            env.step_batch(actions, np.stack(states))
        assert [note for note in caught.value.__notes__ if f"row {lowest} " in note]
        assert_same(env.get_state(), states[1])
        good = env.step_batch(np.arange(30) % 3, np.stack(states))
        assert good.obs.tolist() == [index + index % 3 for index in range(30)]
        with pytest.raises(ArithmeticError):
            env.rollout_batch(np.stack([np.ones(30, int), actions]), start)


# Rollouts


def test_a_rollout_is_batches_one_after_another(env):
    actions, states = batch_of(env, 24)
    states, plans = states[:6], [actions[4 * row : 4 * row + 4] for row in range(6)]
    dt = [1, 2, 1, 3, 1, 2]
    result = env.rollout_batch(plans, states, dt=dt, return_observations=True)
    goes_on = np.ones(6, bool)
    for time in range(4):
        step = env.step_batch([plan[time] for plan in plans], states, dt=dt)
        for index in np.flatnonzero(goes_on):
            assert result.rewards[index, time] == step.rewards[index]
            assert_same(take(take(result.observations, index), time), take(step.obs, index))
        states = np.where(goes_on[:, None], step.states, states)
        goes_on &= ~(step.terminateds | step.truncateds)
        assert (result.terminateds | result.truncateds)[:, time].tolist() == (~goes_on).tolist()
    assert_same(result.states, states)
    without = env.rollout_batch(plans, batch_of(env, 24)[1][:6], dt=dt)
    assert without.observations is None
    assert_same(without.states, result.states)
