"""`ParallelEnv`: a `PlanEnv` whose batches are stepped by many processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from comparing import assert_same, content
from playground import CounterEnv, sending

from plangym_like.constructors import ParallelEnv
from plangym_like.errors import InputError

ACTIONS = np.arange(100)


@pytest.fixture(scope="module")
def parallel() -> Iterator[ParallelEnv]:
    with ParallelEnv(CounterEnv, "toy", n_workers=3) as env:
        yield sending(env)


def test_cheap_batches_stay_here(serial: CounterEnv) -> None:
    with ParallelEnv(CounterEnv, "toy", n_workers=2) as env:
        for count in (1, 1, 2, 4, 2, 8):
            actions = np.arange(count)
            ours = env.step_batch(actions, serial.get_state())
            assert_same(ours, serial.step_batch(actions, serial.get_state()))
        assert env.stats.rows_sent == 0
        assert (env.stats.batches, env.stats.rows) == (6, 18)


# The env that stands here


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", None, True])
def test_a_wrong_number_of_workers(wrong: Any) -> None:
    with pytest.raises(InputError, match="n_workers"):
        ParallelEnv(CounterEnv, "toy", n_workers=wrong)


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan")])
def test_a_wrong_timeout(wrong: Any) -> None:
    with pytest.raises(InputError, match="step_timeout"):
        ParallelEnv(CounterEnv, "toy", step_timeout=wrong)


def test_a_timeout_implies_isolation() -> None:
    with ParallelEnv(CounterEnv, "toy", n_workers=1, step_timeout=5) as env:
        assert env.isolate
        assert len(env.batch_env) == 1
    with ParallelEnv(CounterEnv, "toy", n_workers=1) as env:
        assert not env.isolate
        assert len(env.batch_env) == 0


# Threads


def test_single_steps_in_one_thread_and_batches_in_another(
    parallel: ParallelEnv, serial: CounterEnv
) -> None:
    parallel.reset(seed=2)
    serial.reset(seed=2)
    walk = [content(serial.step(action % 50, return_state=True)) for action in range(300)]
    states = serial.step_batch(ACTIONS, serial.get_state()).states
    expected = content(serial.step_batch(ACTIONS, states))
    over = threading.Event()
    wrong: list[int] = []

    def step_batches() -> None:
        while not over.is_set():
            if content(parallel.step_batch(ACTIONS, states)) != expected:
                wrong.append(1)

    thread = threading.Thread(target=step_batches)
    thread.start()
    try:
        ours = [content(parallel.step(action % 50, return_state=True)) for action in range(300)]
    finally:
        over.set()
        thread.join(100)
    assert ours == walk
    assert not wrong
