"""Environments of others, of different make, that no family of ours knows: nothing is adapted."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same, reached
from usual import first_of

import plangym_like
from plangym_like import check_env

MINIGRID = ["MiniGrid-DoorKey-8x8-v0", "MiniGrid-Dynamic-Obstacles-6x6-v0"]
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*already returned terminated"),
]


@pytest.mark.parametrize("name", first_of(MINIGRID))
def test_minigrid_is_exact_by_pickle(name: str) -> None:
    pytest.importorskip("minigrid", reason="minigrid is not installed")
    report = check_env(name, states=3, steps=4, workers=(), snapshot="pickle")
    assert report.ok, str(report)
    assert (report.snapshot, report.exactness) == ("pickle", "exact")


class Marsh(gymnasium.Env):
    """Registered by this module alone."""

    observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = 0.0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.x += float(self.np_random.normal()) + float(action)
        return np.array([self.x]), self.x, abs(self.x) > 50, False, {}


def test_workers_know_the_ids_that_only_the_caller_registered() -> None:
    gymnasium.register("Marsh-v3", f"{Path(__file__).stem}:Marsh")
    try:
        serial = plangym_like.make("Marsh-v3")
        states = reached(serial, 8)
        with plangym_like.make("Marsh-v3", n_workers=2, isolate=True) as env:
            actions = np.arange(8) % 2
            assert_same(env.step_batch(actions, states).obs, serial.step_batch(actions, states).obs)
    finally:
        del gymnasium.registry["Marsh-v3"]


class DefaultImages(Marsh):
    """Has another render mode than none unless told, and knows no none."""

    def __init__(self, render_mode: str = "rgb_array") -> None:
        assert render_mode == "rgb_array"
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.zeros((2, 2, 3), np.uint8)


def test_an_environment_keeps_the_render_mode_that_is_its_own() -> None:
    gymnasium.register("Images-v0", DefaultImages)
    try:
        env = plangym_like.make("Images-v0")
        assert env.get_image().shape == (2, 2, 3)
    finally:
        del gymnasium.registry["Images-v0"]
