"""What `make` is given: names, numbers and wrappers."""

import numpy as np
from backends import ATARI
from comparing import assert_same, reached
from gymnasium.wrappers import ClipReward, FrameStackObservation
from small_envs import Scaled

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


# Names


def test_attributes_of_the_environment_show_through(shared_env):
    env = shared_env("CartPole-v1")
    assert env.gravity == 9.8
    assert env.unwrapped is env
    assert env.name == "CartPole-v1"
    assert env.exactness == "exact"
    assert shared_env(ATARI[0], **ATARI[1]).get_action_meanings()[0] == "NOOP"
    assert shared_env(ATARI[0], **ATARI[1]).get_ram().shape == (128,)
