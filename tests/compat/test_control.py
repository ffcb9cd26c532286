"""The layer's environments of control tasks."""

from typing import Any

import numpy as np
import pytest

import plangym_like.compat.plangym as plangym


def test_dm_control(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dm_control", reason="dm_control is not installed")
    from plangym_like.compat.plangym import core
    from plangym_like.compat.plangym.control import DMControlEnv

    env = plangym.make(domain_name="cartpole", task_name="swingup", frameskip=2)
    assert isinstance(env, DMControlEnv)
    assert (env.name, env.domain_name, env.task_name) == ("cartpole-swingup", "cartpole", "swingup")
    assert plangym.make("cartpole", task_name="swingup", delay_setup=True).name == env.name
    state, obs, _ = env.reset()
    assert obs.shape == env.obs_shape == (5,)
    assert env.action_spec().shape == env.action_shape == (1,)
    env.set_state(state)
    assert env.physics.data.time == 0.0
    actions = [env.sample_action() for _ in range(3)]
    batch = env.step_batch(actions, [state] * 3)
    assert np.array_equal(batch[0][2], env.step(actions[2], state)[0])
    # The suite's time limit of 1,000 steps is an end, as in plangym.
    *_, terminal, truncated, info = env.step(actions[0], state, dt=600)
    assert (terminal, truncated, info["n_step"]) == (True, False, 1000)
    with pytest.raises(ValueError, match="a task is"):
        DMControlEnv("cartpole")
    shown: list[Any] = []
    monkeypatch.setattr(core, "show_image", lambda image, title: shown.append(image))
    assert env.render(mode="rgb_array").shape == (240, 320, 3)
    assert env.render(mode="human") is True and len(env.viewer) == 1
    env.show_game(sleep=0)
    assert len(shown) == 1


def test_mujoco() -> None:
    pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    env = plangym.make("Hopper-v5", frameskip=2)
    state, obs, _ = env.reset()
    assert obs.shape == (11,) and env.gym_env.unwrapped.model.nq == 6
    later = env.step(env.sample_action(), state)[0]
    env.set_state(later)
    assert np.isclose(env.gym_env.unwrapped.data.time, 2 * 0.008)
    assert env.remove_time_limit and "TimeLimit" not in str(env.gym_env)
    assert env.get_image().shape == (480, 480, 3)
    with pytest.raises(ValueError, match="Invalid render_mode"):
        plangym.make("Hopper-v5", render_mode="ansi")


def test_fast_lunar_lander(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("Box2D", reason="Box2D is not installed")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    from plangym_like.compat.plangym.control.lunar_lander import FastGymLunarLander, LunarLander

    still = LunarLander(deterministic=True, autoreset=False)
    state, first, _ = still.reset()
    assert np.array_equal(still.reset()[1], first)
    # Without a push the lander falls straight down, and its engines do not scatter.
    for action in (0, 2, 2):
        obs = still.step(action)[0]
    assert np.allclose(obs[[0, 2, 4]], 0.0, atol=1e-5)
    twin = still.clone()
    assert twin.deterministic and np.array_equal(twin.step(2, state)[1], still.step(2, state)[1])
    assert twin.step_batch([0, 2], [state] * 2)[2][1] == still.step(2, state)[2]

    env = plangym.make("FastLunarLander-v0", continuous=True)
    assert isinstance(env, LunarLander) and env.continuous
    env.reset()
    assert env.step(np.array([1.0, 1.0]))[0].shape == (8,)
    assert env.get_image().shape == (400, 600, 3)
    bare = FastGymLunarLander()
    bare.reset(seed=0)
    ended = False
    while not ended:
        *_, ended, truncated, _ = bare.step(2)
        assert not truncated
    assert bare.particles == []
