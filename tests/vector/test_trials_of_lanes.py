"""Environments of lanes are tried once; their constructors may take long."""

from __future__ import annotations

import collections
import os
import time
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

import plangym_like
from plangym_like.errors import WorkerStartError
from plangym_like.vector import process_lanes
from plangym_like.vector.make_lanes import lanes_from


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


class Sleeper(Slow):
    """Its constructor hangs in other processes than the one that defines it."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        while os.getpid() != pid:
            time.sleep(3600)


def test_a_constructor_that_hangs_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_lanes, "_START_SECONDS", 0.0)
    monkeypatch.setattr(process_lanes, "_START_FACTOR", 0.0)  # of the time that it takes here
    with pytest.raises(WorkerStartError, match=r"not ready after timeout=[\d.]+ seconds"):
        plangym_like.make_vec(partial(Sleeper, os.getpid()), 2, n_workers=2, timeout=0.2)


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
