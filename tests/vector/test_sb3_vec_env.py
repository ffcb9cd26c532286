"""Stable-Baselines3 learns the same on our environments as on its own."""

from __future__ import annotations

import gc
import logging
import os
import signal
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import VectorEnv
from small_envs import Nested
from usual import first_of

from plangym_like import make_vec
from plangym_like.errors import ClosedError

sb3 = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")
vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
# What its own code does with torch and NumPy.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.parametrize("count", [2, 5])
def test_steps_are_those_of_its_own(count: int) -> None:
    theirs = vec_env.DummyVecEnv(
        [partial(gymnasium.make, "CartPole-v1", max_episode_steps=15)] * count
    )
    ours = make_vec("CartPole-v1", count, max_episode_steps=15).as_sb3()
    for envs in (theirs, ours):
        envs.seed(4)
    np.testing.assert_array_equal(theirs.reset(), ours.reset())
    rng = np.random.default_rng(0)
    cut = 0
    for _ in range(120):
        actions = rng.integers(0, 2, count)
        one, other = theirs.step(actions), ours.step(actions)
        for their_part, our_part in zip(one[:3], other[:3], strict=True):
            np.testing.assert_array_equal(their_part, our_part, strict=True)
        for their_info, our_info in zip(one[3], other[3], strict=True):
            assert their_info.keys() == our_info.keys()
            np.testing.assert_equal(their_info, our_info)
        cut += sum(info["TimeLimit.truncated"] for info in other[3])
    assert cut


def test_they_stay_open_where_gymnasium_closes_what_is_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As Gymnasium 1.1 and 1.2 define it.
    monkeypatch.setattr(VectorEnv, "__del__", lambda self: self.close(), raising=False)
    ours = make_vec("CartPole-v1", 2).as_sb3()
    gc.collect()
    assert ours.reset().shape == (2, 4)
    assert ours.step(np.array([0, 1]))[0].shape == (2, 4)


def test_dict_spaces() -> None:
    theirs, ours = vec_env.DummyVecEnv([Flat] * 2), make_vec(Flat, 2).as_sb3()
    for envs in (theirs, ours):
        envs.seed(1)
    one, other = theirs.reset(), ours.reset()
    assert one.keys() == other.keys()
    for key in one:
        np.testing.assert_array_equal(one[key], other[key], strict=True)


class Flat(Nested):
    """Without a tuple inside of the dict, which Stable-Baselines3 does not take."""

    observation_space = gymnasium.spaces.Dict(place=Nested.observation_space["place"])

    def _observe(self) -> Any:
        return {"place": self.place.copy()}


@pytest.mark.parametrize("algorithm", first_of(["PPO", "DQN"]))
def test_what_is_learned_is_the_same(algorithm: str) -> None:
    def weights(envs: Any) -> list[bytes]:
        more: dict[str, Any]
        more = {"n_steps": 32, "n_epochs": 2} if algorithm == "PPO" else {"learning_starts": 50}
        model = getattr(sb3, algorithm)(
            "MlpPolicy", envs, seed=3, device="cpu", batch_size=32, **more
        )
        model.learn(300)
        envs.close()
        return [value.numpy().tobytes() for value in model.policy.state_dict().values()]

    theirs = weights(vec_env.DummyVecEnv([partial(gymnasium.make, "CartPole-v1")] * 4))
    assert weights(make_vec("CartPole-v1", 4).as_sb3()) == theirs


def test_attributes_and_states() -> None:
    envs = make_vec("CartPole-v1", 5).as_sb3()
    envs.seed(2)
    envs.reset()
    assert envs.get_attr("gravity", [1, 2]) == [9.8, 9.8]
    envs.set_attr("gravity", 1.0, 3)
    assert envs.get_attr("gravity") == [9.8, 9.8, 9.8, 1.0, 9.8]
    assert envs.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [True] * 5
    states = envs.get_states()
    first = envs.step(np.ones(5, int))
    envs.set_states(states)
    np.testing.assert_array_equal(first[0], envs.step(np.ones(5, int))[0])
    envs.set_states(states[0], [1, 4])
    assert (envs.get_states([1, 4]) == states[0]).all()
    envs.close()
    envs.close()
    with pytest.raises(ClosedError):
        envs.reset()


@pytest.mark.usefixtures("always_in_processes")
def test_wrappers_of_environments_in_other_processes() -> None:
    limits = [5, -1, -1, 5]
    sources = [partial(gymnasium.make, "CartPole-v1", max_episode_steps=limit) for limit in limits]
    envs = make_vec(sources, n_workers=2).as_sb3()
    has_limit = [limit > 0 for limit in limits]
    assert envs.env_is_wrapped(gymnasium.wrappers.TimeLimit) == has_limit
    assert envs.env_is_wrapped(gymnasium.wrappers.TimeLimit, [3, 1]) == [True, False]
    envs.close()


def test_the_first_reset_comes_first() -> None:
    envs = make_vec("CartPole-v1", 5).as_sb3()
    calls = (
        lambda: envs.step(np.zeros(5, int)),
        envs.get_states,
        lambda: envs.set_states(np.zeros((5, 8), np.uint8)),
    )
    for call in calls:
        with pytest.raises(ResetNeeded):
            call()
    envs.close()


@pytest.mark.usefixtures("always_in_processes")
def test_attributes_outlive_a_process() -> None:
    vectorised = make_vec("CartPole-v1", 4, 2)
    envs = vectorised.as_sb3()
    envs.reset()
    envs.set_attr("gravity", 1.0)
    os.kill(*vectorised.pids, signal.SIGKILL)
    envs.step(np.zeros(4, int))
    assert envs.get_attr("gravity") == [1.0] * 4
    envs.close()


@pytest.mark.usefixtures("always_in_processes")
@pytest.mark.parametrize("rollouts", [3, pytest.param(80, marks=pytest.mark.full)])
def test_learning_goes_on_when_processes_are_killed(
    rollouts: int, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from stable_baselines3.common.callbacks import BaseCallback

    class Killer(BaseCallback):
        def _on_rollout_start(self) -> None:
            os.kill(*envs.pids, signal.SIGKILL)

        def _on_step(self) -> bool:
            return True

    envs = make_vec("CartPole-v1", 8, 2)
    adapted = envs.as_sb3()
    model = sb3.PPO("MlpPolicy", adapted, n_steps=64, batch_size=128, seed=1, device="cpu")
    model.learn(rollouts * 8 * 64, callback=Killer())
    assert envs.stats.deaths == envs.stats.restarts == rollouts
    assert envs.stats.lanes_ended == 4 * rollouts
    # Nothing is printed, and what is logged is a warning of each death.
    assert tuple(capfd.readouterr()) == ("", "")
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * rollouts
    adapted.close()
    if rollouts > 50:
        alone = make_vec("CartPole-v1", 8).as_sb3()
        from stable_baselines3.common.evaluation import evaluate_policy

        returns, _ = evaluate_policy(model, alone, 20, warn=False)
        assert returns > 195  # what Gymnasium counted as solved
        alone.close()
