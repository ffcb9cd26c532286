"""Short episodes of two processes are compared; floats may differ a little."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from plangym_like.errors import DifferentWorkerError
from plangym_like.execution.short_episode import check, first_difference, play


class Nested(gymnasium.Env[Any, Any]):
    """Observations and rewards of several types."""

    def __init__(self, scale: float = 1.0, *, fails_at: int = 10**9) -> None:
        self.scale, self.fails_at, self.count = scale, fails_at, 0

    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == self.fails_at:
            raise FloatingPointError("the world is broken")
        obs = {"text": "a", "parts": (np.full((100, 100), self.scale), np.float32(2), None)}
        return obs, 1, False, False, {}


def test_floats_may_differ_a_little_and_other_values_may_not() -> None:
    expected = play(Nested())
    assert 4 <= len(expected.outcomes) <= 9
    check(expected, play(Nested(1 + 1e-9)))
    check(expected, play(Nested(fails_at=3)))
    with pytest.raises(DifferentWorkerError, match=r"of step 1 is 1\.001 in the worker"):
        check(expected, play(Nested(1.001)))
    found = play(Nested(np.nan))
    assert first_difference(found, play(Nested(np.nan))) is None
    assert first_difference(found, expected) == ("the observation of step 1", "nan", "1.0")
