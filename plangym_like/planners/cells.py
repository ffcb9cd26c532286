"""Cells of Go-Explore: which observations count as the same place."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space

from plangym_like.errors import InputError
from plangym_like.results import BatchInfo
from plangym_like.support.arguments import as_count

# The memory address of the player's inventory in Montezuma's Revenge, with one bit per object.
_INVENTORY = 65
# The number of bytes of the console's memory.
_RAM = 128


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
    missing = {"room", "x", "y"} - infos.keys()
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
        self._box = space if isinstance(space, Box) else None

    def __call__(self, obs: Any, infos: BatchInfo) -> list[Hashable]:
        """Return the cells of N observations."""
        rows = np.asarray(obs).reshape(len(obs), -1)
        if self._box is not None:
            low = self._box.low.ravel().astype(np.float64)
            high = self._box.high.ravel().astype(np.float64)
            x = rows.astype(np.float64)
            with np.errstate(over="ignore"):
                bounded = high - low <= 2.0**63
            low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
            x = np.where(bounded, x, x / (1 + np.abs(x)))
            width = np.maximum((high - low) / self._bins, np.finfo(float).tiny)
            rows = np.clip((x - low) // width, 0, self._bins - 1).astype(np.int64)
        return [tuple(row) for row in rows.tolist()]
