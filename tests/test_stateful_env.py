"""States as data, copies, images and the end of an environment."""

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
import pytest
from backends import BACKENDS, in_workers_too, make_on
from comparing import assert_same, content, reached
from gymnasium.envs.classic_control import PendulumEnv
from suite import batch_of

import plangym_like
from plangym_like.envs.pickled import PickledSimulator
from plangym_like.errors import (
    ClosedError,
    InputError,
    StateError,
)

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
    other.close()
    assert_same(env.step_batch(actions, here), env.step_batch(actions, here))


@in_workers_too
def test_a_clone_keeps_what_it_was_built_with_but_for_changes(new_env):
    env = new_env("Pendulum-v1", frameskip=2, autoreset=False, remove_time_limit=False, g=9.0)
    env.reset(seed=0)
    same = env.clone()
    assert same.frameskip == 2 and same.autoreset is False
    assert (same.n_workers, same.isolate) == (env.n_workers, env.isolate)
    assert same.gym_env.unwrapped.g == 9.0
    assert isinstance(same.gym_env, gymnasium.wrappers.TimeLimit)
    changed = env.clone(g=5.0, autoreset=True)
    assert changed.gym_env.unwrapped.g == 5.0 and changed.autoreset is True
    assert changed.frameskip == 2
    with pytest.raises(StateError):
        changed.set_state(env.get_state())
    for other in (same, changed):
        other.close()


@in_workers_too
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


@in_workers_too
def test_a_delayed_env_is_set_up_by_its_first_use(backend):
    for use in (
        lambda env: env.observation_space,
        lambda env: env.step_batch([0, 1]),
        lambda env: env.setup(),
    ):
        env = plangym_like.make("CartPole-v1", delay_setup=True, **BACKENDS[backend])
        assert not hasattr(env, "nothing") and not hasattr(env, "gravity")
        with pytest.raises(AttributeError, match=r"'gravity'; .*after setup\(\)"):
            _ = env.gravity
        pickle.dumps(env)  # possible only before it is set up
        use(env)
        assert env.gravity == 9.8
        assert len(env.step_batch([0, 1, 0]).rewards) == 3
        env.close()


def test_a_factory_that_raises_an_attribute_error_is_called_once():
    calls = []

    def broken():
        calls.append(1)
        raise AttributeError("the factory's own")

    for use in (lambda env: env.observation_space, lambda env: env.reset(), lambda env: env.stats):
        env = plangym_like.PlanEnv(broken, name="broken", delay_setup=True)
        calls.clear()
        with pytest.raises(RuntimeError, match="broken could not be made: .*factory's own") as info:
            use(env)
        assert isinstance(info.value.__cause__, AttributeError)
        assert len(calls) == 1
        with pytest.raises(AttributeError, match="^the factory's own$"):
            env.setup()


def test_threads_that_use_a_delayed_env_first_make_it_once():
    made, barrier = [], threading.Barrier(4)

    def slow():
        made.append(PickledSimulator(PendulumEnv))
        time.sleep(0.05)  # the other threads come meanwhile
        return made[-1]

    def use(env):
        barrier.wait(60)
        return env.state_nbytes

    with plangym_like.PlanEnv(slow, delay_setup=True) as env, ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(use, [env] * 4))) == len(made) == 1


# Images and kinds of observation

DRAWN = {"render_mode": "rgb_array", "return_image": True}


@pytest.mark.parametrize("name", ["ALE/Breakout-v5", "CartPole-v1"])
def test_images_show_the_current_state(shared_env, name):
    env = shared_env(name, **DRAWN)
    env.reset(seed=0)
    reference = gymnasium.make(
        name, render_mode="rgb_array", **({"repeat_action_probability": 0} if "ALE" in name else {})
    )
    reference.reset(seed=0)
    images, states = [], []
    for index in range(12):
        action = index // 3 % env.action_space.n
        reference.step(action)
        env.step(action)
        images.append(reference.render())
        states.append(env.get_state())
        assert_same(env.get_image(), images[-1], f"image {index}")
    assert len({image.tobytes() for image in images}) > 3
    assert env.img_shape == images[0].shape
    for index in (4, 0, 11, 4):
        env.set_state(states[index])
        assert_same(env.get_image(), images[index], f"image {index}, restored")
        env.step_batch([0, 1], np.stack(states[:2]))
        assert_same(env.get_image(), images[index], f"image {index}, after a batch")
        assert_same(env.get_state(), states[index])


@pytest.mark.parametrize("name", ["ALE/Breakout-v5", "CartPole-v1"])
@in_workers_too
def test_infos_hold_images_where_asked_for(shared_env, name):
    env = shared_env(name, **DRAWN)
    first = env.reset(seed=0)
    assert_same(first.info["rgb"], env.get_image())
    result = env.step_batch([0, 1, 1, 0], first.state, dt=[1, 2, 3, 4])
    assert result.infos["rgb"].shape == (4, *env.img_shape)
    for index, (action, dt) in enumerate([(0, 1), (1, 2), (1, 3), (0, 4)]):
        step = env.step(action, first.state, dt=dt)
        assert_same(result.infos[index]["rgb"], step.info["rgb"], f"image {index}")
        assert_same(step.info["rgb"], env.get_image())


@pytest.mark.parametrize(
    ("name", "obs_type", "shape"),
    [
        ("CartPole-v1", "coords", (4,)),
        ("CartPole-v1", "rgb", (400, 600, 3)),
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


# The end


@in_workers_too
def test_results_outlive_the_env(backend):
    env = make_on(backend, "CartPole-v1")
    actions, states = batch_of(env, 50)
    result = env.step_batch(actions, states)
    before = content(tuple(result))
    env.close()
    assert content(tuple(result)) == before
    result.states[:] = 0
    env.close()


@pytest.mark.parametrize("backend", ["serial", "parallel", "isolated"], indirect=True)
def test_nothing_works_after_close_and_all_say_so(backend):
    env = make_on(backend, "CartPole-v1")
    state = env.reset(seed=0).state
    env.step_batch([0, 1], state)
    future, batches = env.step_batch([0, 1], state, blocking=False), env.stats.batches
    env.close()
    assert env.stats.batches == batches > 0
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
    if backend != "serial":  # in this process, the rows were stepped at once
        with pytest.raises(ClosedError, match="closed"):
            future()
    with pytest.raises(AttributeError):
        env.no_such_thing  # noqa: B018
    env.close()
    early = plangym_like.make("CartPole-v1", delay_setup=True, **BACKENDS[backend])
    early.close()
    with pytest.raises(ClosedError):
        early.reset(seed=0)


def test_a_simulator_is_not_shared_with_a_clone():
    env = plangym_like.PlanEnv(PickledSimulator(PendulumEnv))
    env.reset(seed=0)
    with pytest.raises(InputError, match="share the simulator"):
        env.clone()
    other = env.clone(simulator=lambda: PickledSimulator(PendulumEnv))
    before = env.get_state()
    other.step([1.0])
    assert np.array_equal(env.get_state(), before)
    other.close()
    env.close()
