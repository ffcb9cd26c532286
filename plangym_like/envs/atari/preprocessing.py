"""Faster steps of `AtariPreprocessing`, with the same results.

In each step, `AtariPreprocessing` calls the game's ``step`` once for each frame. It ignores the
observations, and reads the last two screens directly from the emulator. Drawing screens that are
never read takes a quarter of a step's time (``benchmarks/vector.py mspacman_84``). Of the remaining
time outside the emulator, shrinking the screen takes half; see `ScreenResizer`.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import math
from typing import Any, cast

import numpy as np
from gymnasium.wrappers import AtariPreprocessing, OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from plangym_like.snapshots.chains import chain, innermost

logger = logging.getLogger("plangym_like")
Screen = NDArray[np.uint8]
# The result of `source_digest` with Gymnasium 1.1 to 1.4. Other code is used as it is.
_KNOWN = "0cc52dd5666849f5"
# With fewer blocks, resizing the whole screen is as fast.
_FEWEST_BLOCKS = 8
# Before screens of a new size are resized in blocks, groups of this many blocks are resized as a
# test, and the results are compared with those of the whole screen.
_COMPARED = (1, 2, 5)


def omit_unread_screens(env: Any) -> AtariPreprocessing | None:
    """Let the game in `env` return blank observations if only an `AtariPreprocessing` gets them.

    Return the `AtariPreprocessing`. If there is none, or a wrapper inside it may read observations,
    change nothing and return ``None``.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with all of its wrappers.
    """
    found = next((link for link in chain(env) if type(link) is AtariPreprocessing), None)
    between = {TimeLimit, OrderEnforcing, PassiveEnvChecker}
    if found is None or not set(map(type, chain(found.env))) <= between:
        return None
    if source_digest() != _KNOWN:
        logger.info("this version of AtariPreprocessing is not known; it is used as it is")
        return None
    base = innermost(found)
    vars(base)["_get_obs"] = functools.partial(_blank, base.observation_space.shape)
    return found


def speed_up_preprocessing(env: Any) -> None:
    """Make an `AtariPreprocessing` in `env` faster.

    Steps of the game then return blank observations, because `AtariPreprocessing` does not read
    them. Its results, and the state of all wrappers after each step, stay the same.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with all of its wrappers. Nothing changes if none of them is an
        `AtariPreprocessing`, if a wrapper between it and the game may read the screens, or if the
        game is not of ale-py's own class.
    """
    if type(innermost(env)).__module__ != "ale_py.env":
        return
    found = omit_unread_screens(env)
    if found is None or "_get_obs" in vars(found):
        return
    resizer = ScreenResizer(found.obs_buffer[0].shape, found.screen_size)
    vars(found)["_get_obs"] = functools.partial(_observation, found, resizer)


@functools.cache
def source_digest() -> str:
    """Return a digest of the source code that this module relies on; "" if it is not available."""
    kind: Any = AtariPreprocessing
    try:
        text = "".join(map(inspect.getsource, (kind.reset, kind.step, kind._get_obs)))
    except OSError:
        return ""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _blank(shape: tuple[int, ...]) -> Screen:
    """Return a black image, in new memory of one byte."""
    return np.ndarray(shape, np.uint8, bytearray(1), 0, (0,) * len(shape))


def _observation(env: AtariPreprocessing, resizer: ScreenResizer) -> Any:
    """Return what ``env._get_obs()`` returns."""
    screen, other = env.obs_buffer
    if env.frame_skip > 1:
        np.maximum(screen, other, out=screen)
    obs: Any = resizer.resize(screen)
    if env.scale_obs:
        obs = np.asarray(obs, dtype=np.float32) / 255.0
    if env.grayscale_obs and env.grayscale_newaxis:
        obs = np.expand_dims(obs, axis=-1)
    return obs


class ScreenResizer:
    """Returns what ``cv2.resize`` with ``INTER_AREA`` returns, in less time.

    To shrink 210 rows to 84, OpenCV computes 2 rows from each block of 5, in the same way for every
    block. From one step of a game to the next, few blocks change; only those are resized. Screens
    that cannot be divided into such blocks are resized as a whole.

    Parameters
    ----------
    shape : tuple of int
        The shape of the screens, ``(height, width)`` or ``(height, width, 3)``.
    size : (int, int)
        The new ``(width, height)``.
    """

    def __init__(self, shape: tuple[int, ...], size: tuple[int, int]) -> None:
        self._shape, self._size = shape, size
        self._block = block_of(shape, size)
        # The last screen and its result, one row of bytes for each block.
        self._last: tuple[Screen, Screen] | None = None

    def resize(self, screen: Screen) -> Screen:
        """Return `screen`, a contiguous array, resized."""
        size, block = self._size, self._block
        if block is None:
            return _resized(screen, size)
        last, result = self._last or self._black(block)
        blocks = screen.reshape(last.shape)
        changed = (blocks.view(np.uint64) != last.view(np.uint64)).any(axis=1)
        if np.count_nonzero(changed):
            fresh = blocks[changed]
            rows = _resized_blocks(fresh, self._shape, size, block)
            # If Ctrl-C interrupts the next line, the next call starts again from a black screen.
            self._last = None
            last[changed], result[changed] = fresh, rows
        self._last = last, result
        return result.reshape(size[1], size[0], *self._shape[2:]).copy()

    def _black(self, block: tuple[int, int]) -> tuple[Screen, Screen]:
        """Return a black screen and its result."""
        black, count = np.zeros(self._shape, np.uint8), self._shape[0] // block[0]
        return black.reshape(count, -1), _resized(black, self._size).reshape(count, -1)


@functools.cache
def block_of(shape: tuple[int, ...], size: tuple[int, int]) -> tuple[int, int] | None:
    """Return how many rows of a screen one block has, and how many rows it is resized to.

    Return ``None`` if screens of this `shape` cannot be resized to `size` block by block.
    """
    height, wanted = shape[0], size[1]
    count = math.gcd(height, wanted)
    block = height // count, wanted // count
    # The ratio must be exact as a float. The number of bytes of a block must be a multiple of 8,
    # because they are compared eight at a time.
    is_exact = block[1] & (block[1] - 1) == 0
    nbytes = math.prod(shape) // count
    if count < _FEWEST_BLOCKS or block[0] < block[1] or not is_exact or nbytes % 8:
        return None
    screen = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    whole = _resized(screen, size).reshape(count, -1)
    blocks = screen.reshape(count, nbytes)
    for number in (*_COMPARED, count):
        for first in range(0, count - number + 1, number):
            chosen = slice(first, first + number)
            rows = _resized_blocks(blocks[chosen], shape, size, block)
            if not np.array_equal(rows, whole[chosen]):
                return None
    return block


def _resized_blocks(
    blocks: Screen, shape: tuple[int, ...], size: tuple[int, int], block: tuple[int, int]
) -> Screen:
    """Resize `blocks`; each block is one row of bytes, in the argument and in the result."""
    count = len(blocks)
    part = blocks.reshape(count * block[0], *shape[1:])
    return _resized(part, (size[0], count * block[1])).reshape(count, -1)


def _resized(screen: Screen, size: tuple[int, int]) -> Screen:
    import cv2

    return cast(Screen, cv2.resize(screen, size, interpolation=cv2.INTER_AREA))
