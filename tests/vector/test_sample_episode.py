"""Lanes in other processes are compared with those of the caller; environments are tried once."""

from __future__ import annotations

import collections
import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

import plangym_like
from plangym_like.errors import DifferentWorkerError, WorkerStartError
from plangym_like.vector import make_vec, process_lanes
from plangym_like.vector.make_lanes import compare_sample, lanes_from, sample_episode, sample_of


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    original = HopperEnv._get_rew

    def doubled(env: Any, *args: Any) -> Any:
        reward, parts = original(env, *args)
        return 2 * reward, parts

    monkeypatch.setattr(HopperEnv, "_get_rew", doubled)


def _gymnasiums() -> Any:
    return gymnasium.make("Hopper-v5")


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize(
    "source", ["Hopper-v5", _gymnasiums, [_gymnasiums, lambda: gymnasium.make("Hopper-v5")] * 3]
)
def test_a_patched_method_is_an_error_that_names_the_cause(source: Any) -> None:
    with pytest.raises(DifferentWorkerError, match="changed an imported module"):
        plangym_like.make_vec(source, 6, n_workers=2)


@pytest.mark.usefixtures("patched")
def test_forked_processes_have_the_changes() -> None:
    rewards = []
    for n_workers in (1, 2):
        envs = plangym_like.make_vec("Hopper-v5", 6, n_workers=n_workers, start_method="fork")
        envs.reset(seed=[0] * 6)
        rewards.append(envs.step(np.zeros((6, 3)))[1])
        envs.close()
    assert len(set(rewards[1])) == 1
    assert (rewards[0] == rewards[1]).all()


class Slow(gymnasium.Env[Any, Any]):
    """Steps take longer than messages; counts its resets and steps in this process."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    counts: ClassVar[collections.Counter[str]] = collections.Counter()

    def __init__(self) -> None:
        self.total = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.counts["resets"] += 1
        self.total = 0.0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.counts["steps"] += 1
        time.sleep(1e-3)
        self.total += 1
        return np.array([self.total]), 1.0, False, False, {}


class Varied(Slow):
    """Draws a parameter without a seed, so no two environments give the same results."""

    def __init__(self, how: str) -> None:
        super().__init__()
        drawn: dict[str, Callable[[], float]] = {
            "entropy": np.random.default_rng().random,
            "global": random.random,
            "clock": time.perf_counter,
        }
        self.change = drawn[how]()

    def step(self, action: Any) -> Any:
        obs, *outcome = super().step(action)
        return obs + self.change, *outcome


@pytest.mark.parametrize("how", ["entropy", "global", "clock"])
def test_environments_that_differ_anyway_are_no_error(how: str) -> None:
    envs = plangym_like.make_vec(partial(Varied, how), 4, n_workers=2)
    envs.reset(seed=0)
    assert envs.step(np.zeros(4, int))[0].shape == (4, 1)
    envs.close()


class FirstOfItsProcess(Slow):
    """The first environment that a process makes differs from later ones."""

    made: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(1)
        self.change = float(len(self.made) == 1)

    def step(self, action: Any) -> Any:
        obs, *outcome = super().step(action)
        return obs + self.change, *outcome


@pytest.mark.parametrize(
    ("source", "arguments"),
    [(FirstOfItsProcess, {}), ("FrozenLake-v1", {"desc": None, "vectorise": False})],
)
def test_environments_that_a_process_makes_later_are_compared(
    monkeypatch: pytest.MonkeyPatch, source: Any, arguments: dict[str, Any]
) -> None:
    monkeypatch.setattr(make_vec, "_MESSAGES_SECONDS", 0.0)
    envs = plangym_like.make_vec(source, 4, n_workers=2, **arguments)
    assert len(envs.pids) == 1
    envs.reset(seed=0)
    envs.step(np.zeros(4, int))
    envs.close()


class OneUse(Slow):
    """Cannot be used once it is closed, and counts its resets."""

    closed = False
    count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert not self.closed
        self.count += 1
        return super().reset(seed=seed)

    def close(self) -> None:
        self.closed = True


def test_environments_that_a_worker_was_given_are_not_used() -> None:
    given = OneUse()
    sample = sample_of(partial(gymnasium.Wrapper, given))
    expected = sample_episode(sample_of(partial(gymnasium.Wrapper, OneUse())))
    assert expected is None  # a second environment is the same object, which is closed
    expected = sample_episode(sample_of(OneUse))
    assert expected is not None
    compare_sample(sample, expected)
    assert (given.count, given.closed) == (0, False)


@pytest.mark.parametrize("snapshot", ["auto", "pickle", "replay"])
def test_environments_of_one_kind_are_tried_once(snapshot: str) -> None:
    make = partial(plangym_like.make, Slow, snapshot=snapshot)
    make().close()  # the first of its class is measured, to suggest `state_attributes`
    steps, notes = [], []
    for num_lanes in (1, 2, 8):
        Slow.counts.clear()
        lanes = lanes_from(make, num_lanes)
        steps.append(Slow.counts["steps"])
        notes.append({(env.snapshot, env.snapshot_note, env.exactness) for env in lanes.envs})
        obs = lanes.start(seeds=range(num_lanes))
        rows = lanes.get_states()
        lanes.set_states(rows)
        assert obs.shape == (num_lanes, 1)
        lanes.close()
    again = 0 if snapshot != "replay" else steps[1] - steps[0]
    assert steps[1:] == [steps[0] + again, steps[0] + 7 * again]
    assert again < steps[0] / 4
    assert len(set.union(*notes)) == 1


def test_make_vec_tries_environments_once() -> None:
    steps = []
    for num_envs, n_workers in ((2, 1), (8, 1), (8, 2)):
        Slow.counts.clear()
        envs = plangym_like.make_vec(partial(plangym_like.make, Slow), num_envs, n_workers)
        steps.append(Slow.counts["steps"])
        envs.reset(seed=0)
        envs.close()
    assert steps[1] == steps[0]
    assert steps[2] <= steps[0] + 30  # it is timed, and plays a short episode


def test_other_arguments_are_tried_separately() -> None:
    class Unsaved(Slow):
        def step(self, action: Any) -> Any:
            self.counts["unsaved"] += 1
            return super().step(action)

    lanes = [lanes_from(partial(plangym_like.make, kind), 2) for kind in (Slow, Unsaved)]
    assert Slow.counts["unsaved"] > 20
    for each in lanes:
        each.close()


class Sleeper(Slow):
    """Its constructor hangs in other processes than the one that defines it."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        while os.getpid() != pid:
            time.sleep(3600)


def test_a_constructor_that_hangs_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_lanes, "_START_SECONDS", 0.0)
    begun = time.monotonic()
    with pytest.raises(WorkerStartError, match="not ready after timeout=2 seconds"):
        plangym_like.make_vec(partial(Sleeper, os.getpid()), 2, n_workers=2, timeout=2)
    assert time.monotonic() - begun < 60


class Busy(Slow):
    """Its constructor takes longer than the timeout in other processes."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        if os.getpid() != pid:
            time.sleep(3)


def test_a_constructor_may_take_longer_than_the_timeout() -> None:
    envs = plangym_like.make_vec(partial(Busy, os.getpid()), 2, n_workers=2, timeout=1)
    assert (envs.num_envs, envs.stats.restarts) == (2, 0)
    envs.close()
