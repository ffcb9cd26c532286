"""An environment that is used while the same thread is already using it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from playground import CounterEnv

ACTIONS = np.arange(20)
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
