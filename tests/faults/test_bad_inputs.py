"""Calls with any number of wrong arguments: the same outcome on every backend, nothing sent.

`tests/test_inputs.py` goes through the wrong arguments one by one, for environments of all kinds;
here they come in all combinations, while workers are being killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from comparing import content
from harm import Killer
from hypothesis import given, settings
from hypothesis import strategies as st
from playground import CounterEnv, sending

import plangym_like
from plangym_like.constructors import ParallelEnv
from plangym_like.errors import InputError, StateError

COUNT = 5
ACTIONS: list[Any] = [
    np.arange(COUNT), [0, 1, 0, 1, 1], 1, [], None, [2**70], [0.5] * COUNT, ["1"] * COUNT,
    [0, 1, -1, 0, 0], [np.nan] * COUNT, np.zeros((COUNT, 2), int), [True] * COUNT, [0, 1, 5000], {},
]  # fmt: skip
DT: list[Any] = [
    1, 3, [1, 2, 3, 1, 2], np.arange(1, 4), 0, -1, 1.5, None, "2", [1, 0, 1, 1, 1], [], 2**63,
]  # fmt: skip
SEEDS: list[Any] = [None, 7, np.arange(COUNT), [1, 2], -1, [0.5] * COUNT, "7", [[1] * COUNT]]
ON_ERROR: list[Any] = ["raise", "mask", "ignore", None, True, 0]


def spoilt(states: np.ndarray) -> list[Any]:
    """Return what may be given as states: good, broadcast, and wrong in many ways."""
    other = states.copy()
    other[2, 8] ^= 1
    long = np.concatenate([states, states[:, :8]], axis=1)
    holes: list[Any] = [*states[:4], None]
    return [
        *(states, states[0], list(states), states[:3], states[:0], None),
        *(other, long, states[:, :-1], states.astype(int), holes, states.tobytes(), 7, "states"),
    ]


class Trio:
    """The same environment in this process, in workers too, and in workers alone."""

    def __init__(self, name: str) -> None:
        if name == "toy":
            self.envs: list[Any] = [
                CounterEnv("toy"),
                ParallelEnv(CounterEnv, "toy", n_workers=2),
                ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True),
            ]
        else:
            self.envs = [
                plangym_like.make(name),
                plangym_like.make(name, n_workers=2),
                plangym_like.make(name, n_workers=2, isolate=True),
            ]
        for env in self.envs[1:]:
            sending(env)
        serial = self.envs[0]
        state = serial.reset(seed=0).state
        self.states = serial.step_batch(np.arange(COUNT) % 2, np.stack([state] * COUNT)).states
        for env in self.envs:
            env.set_state(state)

    def outcomes(self, **arguments: Any) -> set[Any]:
        """Call `step_batch` on all of them, and return what came of it."""
        found = set()
        for env in self.envs:
            sent = 0 if env is self.envs[0] else env.stats.rows_sent
            try:
                result = env.step_batch(**arguments)
            except (InputError, StateError) as error:
                found.add((type(error), str(error)))
                assert env is self.envs[0] or env.stats.rows_sent == sent
            else:
                found.add(content(tuple(result)))
        return found


@pytest.fixture(scope="module", params=["toy", "CartPole-v1"])
def trio(request: pytest.FixtureRequest) -> Iterator[Trio]:
    made = Trio(request.param)
    with Killer(made.envs[2].batch_env, 0.05):
        yield made
    for env in made.envs:
        env.close()


def check(trio: Trio, data: st.DataObject) -> None:
    outcomes = trio.outcomes(
        actions=data.draw(st.sampled_from(ACTIONS)),
        states=data.draw(st.sampled_from(spoilt(trio.states))),
        dt=data.draw(st.sampled_from(DT)),
        seeds=data.draw(st.sampled_from(SEEDS)),
        on_error=data.draw(st.sampled_from(ON_ERROR)),
    )
    assert len(outcomes) == 1, outcomes


@settings(max_examples=120)
@given(data=st.data())
def test_any_combination(trio: Trio, data: st.DataObject) -> None:
    check(trio, data)


@pytest.mark.full
@settings(max_examples=2500)
@given(data=st.data())
def test_very_many_combinations(trio: Trio, data: st.DataObject) -> None:
    check(trio, data)


def test_a_right_call_still_works(trio: Trio) -> None:
    outcomes = trio.outcomes(actions=np.arange(COUNT) % 2, states=trio.states, dt=2)
    assert len(outcomes) == 1
    assert isinstance(outcomes.pop(), bytes)
