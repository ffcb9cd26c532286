"""Cells of Go-Explore for screens: a few grey pixels of a few shades."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space
from numpy.typing import NDArray

from plangym_like.errors import InputError
from plangym_like.results import BatchInfo
from plangym_like.support.arguments import as_count, as_number

# Screens are converted to floats in portions that fit into a processor's cache: this takes 0.5 ms
# for 64 screens of Atari, and 0.9 ms if all are converted at once.
_SCREENS_AT_ONCE = 4


class ScreenCells:
    """Shrinks screens to a few grey pixels of a few shades.

    The fixed representation in the Go-Explore paper has 8 rows and 11 columns of pixels, and 8
    shades.

    Parameters
    ----------
    height, width, shades : int
        The numbers of rows and columns of pixels, and of shades of grey.

    Examples
    --------
    >>> screens = np.zeros((2, 210, 160), np.uint8)
    >>> screens[1, :, :80] = 255
    >>> cell_of = ScreenCells(height=1, width=2, shades=8)
    >>> [list(cell) for cell in cell_of(screens, BatchInfo(2, {}))]
    [[0, 0], [7, 0]]
    """

    def __init__(self, height: int = 8, width: int = 11, shades: int = 8) -> None:
        self.height, self.width = as_count("height", height), as_count("width", width)
        self.shades = as_count("shades", shades)

    @staticmethod
    def takes(space: Space[Any]) -> bool:
        """Return whether observations of `space` are images, grey or in colour."""
        if not isinstance(space, Box) or space.dtype != np.uint8:
            return False
        return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3))

    def __call__(self, obs: Any, infos: BatchInfo) -> list[Hashable]:
        """Return the cells of N screens ``(N, height, width)`` or ``(N, height, width, colours)``.

        Raises
        ------
        InputError
            The observations are not screens.
        """
        screens = np.asarray(obs)
        if screens.dtype != np.uint8 or screens.ndim not in (3, 4):
            raise InputError(
                f"{type(self).__name__} needs screens of uint8, got observations "
                f"{screens.shape[1:]} of {screens.dtype}"
            )
        if screens.ndim == 4:
            screens = screens.mean(axis=3, dtype=np.float32)
        small = shrink(screens, self.height, self.width) * (self.shades / 256)
        return [row.tobytes() for row in small.astype(np.uint8)]


class DynamicScreenCells(ScreenCells):
    """`ScreenCells` with a size and a number of shades that are fitted to recent screens.

    This is the Go-Explore paper's representation without domain knowledge ("First return, then
    explore", Methods). Of `trials` sizes, it uses the one with the largest
    ``H(p) / sqrt(|n / (share * M) - 1| + 1)``. Here, M recent screens fall into n cells with
    frequencies p, and H is the entropy of p, divided by the entropy of n equally frequent cells.

    Parameters
    ----------
    share : float
        The intended number of cells, as a fraction of the number of screens.
    every : int
        The number of transitions after which a size is chosen again.
    trials : int
        The number of sizes that are compared.
    sample : int
        The number of recent screens to which a size is fitted.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> screens = rng.integers(256, size=(80, 21, 16), dtype=np.uint8)
    >>> cell_of = DynamicScreenCells(share=0.125, trials=20)
    >>> cell_of.fit(screens, rng)
    >>> 5 <= len(set(cell_of(screens, BatchInfo(80, {})))) <= 20  # the aim is 80 * 0.125
    True
    """

    def __init__(
        self, share: float = 0.125, every: int = 100_000, trials: int = 100, sample: int = 500
    ) -> None:
        super().__init__()
        self.share, self.every = as_number("share", share, 1e-6, 1.0), as_count("every", every)
        self.trials, self.sample = as_count("trials", trials), as_count("sample", sample)

    def fit(self, screens: NDArray[np.uint8], rng: np.random.Generator) -> None:
        """Choose the representation for a sample of screens ``(M, height, width)``."""
        best = self._objective(screens)
        for _ in range(self.trials):
            old = self.height, self.width, self.shades
            # Height, width and shades are drawn around the best ones so far, as in the paper.
            new = [
                int(np.clip(rng.geometric(1 / (value + 1)), 1, most))
                for value, most in zip(old, (*screens.shape[1:3], 256), strict=True)
            ]
            self.height, self.width, self.shades = new
            value = self._objective(screens)
            if value > best:
                best = value
            else:
                self.height, self.width, self.shades = old

    def _objective(self, screens: NDArray[np.uint8]) -> float:
        counts = Counter(self(screens, BatchInfo(len(screens), {})))
        if len(counts) == 1:
            return 0.0
        p = np.array(list(counts.values())) / len(screens)
        aim = self.share * len(screens)
        entropy = float(-(p * np.log(p)).sum() / math.log(len(counts)))
        return entropy / math.sqrt(abs(len(counts) / aim - 1) + 1)


def shrink(screens: NDArray[Any], height: int, width: int) -> NDArray[np.float32]:
    """Return smaller screens ``(N, height, width)``; each pixel is the mean of the area it covers.

    >>> shrink(np.arange(6.0).reshape(1, 2, 3), 1, 2).round(2)
    array([[[1.83, 3.17]]], dtype=float32)
    """
    rows, columns = screens.shape[1:3]
    of_rows, of_columns = _areas(rows, height), _areas(columns, width).T
    small = np.empty((len(screens), height, width), np.float32)
    for at in range(0, len(screens), _SCREENS_AT_ONCE):
        part = screens[at : at + _SCREENS_AT_ONCE].astype(np.float32)
        # Rows first: screens have more of them, so the second product is smaller.
        small[at : at + _SCREENS_AT_ONCE] = of_rows @ part @ of_columns
    return small


def _areas(old: int, new: int) -> NDArray[np.float32]:
    """Return the weight ``(new, old)`` of each old pixel in each new pixel."""
    edges = np.linspace(0, old, new + 1)
    pixel = np.arange(old)
    covered = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    shares: NDArray[np.float64] = np.maximum(covered, 0) * new / old
    return shares.astype(np.float32)


def packed(screen: NDArray[Any]) -> bytes:
    """Return a screen in compressed form; `unpacked` restores it."""
    return zlib.compress(screen.tobytes(), 1)


def unpacked(screens: Iterable[bytes], space: Space[Any]) -> NDArray[Any]:
    """Return the screens ``(N, *shape)`` that `packed` has compressed."""
    rows = [np.frombuffer(zlib.decompress(one), space.dtype) for one in screens]
    return np.stack(rows).reshape(-1, *(space.shape or ()))
