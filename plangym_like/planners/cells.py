"""Cells of Go-Explore: which observations count as the same place.

- `position_cells`: the player's position in Montezuma's Revenge
- `ObservationCells`: bins of a few numbers
- `ScreenCells`, `DynamicScreenCells`: a few grey pixels of a few shades
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from numpy.typing import NDArray

from plangym_like.errors import InputError
from plangym_like.planners.checkpoint import stored
from plangym_like.results import BatchInfo
from plangym_like.support.arguments import as_count, as_number

CellOf = Callable[[Any, BatchInfo], list[Hashable]]

# The memory address of the player's inventory in Montezuma's Revenge, with one bit per object.
_INVENTORY = 65
# The infos that tell where the player is.
_POSITION = {"room", "x", "y"}
# The number of bytes of the console's memory.
_RAM = 128
# Screens are first reduced to thumbnails of at most this many rows and columns.
_THUMBNAIL = 48


def has_position(infos: BatchInfo) -> bool:
    """Return whether infos have the numbers that `position_cells` needs."""
    return infos.keys() >= _POSITION


@stored
def position_cells(obs: Any, infos: BatchInfo) -> list[Hashable]:
    """Return each row's cell in Montezuma's Revenge: the player's ``(room, x, y, items)``.

    A cell is 8 by 16 pixels of the console. It is as large as in the paper ("First return, then
    explore", Methods), which draws each pixel twice as wide. If observations are the console's
    memory (``obs_type="ram"``), `items` has one bit for each object that the player carries.
    Otherwise, it is 0.

    Raises
    ------
    InputError
        The infos of this environment lack ``room``, ``x`` or ``y``.

    Examples
    --------
    >>> columns = {"room": np.array([1, 1]), "x": np.array([77, 85]), "y": np.array([235, 192])}
    >>> position_cells(np.zeros((2, 3)), BatchInfo(2, columns))
    [(1, 9, 14, 0), (1, 10, 12, 0)]
    """
    missing = _POSITION - infos.keys()
    if missing:
        raise InputError(
            f"position_cells needs room, x and y in infos, and {', '.join(sorted(missing))} "
            "are missing in the infos of this environment (ALE/MontezumaRevenge-v5 has them); use "
            "ScreenCells, or your own cell_of(obs, infos)"
        )
    rows = np.asarray(obs)
    is_ram = rows.shape[1:] == (_RAM,) and rows.dtype == np.uint8
    items = rows[:, _INVENTORY].tolist() if is_ram else [0] * len(rows)
    columns = infos["room"].tolist(), (infos["x"] // 8).tolist(), (infos["y"] // 16).tolist()
    return list(zip(*columns, items, strict=True))


@stored
class ObservationCells:
    """Divides the range of each number of an observation into bins.

    Numbers without bounds, or with a range of more than 2**63, are mapped to -1 to 1 by
    ``x / (1 + |x|)``. Each value of a discrete space is a separate bin.

    Parameters
    ----------
    space : Space
        The observation space; an observation has at most 8 numbers.
    bins : int
        The number of bins for each number.

    Raises
    ------
    InputError
        Observations are not numbers, or have more than 8 numbers: with more, a search would hardly
        ever visit a cell twice.

    Examples
    --------
    >>> cell_of = ObservationCells(Box(-1, 1, (2,)), bins=4)
    >>> cell_of(np.array([[-1.0, 0.1], [-0.9, 0.9]]), BatchInfo(2, {}))
    [(0, 2), (0, 3)]
    """

    def __init__(self, space: Space[Any], bins: int = 16) -> None:
        self._bins = as_count("bins", bins)
        fits = isinstance(space, Box | Discrete | MultiDiscrete | MultiBinary)
        if not fits or math.prod(space.shape or ()) > 8:
            raise InputError(
                "GoExplore has no cells for these observations; give it your own "
                "cell_of(obs, infos), which returns a hashable object for each row. The space is "
                f"{space}"
            )
        self._bounds: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        if isinstance(space, Box):
            low, high = space.low.ravel(), space.high.ravel()
            self._bounds = low.astype(np.float64), high.astype(np.float64)

    def __call__(self, obs: Any, infos: BatchInfo) -> list[Hashable]:
        """Return the cells of N observations."""
        rows = np.asarray(obs).reshape(len(obs), -1)
        if self._bounds is not None:
            low, high = self._bounds
            x = rows.astype(np.float64)
            with np.errstate(over="ignore"):
                bounded = high - low <= 2.0**63
            low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
            x = np.where(bounded, x, x / (1 + np.abs(x)))
            width = np.maximum((high - low) / self._bins, np.finfo(float).tiny)
            rows = np.clip((x - low) // width, 0, self._bins - 1).astype(np.int64)
        return [tuple(row) for row in rows.tolist()]


@stored
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
        return self.of_thumbnails(self.thumbnails(obs))

    def thumbnails(self, obs: Any) -> NDArray[np.uint8]:
        """Return small grey screens ``(N, rows, columns)``, from which cells are computed."""
        screens = np.asarray(obs)
        if screens.dtype != np.uint8 or screens.ndim not in (3, 4):
            raise InputError(
                f"{type(self).__name__} needs screens of uint8, got observations "
                f"{screens.shape[1:]} of {screens.dtype}"
            )
        return thumbnails(screens, max(_THUMBNAIL, self.height, self.width))

    def of_thumbnails(self, screens: NDArray[np.uint8]) -> list[Hashable]:
        """Return the cells of N thumbnails."""
        small = shrink(screens, self.height, self.width) * (self.shades / 256)
        return [row.tobytes() for row in small.astype(np.uint8)]


@stored
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
        The number of transitions after which a size is chosen for the first time. It is chosen
        again when this number has doubled, and so on.
    trials : int
        The number of sizes that are compared.
    sample : int
        The number of recent screens to which a size is fitted.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> screens = rng.integers(256, size=(80, 21, 16), dtype=np.uint8)
    >>> cell_of = DynamicScreenCells(share=0.125, trials=20)
    >>> cell_of.fit(cell_of.thumbnails(screens), rng)
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
        """Choose the representation for a sample of M thumbnails; it takes about half a second."""
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
        counts = Counter(self.of_thumbnails(screens))
        if len(counts) == 1:
            return 0.0
        p = np.array(list(counts.values())) / len(screens)
        aim = self.share * len(screens)
        entropy = float(-(p * np.log(p)).sum() / math.log(len(counts)))
        return entropy / math.sqrt(abs(len(counts) / aim - 1) + 1)


def thumbnails(screens: NDArray[np.uint8], most: int) -> NDArray[np.uint8]:
    """Return grey screens ``(N, H, W)`` of at most `most` rows and columns.

    Each pixel is the mean of a block of pixels of a screen ``(N, height, width)`` or
    ``(N, height, width, colours)``; blocks at the lower and right border may be smaller.

    >>> thumbnails(np.arange(24, dtype=np.uint8).reshape(1, 4, 6), 3)
    array([[[ 3,  5,  7],
            [15, 17, 19]]], dtype=uint8)
    """
    count, height, width = screens.shape[:3]
    rows, columns = -(-height // most), -(-width // most)
    lines = screens.reshape(count, height, -1)
    sums = lines[:, ::rows].astype(np.uint16)
    for offset in range(1, rows):  # ten times as fast as a sum over an axis
        part = lines[:, offset::rows]
        sums[:, : part.shape[1]] += part
    colours = lines.shape[2] // width
    blocks = np.repeat(np.arange(width) // columns, colours)
    weights = np.equal.outer(blocks, np.arange(-(-width // columns))).astype(np.float32)
    weights /= weights.sum(axis=0)
    heights = np.full(sums.shape[1], rows, np.float32)
    heights[-1] = height - rows * (len(heights) - 1)
    means: NDArray[np.float32] = (sums.astype(np.float32) @ weights) / heights[:, None]
    return means.astype(np.uint8)


def shrink(screens: NDArray[Any], height: int, width: int) -> NDArray[np.float32]:
    """Return smaller screens ``(N, height, width)``; each pixel is the mean of the area it covers.

    >>> shrink(np.arange(6.0).reshape(1, 2, 3), 1, 2).round(2)
    array([[[1.83, 3.17]]], dtype=float32)
    """
    rows, columns = screens.shape[1:3]
    small: NDArray[np.float32] = screens.astype(np.float32) @ _areas(columns, width).T
    return _areas(rows, height) @ small


def _areas(old: int, new: int) -> NDArray[np.float32]:
    """Return the weight ``(new, old)`` of each old pixel in each new pixel."""
    edges = np.linspace(0, old, new + 1)
    pixel = np.arange(old)
    covered = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    shares: NDArray[np.float64] = np.maximum(covered, 0) * new / old
    return shares.astype(np.float32)
