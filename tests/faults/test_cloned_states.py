"""A state from outside is tried in a worker before an isolated clone takes it over."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from playground import CounterEnv, CounterSimulator, kill_itself

from plangym_like.constructors import ParallelEnv
from plangym_like.errors import PoisonInputError
from plangym_like.states.rows import Row

BAD = 666


class FragileSimulator(CounterSimulator):
    """A counter that one state crashes, in every process but its owner's."""

    checksum = True

    def __init__(self, label: str = "fragile", *, owner: int = 0, **kwargs: Any) -> None:
        super().__init__(label, **kwargs)
        self._owner_pid = owner

    def write(self, payload: Row) -> None:
        super().write(payload)
        if int(self._words[0]) == BAD and os.getpid() != self._owner_pid:
            kill_itself(0)


class FragileEnv(CounterEnv):
    """Plans over a `FragileSimulator`."""

    simulator_class = FragileSimulator


@pytest.mark.full
def test_a_clone_does_not_take_over_what_crashes_its_workers() -> None:
    with ParallelEnv(FragileEnv, "toy", n_workers=1, owner=os.getpid()) as env:
        good, bad = env.reset(seed=1).state, env.reset(seed=BAD).state
        env.set_state(bad)
        with pytest.raises(PoisonInputError):
            env.clone(isolate=True)
        env.set_state(good)
        with env.clone(isolate=True) as other:
            assert np.array_equal(other.get_state(), good)
            other.step(1)
            with other.clone() as third:
                assert np.array_equal(third.get_state(), other.get_state())


def test_a_clone_takes_over_the_environments_own_state_at_once() -> None:
    with ParallelEnv(FragileEnv, "toy", n_workers=1, isolate=True, owner=os.getpid()) as env:
        state = env.reset(seed=1).state
        with env.clone() as other:
            assert np.array_equal(other.get_state(), state)
            assert other.stats.rows == 0
