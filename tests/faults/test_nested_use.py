"""An environment that is used while the same thread is already using it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from playground import CounterEnv
from usual import first_of

from plangym_like.constructors import ParallelEnv

ACTIONS = np.arange(20)
WHERE: dict[str, dict[str, Any]] = {
    "serial": {},
    "shared": {"n_workers": 2},
    "isolated": {"n_workers": 2, "isolate": True},
}
USES: dict[str, Callable[[Any, Any], Any]] = {
    "step_batch": lambda env, state: env.step_batch([1, 2], state),
    "step": lambda env, state: env.step(1, state),
    "set_state": lambda env, state: env.set_state(state),
    "reset": lambda env, state: env.reset(seed=3),
    "get_image": lambda env, state: env.get_image(),
    "simulator": lambda env, state: env.simulator,
}


@pytest.mark.parametrize("use", USES)
def test_an_environment_whose_step_uses_the_env_around_it(use: str, serial: CounterEnv) -> None:
    refused: list[RuntimeError] = []
    inner: list[Any] = []

    def trap(action: int) -> None:
        if inner:
            with pytest.raises(RuntimeError, match="while it was already in use") as caught:
                USES[use](inner[0], other)
            refused.append(caught.value)

    env = CounterEnv("toy", trap=trap)
    state = serial.get_state()
    other = serial.step_batch([7], state).states[0]
    env.set_state(state)
    inner.append(env)
    assert_same(env.step_batch(ACTIONS, state), serial.step_batch(ACTIONS, state))
    assert np.array_equal(env.get_state(), state)
    assert len(refused) >= len(ACTIONS)


@pytest.mark.parametrize("where", first_of(WHERE, 2))
def test_a_signal_handler_that_steps_a_batch(where: str, serial: CounterEnv) -> None:
    owner, answers = os.getpid(), []
    state = serial.get_state()
    other = serial.step_batch([7], state).states[0]

    def trap(action: int) -> None:
        if os.getpid() == owner:
            time.sleep(1e-3)

    def handler(*_: Any) -> None:
        try:
            answers.append(env.step_batch(ACTIONS[:3], other))
        except RuntimeError as error:
            answers.append(error)

    options = {"trap": trap, "audit": "off"}
    env: Any = CounterEnv("toy", **options)
    if where != "serial":
        env = ParallelEnv(CounterEnv, "toy", **options, **WHERE[where])
    expected = serial.step_batch(ACTIONS, state)
    right = serial.step_batch(ACTIONS[:3], other)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for number in range(60):
            signal.setitimer(signal.ITIMER_REAL, 1e-3 + 3e-4 * number)
            assert_same(env.step_batch(ACTIONS, state), expected)
            time.sleep(1e-3 * (number % 2))
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        env.close()
    for answer in answers:
        if isinstance(answer, RuntimeError):
            assert "set a flag in the handler" in str(answer)
        else:
            assert_same(answer, right)
