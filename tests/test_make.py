"""What `make` is given: names, numbers and wrappers."""

import re

import gymnasium
import numpy as np
import pytest
from comparing import assert_same, reached
from conftest import ATARI
from gymnasium.wrappers import ClipReward, FrameStackObservation, TimeAwareObservation
from small_envs import Scaled

import plangym_like
from plangym_like.errors import (
    InputError,
    StateError,
)

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
def test_unknown_names_are_what_gymnasium_raises_with_near_matches(name, error, near):
    with pytest.raises(error, match=re.escape(near)) as caught:
        plangym_like.make(name)
    assert type(caught.value).__module__.startswith("gymnasium")


def test_a_name_is_an_id_or_a_callable():
    with pytest.raises(InputError, match="callable"):
        plangym_like.make(3)


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
