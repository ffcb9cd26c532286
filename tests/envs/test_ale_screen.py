"""The image of an emulator: converted where it has changed, it is what ALE draws."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

import plangym_like
from plangym_like.envs.ale_screen import Screen


class Watched:
    """An emulator that counts how often it is asked to draw."""

    def __init__(self, ale: Any) -> None:
        self._ale = ale
        self.drawn = self.copied = 0

    def getScreenDims(self) -> tuple[int, int]:
        return self._ale.getScreenDims()

    def getScreen(self, out: NDArray[np.uint8]) -> None:
        self.copied += 1
        self._ale.getScreen(out)

    def getScreenRGB(self, out: NDArray[np.uint8]) -> None:
        self.drawn += 1
        self._ale.getScreenRGB(out)


class Painted:
    """A screen of two rows, painted by hand, in colours of one's own."""

    def __init__(self) -> None:
        self.palette = np.arange(768, dtype=np.uint8).reshape(256, 3)
        self.bytes = np.zeros((2, 160), np.uint8)
        self.drawn = 0

    def getScreenDims(self) -> tuple[int, int]:
        return self.bytes.shape

    def getScreen(self, out: NDArray[np.uint8]) -> None:
        out[:] = self.bytes

    def getScreenRGB(self, out: NDArray[np.uint8]) -> None:
        self.drawn += 1
        out[:] = self.palette[self.bytes]


# Quiet ones, one with all colours, one of whose screen much changes at times, one always.
@pytest.mark.parametrize(
    ("game", "most_drawn", "most_tried"),
    [
        *(("MsPacman", 10, 410), ("Breakout", 10, 410), ("Seaquest", 10, 410)),
        *(("StarGunner", 60, 450), ("Frogger", 300, 350), ("YarsRevenge", 400, 60)),
    ],
)
def test_images_are_those_that_ale_draws(game: str, most_drawn: int, most_tried: int) -> None:
    rng = np.random.default_rng(3)
    env: Any = gymnasium.make(f"ALE/{game}-v5", frameskip=1)
    env.reset(seed=0)
    ale = env.unwrapped.ale
    watched = Watched(ale)
    screen = Screen(watched)
    states = []
    for frame in range(400):
        if frame % 7 == 0:
            states.append(ale.cloneState())
        elif frame % 5 == 0:
            ale.restoreState(states[rng.integers(len(states))])
        ale.act(int(rng.integers(18)))
        np.testing.assert_array_equal(screen.draw(), ale.getScreenRGB(), f"frame {frame}")
    env.close()
    assert watched.drawn <= most_drawn
    assert watched.copied <= most_tried


def test_colours_that_look_unknown_are_drawn_all_the_same() -> None:
    painted = Painted()
    painted.palette[6], painted.palette[8] = (1, 2, 3), (5, 7, 11)
    screen = Screen(painted)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    for _ in range(200):
        painted.bytes[rng.integers(2), rng.integers(160)] = rng.choice([0, 2, 6, 8])
        np.testing.assert_array_equal(screen.draw(), painted.palette[painted.bytes])
    painted.bytes[:] = 2
    screen.draw()
    painted.bytes[0, 4:6] = 6, 8
    drawn = painted.drawn
    for _ in range(100):
        np.testing.assert_array_equal(screen.draw(), painted.palette[painted.bytes])
    assert painted.drawn <= drawn + 17


def test_ctrl_c_leaves_no_pixels_of_a_screen_that_was_not_remembered() -> None:
    painted = Painted()
    screen = Screen(painted)  # type: ignore[arg-type]
    rng = np.random.default_rng(1)
    draw = painted.getScreenRGB

    def interrupted(out: NDArray[np.uint8]) -> None:
        draw(out)
        raise KeyboardInterrupt

    for frame in range(300):
        before = painted.bytes.copy()
        painted.bytes[rng.integers(2), rng.integers(160)] = rng.integers(frame // 10 + 2)
        if frame % 3 == 0:
            painted.getScreenRGB = interrupted  # type: ignore[method-assign]
            with contextlib.suppress(KeyboardInterrupt):
                screen.draw()
            painted.getScreenRGB = draw  # type: ignore[method-assign]
            painted.bytes[:] = before
        np.testing.assert_array_equal(screen.draw(), painted.palette[painted.bytes])


def test_observations_are_the_callers_own() -> None:
    with plangym_like.make("ALE/MsPacman-v5", frameskip=1) as env:
        state = env.reset(seed=0).state
        first = env.step_batch([1, 2, 3, 4], state)
        kept = first.obs.copy()
        again = env.step_batch([4, 3, 2, 1], state)
        np.testing.assert_array_equal(first.obs, kept)
        first.obs[:] = 0
        np.testing.assert_array_equal(again.obs, kept[::-1])
        np.testing.assert_array_equal(env.step_batch([1, 2, 3, 4], state).obs, kept)
