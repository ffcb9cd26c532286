"""Batches in worker processes and on a Ray cluster, with plangym's interface."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers import TransformReward

import plangym_like.compat.plangym as plangym
from plangym_like.compat.plangym.control import ClassicControl
from plangym_like.compat.plangym.vectorization import ParallelEnv
from plangym_like.errors import InputError, WorkerDiedError


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    made = plangym.make("CartPole-v1", n_workers=2, frameskip=2)
    yield made
    made.close()


def test_what_it_is(env: Any) -> None:
    assert isinstance(env, ParallelEnv) and isinstance(env, plangym.PlangymEnv)
    assert type(env.plan_env) is ClassicControl and env.n_workers == 2
    assert (env.name, env.frameskip, env.obs_shape, env.action_shape) == (
        "CartPole-v1",
        2,
        (4,),
        (),
    )
    assert env.observation_space == env.plan_env.observation_space
    assert env.gym_env.unwrapped.gravity == 9.8
    assert str(env) == repr(env)
    with pytest.raises(AttributeError, match="nothing"):
        _ = env.nothing
    with pytest.raises(TypeError, match="clone"):
        env.__getstate__()
    clone = env.clone(n_workers=3, delay_setup=True)
    assert (clone.n_workers, clone.frameskip, clone.plan_env._gym_env) == (3, 2, None)


def test_batches_of_states_are_those_of_one_process(env: Any) -> None:
    state, *_ = env.reset()
    actions = [0, 1] * 20
    data = env.step_batch(actions, states=[state] * 40, dt=2)
    assert [type(part) for part in data] == [list] * 6
    single = ClassicControl("CartPole-v1", frameskip=2)
    alone = single.step_batch(actions, [state] * 40, dt=2)
    for mine, theirs in zip(data, alone, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(mine, theirs, strict=True))
    assert len(env.step_batch([0, 1], [state] * 2, return_state=False)) == 5


def test_workers_without_states_go_on_from_their_own(env: Any) -> None:
    state, *_ = env.reset()
    single = ClassicControl("CartPole-v1", frameskip=2)
    first = env.step_batch([0, 1])
    assert len(first) == 5
    second = env.step_batch([None, 1][1:] * 2, [None] * 2, return_state=True)
    for index, action in enumerate((0, 1)):
        single.set_state(state)
        assert np.array_equal(first[0][index], single.step(action)[0])
        after, obs, *_ = single.step(1, return_state=True)
        assert np.array_equal(second[0][index], after) and np.array_equal(second[1][index], obs)
    env.set_state(state)
    assert np.array_equal(env.step_batch([0, 1])[0], first[0])
    env.sync_states(state)
    assert np.array_equal(env.step_batch([0, 1])[0], first[0])


def test_wrappers_are_in_workers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = ParallelEnv(ClassicControl, name="CartPole-v1", n_workers=2, render_mode="human")
    env.apply_wrappers([(TransformReward, {"func": lambda reward: 7.0})])
    env.reset()
    assert env.step_batch([0, 1], [env.get_state()] * 2)[2] == [7.0, 7.0]
    assert env.step_batch([0, 1])[1] == [7.0, 7.0]
    env.close()


def test_a_dt_of_another_length_is_refused(env: Any) -> None:
    state, *_ = env.reset()
    for states in (None, [state] * 2):
        with pytest.raises(InputError, match=r"dt must be one number or 2, one for each row, got"):
            env.step_batch([0, 1], states, dt=[1, 2, 3])


def test_ray_makes_a_ray_env() -> None:
    from plangym_like.compat.plangym.vectorization import HostedEnv, RayEnv

    env = plangym.make("CartPole-v1", ray=True, n_workers=2, delay_setup=True)
    assert isinstance(env, RayEnv) and env.plan_env._execution == {"n_workers": 2, "ray": True}
    hosted = HostedEnv(env.create_env_callable())
    hosted.setup()
    state, obs, _ = hosted.reset()
    assert obs.shape == (4,)
    assert hosted.step_batch([0, 1], [state] * 2)[2] == [1.0, 1.0]
    hosted.set_state(state)
    assert len(hosted.step(0, return_state=True)) == 6
    assert hosted.get_state().shape == state.shape


def test_workers_that_are_made_late_begin_where_the_others_would() -> None:
    env = plangym.make("CartPole-v1", n_workers=2)
    try:
        state, *_ = env.reset()
        env.step(1)  # of this process alone
        late = env.step_batch([0, 1], return_state=True)
        env.set_state(state)
        env.step(1)
        again = env.step_batch([0, 1], return_state=True)
        given = env.step_batch([0, 1], [state, state])
        assert np.array_equal(late[0], again[0]) and np.array_equal(again[0], given[0])
    finally:
        env.close()


def test_reset_and_set_state_replace_workers_that_died() -> None:
    env = plangym.make("CartPole-v1", n_workers=2)
    try:
        state, *_ = env.reset()
        env.step_batch([0, 1])
        for begin in (env.reset, lambda: env.set_state(state)):
            os.kill(env.workers[0].pid, signal.SIGKILL)
            with pytest.raises(WorkerDiedError):
                env.step_batch([0, 1])
            begin()
            mine = env.get_state()
            found, given = env.step_batch([0, 1], return_state=True), [mine, mine]
            assert np.array_equal(found[0], env.step_batch([0, 1], given)[0])
    finally:
        env.close()


class Doubled(ClassicControl):
    """Its batches are stepped by workers."""

    def process_obs(self, obs: Any, **_: Any) -> Any:
        return 2 * obs


def test_there_is_one_state_for_each_action() -> None:
    env = ParallelEnv(Doubled, "CartPole-v1", n_workers=2)
    try:
        state, *_ = env.reset()
        with pytest.raises(InputError, match="got 1 states and 2 actions"):
            env.step_batch([0, 1], [state])
        with pytest.raises(InputError, match="some are None"):
            env.step_batch([0, 1], [None, state])
        assert len(env.step_batch([0, 1], [state, state])[0]) == 2
    finally:
        env.close()


def test_frameskip_and_autoreset_may_be_changed_in_workers_too() -> None:
    env: Any = plangym.make("CartPole-v1", n_workers=2)
    single: Any = ClassicControl("CartPole-v1", frameskip=4)
    try:
        state, *_ = env.reset()
        env.step_batch([0, 1])  # in workers, which begin in the same state
        env.set_state(state)
        env.frameskip, env.autoreset = 4, False
        assert (env.frameskip, env.plan_env.frameskip, env.plan_env.autoreset) == (4, 4, False)
        expected = single.step_batch([0, 1], [state] * 2)
        for found in (env.step_batch([0, 1], [state] * 2), env.step_batch([0, 1])):
            assert found[-4] == expected[-4] == [4.0, 4.0]
        clone = env.clone(delay_setup=True)
        assert (clone.frameskip, clone.autoreset) == (4, False)
    finally:
        env.close()
        single.close()
