"""Environments of others, of different make, that no family of ours knows: nothing is adapted."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from small_envs import Fuse
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


class DefaultImages(Fuse):
    """Has another render mode than none unless told, and knows no none."""

    def __init__(self, render_mode: str = "rgb_array") -> None:
        super().__init__()
        assert render_mode == "rgb_array"
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.zeros((2, 2, 3), np.uint8)


@pytest.mark.usefixtures("gymnasium_registry")
def test_an_environment_keeps_the_render_mode_that_is_its_own() -> None:
    gymnasium.register("Images-v0", DefaultImages)
    with plangym_like.make("Images-v0") as env:
        assert env.get_image().shape == (2, 2, 3)
