"""What every environment promises, on every backend."""

import importlib.util
import pickle
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same, content, reached, row, rows_in, sampler
from conftest import BACKENDS, make_on
from gymnasium.wrappers import ClipReward, FrameStackObservation, TimeAwareObservation
from small_envs import Nested, Scaled, Teller

import plangym_like
from plangym_like import (
    BatchStep,
    BatchTransition,
    ClassicControlEnv,
    PlanEnv,
    ResetObservation,
    ResetResult,
    Rollout,
    Step,
    Transition,
)
from plangym_like.errors import (
    ActionError,
    ClosedError,
    InputError,
    SnapshotError,
    StateError,
)

ATARI = ("ALE/MsPacman-v5", {"obs_type": "ram"})
SUITE: dict[str, tuple[Any, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", {}),
    "Pendulum": ("Pendulum-v1", {"remove_time_limit": False}),
    "FrozenLake": ("FrozenLake-v1", {"is_slippery": True}),
    "MsPacman": ATARI,
    "StickyPong": ("ALE/Pong-v5", {"obs_type": "ram", "repeat_action_probability": 0.4}),
    "Nested": (Nested, {}),
}
if importlib.util.find_spec("mujoco"):
    SUITE["Hopper"] = ("Hopper-v5", {"remove_time_limit": False})
RANDOM = ["FrozenLake", "StickyPong", "Nested"]


@pytest.fixture(scope="module", params=list(SUITE))
def env(request: pytest.FixtureRequest, shared_env: Any) -> Any:
    name, kwargs = SUITE[request.param]
    return shared_env(name, **kwargs)


@pytest.fixture
def random_env(request: pytest.FixtureRequest, shared_env: Any) -> Any:
    name, kwargs = SUITE[request.param]
    return shared_env(name, **kwargs)


def batch_of(env: Any, count: int, seed: int = 0) -> tuple[list[Any], np.ndarray]:
    """Return actions and reached states; some of the states have ended."""
    space = sampler(env, seed)
    return [space.sample() for _ in range(count)], reached(env, count, seed)


def spaces_agree(env: Any, obs: Any, count: int) -> None:
    from gymnasium.vector.utils import batch_space

    space = batch_space(env.observation_space, count) if count else None
    assert space is None or space.contains(obs)


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


def test_a_batch_gives_arrays(env):
    actions, states = batch_of(env, 7)
    result = env.step_batch(actions, states)
    new, obs, rewards, terminateds, truncateds, infos = result
    assert new.shape == (7, env.state_nbytes) and new.dtype == np.uint8 and new.flags.c_contiguous
    spaces_agree(env, obs, 7)
    assert rewards.shape == (7,) and rewards.dtype == np.float64
    for flags in (terminateds, truncateds):
        assert flags.shape == (7,) and flags.dtype == bool
    assert len(infos) == 7 and infos["dt"].tolist() == [1] * 7


def test_results_belong_to_the_caller(env):
    actions, states = batch_of(env, 6)
    first = env.step_batch(actions, states)
    before = content(first)
    for seed in range(4):
        env.step_batch(actions[::-1], states[::-1].copy())
        env.step(actions[seed], states[seed])
    assert content(first) == before
    again = env.step_batch(actions, states)
    first.rewards[:] = 7
    first.states[:] = 7
    assert content(again) == before


def test_the_parallel_backends_really_send(backend, shared_env):
    env = shared_env(*SUITE["CartPole"][:1])
    if backend == "serial":
        assert isinstance(env, PlanEnv)
        return
    actions, states = batch_of(env, 40)
    before = env.stats.rows_sent
    env.step_batch(actions, states)
    sent = env.stats.rows_sent - before
    assert sent >= (40 if backend == "isolated" else 20)


# Steps


def test_step_leaves_the_env_in_its_result(env):
    state = env.reset(seed=1).state
    for action in batch_of(env, 5)[0]:
        result = env.step(action, state=state)
        if not (result.terminated or result.truncated):
            assert_same(env.get_state(), result.state)
        state = result.state


def test_stepping_on_is_stepping_from_the_state(env):
    actions, _ = batch_of(env, 12)
    state = env.reset(seed=4).state
    walked = []
    for action in actions:
        walked.append(env.step(action, return_state=True))
        if walked[-1].terminated or walked[-1].truncated:
            break
    env.reset(seed=77)
    for action, expected in zip(actions, walked, strict=False):
        result = env.step(action, state=state)
        assert_same(result, expected)
        state = result.state


def test_set_state_goes_back(env):
    actions, states = batch_of(env, 8)
    expected = [env.step(action, state) for action, state in zip(actions, states, strict=True)]
    for index in (3, 0, 7, 3):
        env.set_state(states[index])
        assert_same(env.get_state(), states[index])
        assert_same(env.step(actions[index], return_state=True), expected[index])


def test_seeded_resets_repeat_and_others_differ(env, backend):
    first = env.reset(seed=11)
    space = sampler(env, 0)
    actions = [space.sample() for _ in range(5)]
    walk = [content(env.step(action)) for action in actions]
    env.reset(seed=12)
    assert_same(env.reset(seed=11), first)
    assert [content(env.step(action)) for action in actions] == walk
    if backend != "serial":
        other = env.plan_env.clone()
        assert_same(other.reset(seed=11), first)
        other.close()
    seeded = {content(env.reset(seed=seed).state) for seed in range(5)}
    unseeded = {content(env.reset().state) for _ in range(3)}
    assert len(seeded) == 1 if "MsPacman" in env.name else len(seeded) == 5
    assert len(unseeded) == 3 and not seeded & unseeded


def test_reset_takes_options(shared_env):
    env = shared_env("CartPole-v1")
    obs = env.reset(seed=0, options={"low": 0.5, "high": 0.5}).obs
    assert_same(obs, np.full(4, 0.5, np.float32))


# Purity


def test_a_batch_is_its_rows_stepped_one_by_one(env):
    actions, states = batch_of(env, 12)
    dt = np.arange(12) % 3 + 1
    batch = env.step_batch(actions, states, dt=dt)
    for index in range(12):
        single = env.step(actions[index], states[index], dt=int(dt[index]))
        got = row(batch, index)
        assert_same(got[0], single.state, f"state {index}")
        assert np.array_equal(content(np_leaves(got[1])), content(np_leaves(single.obs)))
        assert [value.item() for value in got[2:5]] == list(single[2:5])
        assert_same(plain(got[5]), plain(single.info), f"info {index}")


def np_leaves(nest: Any) -> Any:
    if isinstance(nest, dict):
        return {key: np_leaves(value) for key, value in nest.items()}
    return tuple(map(np_leaves, nest)) if isinstance(nest, tuple) else np.asarray(nest)


def plain(info: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.item() if isinstance(value, np.generic) else value for key, value in info.items()
    }


def test_rows_depend_on_nothing_but_themselves(env):
    actions, states = batch_of(env, 16)
    rng = np.random.default_rng(0)
    dt, seeds = rng.integers(1, 4, 16), rng.integers(0, 1000, 16)
    whole = env.step_batch(actions, states, dt=dt, seeds=seeds)
    for _ in range(3):
        order = rng.permutation(16)
        mixed = rows_in(env, order, states, actions, dt=dt, seeds=seeds)
        for place, index in enumerate(order):
            assert_same(row(mixed, place), row(whole, index), f"row {index}")
        cut = int(rng.integers(1, 15))
        for part in (np.arange(cut), np.arange(cut, 16), rng.integers(0, 16, 20)):
            some = rows_in(env, part, states, actions, dt=dt, seeds=seeds)
            for place, index in enumerate(part):
                assert_same(row(some, place), row(whole, index), f"row {index}")
        env.reset()


def test_inputs_stay_as_they_are(env):
    actions, states = batch_of(env, 6)
    states.flags.writeable = False
    dt = np.array([1, 2, 3, 1, 2, 3])
    seeds = np.arange(6)
    before = content((actions, states, dt, seeds))
    env.step_batch(actions, states, dt=dt, seeds=seeds)
    assert content((actions, states, dt, seeds)) == before


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


def test_batches_before_the_first_reset_start_an_episode(new_env):
    env = new_env("CartPole-v1")
    result = env.step_batch([0, 1, 0])
    assert len(result.rewards) == 3
    assert_same(env.step_batch([0, 1, 0]), result)
    assert env.get_state().shape == (env.state_nbytes,)


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


def test_one_state_for_many_actions(env):
    actions, states = batch_of(env, 6)
    expected = env.step_batch(actions, np.stack([states[4]] * 6))
    for one in (states[4], states[4:5], [states[4]]):
        assert_same(env.step_batch(actions, one), expected)


def test_one_action_for_many_states(env):
    actions, states = batch_of(env, 6)
    expected = env.step_batch([actions[2]] * 6, states)
    for one in (actions[2], [actions[2]]):
        assert_same(env.step_batch(one, states), expected)


def test_one_of_each_is_a_batch_of_one(env):
    actions, states = batch_of(env, 1)
    result = env.step_batch(actions[0], states[0])
    assert len(result.rewards) == 1 and result.states.shape == (1, env.state_nbytes)


def test_lists_of_rows_are_batches_too(env):
    actions, states = batch_of(env, 5)
    expected = env.step_batch(actions, states)
    assert_same(env.step_batch(actions, list(states)), expected)
    assert_same(env.step_batch(tuple(actions), tuple(states)), expected) if (
        isinstance(env.action_space, gymnasium.spaces.Discrete)
    ) else None
    assert_same(env.step_batch(actions, np.repeat(states, 2, axis=0)[::2]), expected)


def test_many_step_counts_for_one_row(env):
    actions, states = batch_of(env, 1)
    result = env.step_batch(actions, states, dt=[1, 2, 3, 4])
    for index in range(4):
        alone = env.step_batch(actions, states, dt=index + 1)
        assert_same(row(result, index), row(alone, 0))


# How long an action is held


def test_dt_holds_an_action_and_sums_rewards(env):
    actions, states = batch_of(env, 6)
    for dt in (1, 2, 5):
        batch = env.step_batch(actions, states, dt=dt)
        assert_same(env.step_batch(actions, states, dt=[dt] * 6), batch)
        for index, (action, state) in enumerate(zip(actions, states, strict=True)):
            total, frames = 0.0, 0
            for _ in range(dt):
                step = env.step(action, state)
                total, frames, state = total + step.reward, frames + step.info["n_step"], step.state
                if step.terminated or step.truncated:
                    break
            assert batch.rewards[index] == pytest.approx(total, rel=1e-12)
            assert_same(batch.states[index], state)
            assert batch.infos[index]["n_step"] == frames
            assert batch.infos[index]["dt"] == dt


def test_n_step_counts_frames(shared_env):
    env = shared_env(ATARI[0], **ATARI[1])
    state = env.reset(seed=0).state
    infos = env.step_batch([0, 1, 2], state, dt=[1, 2, 5]).infos
    assert infos["n_step"].tolist() == [4, 8, 20]
    assert infos["dt"].tolist() == [1, 2, 5]
    assert [info["n_step"] for info in infos] == [4, 8, 20]
    pole = shared_env("CartPole-v1")
    state = pole.reset(seed=0).state
    infos = pole.step_batch([0, 1], state, dt=[3, 500]).infos
    assert infos["n_step"][0] == 3
    assert 5 < infos["n_step"][1] < 20
    assert infos["dt"].tolist() == [3, 500]


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


@pytest.mark.parametrize("random_env", RANDOM, indirect=True)
def test_without_seeds_the_state_holds_the_dice(random_env):
    env = random_env
    state = env.reset(seed=3).state
    action = sampler(env, 3).sample()
    batch = env.step_batch([action] * 10, state, dt=3)
    for index in range(10):
        assert_same(row(batch, index), row(batch, 0))


def test_seeds_change_nothing_where_nothing_is_drawn(shared_env):
    env = shared_env(ATARI[0], **ATARI[1])
    actions, states = batch_of(env, 4)
    assert_same(
        env.step_batch(actions, states, seeds=[1, 2, 3, 4]), env.step_batch(actions, states)
    )


# Without waiting


def test_promises_keep_their_word(env):
    actions, states = batch_of(env, 9)
    expected = env.step_batch(actions, states)
    promise = env.step_batch(actions, states, blocking=False)
    assert_same(promise(), expected)
    assert_same(promise(), expected)
    promises = [env.step_batch(actions[::way], states[::way], blocking=False) for way in (1, -1, 1)]
    env.step(actions[0], states[0])
    for promise, way in zip(promises, (1, -1, 1), strict=True):
        result = promise()
        for index in range(9):
            assert_same(row(result, index), row(expected, index if way == 1 else 8 - index))
    rollout = env.rollout_batch([[action] * 3 for action in actions], states)
    later = env.rollout_batch([[action] * 3 for action in actions], states, blocking=False)
    assert_same(later(), rollout)


def test_promises_do_not_see_what_is_done_to_their_inputs_later(shared_env):
    env = shared_env("CartPole-v1")
    _, states = batch_of(env, 400)
    actions, dt, seeds = np.arange(400) % 2, np.arange(400) % 3 + 1, np.arange(400)
    expected = env.step_batch(actions, states, dt=dt, seeds=seeds)
    wanted = content(tuple(expected))
    for _ in range(5):
        given = [array.copy() for array in (actions, states, dt, seeds)]
        promise = env.step_batch(given[0], given[1], dt=given[2], seeds=given[3], blocking=False)
        for array in given:
            array[:] = 1
        assert content(tuple(promise())) == wanted


def test_a_dropped_promise_harms_nothing(env):
    actions, states = batch_of(env, 9)
    expected = env.step_batch(actions, states)
    for _ in range(3):
        env.step_batch(actions[::-1], states[::-1], blocking=False)
    assert_same(env.step_batch(actions, states), expected)


def test_the_current_state_may_move_on_before_a_promise_is_kept(env):
    actions, _ = batch_of(env, 9)
    env.reset(seed=6)
    expected = env.step_batch(actions)
    promise = env.step_batch(actions, blocking=False)
    env.step(actions[0])
    here = env.get_state()
    assert_same(promise(), expected)
    assert_same(env.get_state(), here)


# Episodes


def play_to_the_end(env: Any) -> Any:
    for _ in range(500):
        result = env.step(1, return_state=True)
        if result.terminated or result.truncated:
            return result
    raise AssertionError("the pole never fell")


def test_autoreset_begins_anew_and_returns_the_ended_state(shared_env):
    env = shared_env("CartPole-v1")
    env.reset(seed=0)
    ended = play_to_the_end(env)
    assert abs(env.view_state(ended.state)["x"][2]) > 0.2
    now = env.get_state()
    assert (np.abs(env.view_state(now)["x"]) <= 0.05).all()
    assert content(now) != content(ended.state)
    assert not env.step(1).terminated


def test_without_autoreset_the_env_stays_where_it_ended(new_env):
    env = new_env("CartPole-v1", autoreset=False)
    env.reset(seed=0)
    ended = play_to_the_end(env)
    assert_same(env.get_state(), ended.state)
    assert env.step(1).terminated


def test_episodes_after_an_autoreset_follow_the_seed(shared_env):
    env = shared_env("CartPole-v1")
    reference = gymnasium.make("CartPole-v1")
    reference.reset(seed=3)
    env.reset(seed=3)
    for _ in range(100):
        obs, _, terminated, _, _ = reference.step(1)
        assert_same(env.step(1).obs, obs)
        if terminated:
            reference.reset()


def test_a_time_limit_is_removed_unless_asked_for(new_env):
    free = new_env("CartPole-v1")
    kept = new_env("CartPole-v1", remove_time_limit=False)
    assert free.simulator.wrapper_names() == ["OrderEnforcing"]
    assert "TimeLimit" in kept.simulator.wrapper_names()
    state = free.make_state(x=[0, 0, 0, 0])
    free.set_state(state)
    assert not any(free.step(index % 2).truncated for index in range(600))


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


# Rollouts


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


def test_rollouts_branch_and_broadcast_as_batches_do(shared_env):
    env = shared_env("CartPole-v1")
    env.reset(seed=0)
    here = env.get_state()
    grid = np.arange(12).reshape(4, 3) % 2
    assert_same(env.rollout_batch(grid), env.rollout_batch(grid, np.stack([here] * 4)))
    assert_same(env.get_state(), here)
    states = reached(env, 4)
    assert_same(
        env.rollout_batch(grid[:1], states), env.rollout_batch(np.repeat(grid[:1], 4, 0), states)
    )


@pytest.mark.parametrize("random_env", RANDOM, indirect=True)
def test_seeded_rollouts_are_pure(random_env):
    env = random_env
    state = env.reset(seed=0).state
    action = sampler(env, 0).sample()
    grid = [[action] * 4 for _ in range(12)]
    seeds = np.arange(12)
    first = env.rollout_batch(grid, state, seeds=seeds)
    backward = env.rollout_batch(grid, state, seeds=seeds[::-1])
    assert_same(backward.states[::-1], first.states)
    assert len({row.tobytes() for row in first.states}) == 12


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


def test_info_keys_that_only_some_rows_have(shared_env):
    env = shared_env(Nested)
    state = env.reset(seed=0).state
    still = np.zeros(2, np.float32)
    actions = [{"move": still, "pick": pick} for pick in (0, 1, 2, 0)]
    infos = env.step_batch(actions, state).infos
    assert infos.mask("picked").tolist() == [False, True, True, False]
    assert infos["picked"].tolist() == [None, 1, 2, None]
    assert infos[0] == {"n_step": 1, "dt": 1}
    assert infos[2] == {"picked": 2, "n_step": 1, "dt": 1}


# States as data


def test_saved_states_come_back(env, tmp_path):
    actions, states = batch_of(env, 5)
    env.save_states(tmp_path / "five", states)
    assert_same(env.load_states(tmp_path / "five"), states)
    env.save_states(str(tmp_path / "one"), states[2])
    assert_same(env.load_states(tmp_path / "one"), states[2:3])
    env.save_states(tmp_path / "none", states[:0])
    assert_same(env.load_states(tmp_path / "none"), states[:0])
    loaded = env.load_states(tmp_path / "five")
    assert_same(env.step_batch(actions, loaded), env.step_batch(actions, states))


def test_viewed_states_are_named_and_read_only(shared_env):
    env = shared_env("CartPole-v1")
    states = reached(env, 4)
    view = env.view_state(states)
    assert view["x"].shape == (4, 4) and view["x"].dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        view["x"][0, 0] = 1
    env.set_state(states[3])
    assert_same(env.gym_env.unwrapped.state.astype(np.float64), np.array(view["x"][3]))
    assert_same(np.array(env.view_state(states[3])["x"]), np.array(view["x"][3]))


def test_made_states_are_roots_to_plan_from(shared_env):
    env = shared_env("CartPole-v1")
    before = env.reset(seed=0).state
    x = [0.1, -0.2, 0.03, 0.4]
    state = env.make_state(x=x)
    assert_same(env.get_state(), before)
    assert env.view_state(state)["x"].tolist() == x
    reference = gymnasium.make("CartPole-v1").unwrapped
    reference.reset(seed=0)
    reference.state = np.array(x)
    obs = reference.step(1)[0]
    assert_same(env.step_batch([0, 1], state).obs[1], obs)
    kept = env.make_state(before)
    assert_same(kept, before)


def test_what_a_game_is_made_of_cannot_be_made_up(shared_env):
    env = shared_env(ATARI[0], **ATARI[1])
    with pytest.raises(SnapshotError, match="physical"):
        env.make_state(lives=9)


def test_rows_can_be_sets_keys_and_slices(env):
    _, states = batch_of(env, 10)
    seen = {state.tobytes() for state in states}
    env.set_state(np.frombuffer(next(iter(seen)), np.uint8))
    assert env.get_state().tobytes() in seen
    assert (states == states[0]).all(axis=1)[0]


# Copies


def test_a_clone_stands_in_the_same_state_and_goes_its_own_way(env):
    actions, _ = batch_of(env, 6)
    env.reset(seed=8)
    env.step(actions[0])
    here = env.get_state()
    other = env.clone()
    assert type(other) is type(env)
    assert_same(other.get_state(), here)
    other.step(actions[1])
    assert_same(env.get_state(), here)
    assert_same(env.step(actions[2], here, return_state=True), other.step(actions[2], here))
    if isinstance(env, plangym_like.ParallelEnv):
        assert (other.n_workers, other.isolate) == (env.n_workers, env.isolate)
    other.close()
    assert_same(env.step_batch(actions, here), env.step_batch(actions, here))


def test_a_clone_keeps_what_it_was_built_with_but_for_changes(new_env):
    env = new_env("Pendulum-v1", frameskip=2, autoreset=False, remove_time_limit=False, g=9.0)
    env.reset(seed=0)
    same = env.clone()
    assert same.frameskip == 2 and same.autoreset is False
    assert same.gym_env.unwrapped.g == 9.0
    assert "TimeLimit" in same.simulator.wrapper_names()
    changed = env.clone(g=5.0, autoreset=True)
    assert changed.gym_env.unwrapped.g == 5.0 and changed.autoreset is True
    assert changed.frameskip == 2
    with pytest.raises(StateError):
        changed.set_state(env.get_state())
    for other in (same, changed):
        other.close()


def test_an_env_that_is_not_set_up_can_be_pickled(backend):
    env = plangym_like.make(
        "CartPole-v1", delay_setup=True, frameskip=2, autoreset=False, **BACKENDS[backend]
    )
    twin = pickle.loads(pickle.dumps(env))
    assert twin.autoreset is False
    assert_same(twin.reset(seed=0), env.reset(seed=0))
    states = np.stack([twin.get_state()] * 3)
    assert_same(twin.step_batch([0, 1, 0], states), env.step_batch([0, 1, 0], states))
    for live in (env, twin):
        with pytest.raises(TypeError, match="delay_setup=True"):
            pickle.dumps(live)
        live.close()


def test_a_delayed_env_is_set_up_by_its_first_use(backend):
    for use in (
        lambda env: env.observation_space,
        lambda env: env.reset(seed=0),
        lambda env: env.step(0),
        lambda env: env.step_batch([0, 1]),
        lambda env: env.state_nbytes,
        lambda env: env.get_image,
        lambda env: env.setup(),
    ):
        env = plangym_like.make("CartPole-v1", delay_setup=True, **BACKENDS[backend])
        use(env)
        env.setup()
        assert len(env.step_batch([0, 1, 0]).rewards) == 3
        env.close()


# Pictures and kinds of observation

DRAWN = {"render_mode": "rgb_array", "return_image": True}


@pytest.mark.parametrize("name", ["ALE/Breakout-v5", "CartPole-v1"])
def test_pictures_show_the_current_state(shared_env, name):
    env = shared_env(name, **DRAWN)
    env.reset(seed=0)
    reference = gymnasium.make(
        name, render_mode="rgb_array", **({"repeat_action_probability": 0} if "ALE" in name else {})
    )
    reference.reset(seed=0)
    pictures, states = [], []
    for index in range(12):
        action = index // 3 % env.action_space.n
        reference.step(action)
        env.step(action)
        pictures.append(reference.render())
        states.append(env.get_state())
        assert_same(env.get_image(), pictures[-1], f"picture {index}")
    assert len({picture.tobytes() for picture in pictures}) > 3
    assert env.img_shape == pictures[0].shape
    for index in (4, 0, 11, 4):
        env.set_state(states[index])
        assert_same(env.get_image(), pictures[index], f"picture {index}, restored")
        env.step_batch([0, 1], np.stack(states[:2]))
        assert_same(env.get_image(), pictures[index], f"picture {index}, after a batch")
        assert_same(env.get_state(), states[index])


def test_looking_changes_nothing(shared_env):
    env = shared_env(ATARI[0], **ATARI[1])
    actions, states = batch_of(env, 4)
    for action, state in zip(actions, states, strict=True):
        expected = env.step(action, state)
        env.set_state(state)
        assert env.get_image().shape == (210, 160, 3)
        assert_same(env.get_state(), state)
        assert_same(env.step(action, return_state=True), expected)


@pytest.mark.parametrize("name", ["ALE/Breakout-v5", "CartPole-v1"])
def test_infos_hold_pictures_where_asked_for(shared_env, name):
    env = shared_env(name, **DRAWN)
    first = env.reset(seed=0)
    assert_same(first.info["rgb"], env.get_image())
    result = env.step_batch([0, 1, 1, 0], first.state, dt=[1, 2, 3, 4])
    assert result.infos["rgb"].shape == (4, *env.img_shape)
    for index, (action, dt) in enumerate([(0, 1), (1, 2), (1, 3), (0, 4)]):
        step = env.step(action, first.state, dt=dt)
        assert_same(result.infos[index]["rgb"], step.info["rgb"], f"picture {index}")
        assert_same(step.info["rgb"], env.get_image())


def test_pictures_need_a_renderer(backend):
    with pytest.raises(InputError, match="render_mode='rgb_array'"):
        plangym_like.make("CartPole-v1", return_image=True, **BACKENDS[backend])
    env = plangym_like.make("CartPole-v1", **BACKENDS[backend])
    with pytest.raises(InputError, match="render_mode='rgb_array'"):
        env.get_image()
    env.close()


@pytest.mark.parametrize(
    ("name", "obs_type", "shape"),
    [
        ("CartPole-v1", "coords", (4,)),
        ("CartPole-v1", "rgb", (400, 600, 3)),
        ("CartPole-v1", "grayscale", (400, 600)),
        ("ALE/Breakout-v5", "coords", (210, 160, 3)),
        ("ALE/Breakout-v5", "rgb", (210, 160, 3)),
        ("ALE/Breakout-v5", "grayscale", (210, 160)),
        ("ALE/Breakout-v5", "ram", (128,)),
    ],
)
def test_kinds_of_observation(new_env, name, obs_type, shape):
    env = new_env(name, obs_type=obs_type)
    assert env.observation_space.shape == env.obs_shape == shape
    obs = env.reset(seed=0).obs
    assert obs.shape == shape and obs in env.observation_space
    states = reached(env, 4)
    batch = env.step_batch([0, 1, 1, 0], states)
    assert batch.obs.shape == (4, *shape) and batch.obs.dtype == env.observation_space.dtype
    for index, action in enumerate([0, 1, 1, 0]):
        assert_same(batch.obs[index], env.step(action, states[index]).obs)
    if obs_type == "rgb":
        assert_same(batch.obs[3], env.get_image())


@pytest.mark.parametrize(("name", "shape"), [("CartPole-v1", (4,)), (ATARI[0], (210, 160, 3))])
def test_coords_are_what_the_id_registers(name, shape):
    with plangym_like.make(name, obs_type="coords") as env, plangym_like.make(name) as plain:
        assert env.observation_space == plain.observation_space
        assert env.observation_space.shape == shape
        assert_same(env.reset(seed=3), plain.reset(seed=3))


def test_unknown_kinds_of_observation_are_refused(backend):
    with pytest.raises(InputError, match="obs_type"):
        plangym_like.make("CartPole-v1", obs_type="ram", **BACKENDS[backend])
    with pytest.raises(InputError, match="obs_type"):
        plangym_like.make("ALE/Pong-v5", obs_type="smell", **BACKENDS[backend])


# Wrappers


def test_wrappers_with_and_without_arguments_live_in_the_state(new_env):
    env = new_env(
        "CartPole-v1",
        wrappers=[
            Scaled,
            (Scaled, {"scale": 5.0}),
            (FrameStackObservation, {"stack_size": 3}),
            (ClipReward, (-1.0, 6.0)),
        ],
    )
    assert env.observation_space.shape == (3, 4)
    states = reached(env, 8)
    batch = env.step_batch(np.arange(8) % 2, states)
    assert (batch.rewards == 6).all()
    steps = [env.view_state(state)["Scaled.steps"] for state in states]
    assert batch.infos["steps"].tolist() == [count + 1 for count in steps]
    for index in (5, 1, 7):
        assert_same(env.step(index % 2, states[index]).obs, batch.obs[index])
    assert_same(env.step_batch(np.arange(8)[::-1] % 2, states[::-1]).obs[::-1], batch.obs)


def test_a_wrapped_episode_is_gymnasiums(new_env):
    env = new_env(
        "CartPole-v1",
        remove_time_limit=False,
        wrappers=[TimeAwareObservation, (FrameStackObservation, {"stack_size": 2})],
    )
    reference = FrameStackObservation(TimeAwareObservation(gymnasium.make("CartPole-v1")), 2)
    assert_same(env.reset(seed=0).obs, reference.reset(seed=0)[0])
    for index in range(60):
        obs, reward, terminated, truncated, _ = reference.step(index % 2)
        step = env.step(index % 2)
        assert_same((step.obs, *step[1:4]), (obs, float(reward), terminated, truncated))
        if terminated:
            assert_same(env.get_state(), env.get_state())
            reference.reset()


def test_states_under_other_wrappers_are_of_another_environment(new_env):
    one = new_env("CartPole-v1", wrappers=[Scaled])
    other = new_env("CartPole-v1", wrappers=[(Scaled, {"scale": 3.0})])
    with pytest.raises(StateError):
        other.set_state(one.reset(seed=0).state)


# Names


@pytest.mark.parametrize(
    ("name", "error", "near"),
    [
        ("CartPol-v1", gymnasium.error.NameNotFound, "CartPole-v1"),
        ("CartPole-v9", gymnasium.error.VersionNotFound, "CartPole-v1"),
        ("ALE/MsPackman-v5", gymnasium.error.NameNotFound, "ALE/MsPacman-v5"),
        ("MsPacmann-v0", gymnasium.error.NameNotFound, "MsPacman-v0"),
        ("AEL/MsPacman-v5", gymnasium.error.NamespaceNotFound, "ALE/MsPacman-v5"),
        ("Nothing Like It", gymnasium.error.Error, "Nothing Like It"),
    ],
)
def test_unknown_names_are_what_gymnasium_raises_with_near_matches(backend, name, error, near):
    with pytest.raises(error, match=re.escape(near)) as caught:
        plangym_like.make(name, **BACKENDS[backend])
    assert type(caught.value).__module__.startswith("gymnasium")


def test_a_name_is_an_id_or_a_callable(backend):
    with pytest.raises(InputError, match="callable"):
        plangym_like.make(3, **BACKENDS[backend])


@pytest.mark.parametrize("n_workers", [0, -1, 1.5, "2", True])
def test_lanes_are_counted_in_whole_numbers(n_workers):
    with pytest.raises(InputError, match="n_workers"):
        plangym_like.make("CartPole-v1", n_workers=n_workers)


@pytest.mark.parametrize("frameskip", [0, -1, 1.5, "2", True])
@pytest.mark.parametrize("name", ["CartPole-v1", "ALE/Pong-v5"])
def test_frames_are_counted_in_whole_numbers(name, frameskip):
    with pytest.raises(InputError, match="frameskip"):
        plangym_like.make(name, frameskip=frameskip)


def test_misspelled_attributes_are_attribute_errors(env):
    with pytest.raises(AttributeError, match="step_bacth"):
        env.step_bacth  # noqa: B018
    assert not hasattr(env, "_nothing")
    assert not hasattr(env, "nothing")


def test_attributes_of_the_environment_show_through(shared_env):
    env = shared_env("CartPole-v1")
    assert env.gravity == 9.8
    assert env.unwrapped is env
    assert env.name == "CartPole-v1"
    assert env.exactness == "exact"
    assert shared_env(ATARI[0], **ATARI[1]).get_action_meanings()[0] == "NOOP"
    assert shared_env(ATARI[0], **ATARI[1]).get_ram().shape == (128,)


# The end


def test_results_outlive_the_env(backend):
    env = make_on(backend, "CartPole-v1")
    actions, states = batch_of(env, 50)
    result = env.step_batch(actions, states)
    before = content(tuple(result))
    env.close()
    assert content(tuple(result)) == before
    result.states[:] = 0
    env.close()


def test_nothing_works_after_close_and_all_say_so(backend):
    env = make_on(backend, "CartPole-v1")
    state = env.reset(seed=0).state
    env.close()
    uses = {
        "reset": lambda: env.reset(seed=0),
        "step": lambda: env.step(0),
        "step from a state": lambda: env.step(0, state),
        "step_batch": lambda: env.step_batch([0, 1], state),
        "step_batch from here": lambda: env.step_batch([0, 1]),
        "rollout_batch": lambda: env.rollout_batch([[0, 1]], state),
        "get_state": lambda: env.get_state(),
        "set_state": lambda: env.set_state(state),
        "view_state": lambda: env.view_state(state),
        "make_state": lambda: env.make_state(),
        "get_image": lambda: env.get_image(),
        "sample_action": lambda: env.sample_action(),
        "action_space": lambda: env.action_space,
        "state_nbytes": lambda: env.state_nbytes,
        "setup": lambda: env.setup(),
    }
    for use in uses.values():
        with pytest.raises(ClosedError, match="CartPole-v1.* closed"):
            use()
    with pytest.raises(AttributeError):
        env.no_such_thing  # noqa: B018
    env.close()


def test_an_env_closes_itself_at_the_end_of_its_block(backend):
    with plangym_like.make("CartPole-v1", **BACKENDS[backend]) as env:
        env.step_batch([0, 1])
    with pytest.raises(ClosedError):
        env.step_batch([0, 1])


def test_an_env_closed_before_it_was_set_up(backend):
    env = plangym_like.make("CartPole-v1", delay_setup=True, **BACKENDS[backend])
    env.close()
    env.close()
    for use in (env.setup, lambda: env.reset(seed=0), lambda: env.step_batch([0])):
        with pytest.raises(ClosedError):
            use()


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


def test_an_empty_rollout_gives_empty_arrays(env):
    states = reached(env, 2)
    if isinstance(env.action_space, gymnasium.spaces.Dict):
        actions: Any = []
    else:
        actions = np.empty((0, 5, *env.action_shape), env.action_space.dtype)
    result = env.rollout_batch(actions, states[:0], return_observations=True)
    assert type(result) is Rollout
    assert result.states.shape == (0, env.state_nbytes)
    if len(np.shape(actions)) > 1:
        assert result.rewards.shape == result.terminateds.shape == (0, 5)
        assert result.observations.shape == (0, 5, *env.obs_shape)


# Errors of an environment


def test_env_class_is_any_callable_that_returns_a_plan_env():
    env = plangym_like.ParallelEnv(
        lambda name, **kwargs: ClassicControlEnv(name, **kwargs), "CartPole-v1", n_workers=2
    )
    reference = plangym_like.make("CartPole-v1")
    states = reached(reference, 20)
    actions = np.arange(20) % 2
    assert_same(
        tuple(env.make_transitions(actions, states)), tuple(reference.step_batch(actions, states))
    )
    env.sync_states(states[4])
    assert_same(env.get_state(), states[4])
    env.close()


def test_actions_are_checked_before_the_state_moves(env):
    state = env.reset(seed=0).state
    with pytest.raises(ActionError):
        env.step("left")
    with pytest.raises(InputError):
        env.step(sampler(env, 0).sample(), dt=0)
    assert_same(env.get_state(), state)


def test_make_on_waits_for_the_lanes(backend):
    env = make_on(backend, "CartPole-v1")
    if backend in ("parallel", "isolated"):
        assert all(lane.ready for lane in env.batch_env.lanes)
    env.close()
