"""The audit notices that workers lack what the program has changed in a module."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import plangym_like
from plangym_like.errors import ImpureEnvironmentError

MODULE = """
import gymnasium, numpy as np
SCALE = 1

class Scaled(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.total = 0.0
        return np.zeros(1), {}

    def step(self, action):
        self.total += SCALE
        return np.array([self.total]), 0.5, False, False, {}
"""


def test_a_changed_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scaled_world.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import scaled_world  # type: ignore[import-not-found]

    scaled_world.SCALE = 3
    with plangym_like.make(scaled_world.Scaled, n_workers=2, audit_every=1) as env:
        state = env.reset(seed=0).state
        env.executor.pool.wait_ready()
        with pytest.raises(ImpureEnvironmentError, match="a module"):
            while True:
                env.step_batch([0] * 1000, state)
    del sys.modules["scaled_world"]
