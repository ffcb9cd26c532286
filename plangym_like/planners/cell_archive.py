"""`CellArchive`: the best visit to each cell that Go-Explore has reached."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from plangym_like.planners.lineage import ROOT
from plangym_like.planners.plan import Spent
from plangym_like.planners.screen_cells import DynamicScreenCells, packed, unpacked
from plangym_like.results import BatchInfo
from plangym_like.states.rows import Row

CellOf = Callable[[Any, BatchInfo], list[Hashable]]
# The cell of the first state, which has no known observation. It differs from all other cells.
START = object()


class Visit(NamedTuple):
    """The best visit to a cell.

    Attributes
    ----------
    score : float
    frames : int
        The number of frames since the first state.
    found : Spent
        The cost of the search until the cell was first reached.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import GoExplore
    >>> env = plangym_like.make("MountainCar-v0")
    >>> state, obs, info = env.reset(seed=0)
    >>> cells = GoExplore(env).plan(state, budget=1_000, seed=0).info["cells"]
    >>> {visit.score + visit.frames for visit in cells.values()}  # every frame costs 1
    {0.0}
    """

    score: float
    frames: int
    found: Spent


class Walks(NamedTuple):
    """N explorations, as arrays. `nodes` are nodes of the `Lineage`; `actions` are the latest."""

    states: NDArray[np.uint8]
    scores: NDArray[np.float64]
    frames: NDArray[np.int64]
    lives: NDArray[np.float64]
    nodes: NDArray[np.int64]
    actions: NDArray[Any]
    cells: NDArray[np.object_]

    def take(self, rows: NDArray[np.int64]) -> Walks:
        """Return the explorations `rows`."""
        columns: Any = (column[rows] for column in self)
        return Walks(*columns)


@dataclass
class _Cell:
    """The best visit to a cell, the state of this visit, and the number of later entries."""

    visit: Visit
    state: Row
    lives: float
    node: int
    screen: bytes = b""
    entered: int = 0

    def is_worse(self, score: float, frames: int) -> bool:
        return (score, -frames) > (self.visit.score, -self.visit.frames)


class CellArchive:
    """Maps cells to their best visits.

    Parameters
    ----------
    state : row
        Where the search starts.
    """

    def __init__(self, state: Row) -> None:
        start = _Cell(Visit(0.0, 0, Spent()), np.array(state), -np.inf, ROOT)
        self._cells: dict[Hashable, _Cell] = {START: start}

    def __len__(self) -> int:
        return len(self._cells) - 1

    def choose(self, count: int, actions: NDArray[Any], rng: np.random.Generator) -> Walks:
        """Draw `count` cells, and return explorations that start from their states.

        The probability of a cell is proportional to ``1 / sqrt(seen + 1)``, where `seen` counts how
        often the cell was entered since its best visit.
        """
        cells, keys = list(self._cells.values()), list(self._cells)
        seen = np.fromiter((cell.entered for cell in cells), np.float64, len(cells))
        weights = 1 / np.sqrt(seen + 1)
        rows = rng.choice(len(cells), count, p=weights / weights.sum())
        chosen = [cells[row] for row in rows]
        return Walks(
            np.stack([cell.state for cell in chosen]),
            np.array([cell.visit.score for cell in chosen]),
            np.array([cell.visit.frames for cell in chosen]),
            np.array([cell.lives for cell in chosen]),
            np.array([cell.node for cell in chosen]),
            actions,
            as_column([keys[row] for row in rows]),
        )

    def add(
        self,
        before: Walks,
        after: Walks,
        rows: NDArray[np.int64],
        spent: Spent,
        screens: NDArray[np.uint8] | None = None,
    ) -> None:
        """Keep visits to new cells and better visits to known cells; count all other entries.

        `before` and `after` are the explorations before and after a step. Rows that are not in
        `rows` are ignored. `screens` are the observations; `refit` needs them.
        """
        visits = zip(
            rows.tolist(),
            after.cells[rows],
            before.cells[rows],
            after.scores[rows].tolist(),
            after.frames[rows].tolist(),
            strict=True,
        )
        for row, key, left, score, frames in visits:
            cell = self._cells.get(key)
            if cell is None or cell.is_worse(score, frames):
                self._cells[key] = _Cell(
                    Visit(score, frames, spent if cell is None else cell.visit.found),
                    after.states[row].copy(),
                    float(after.lives[row]),
                    int(after.nodes[row]),
                    b"" if screens is None else packed(screens[row]),
                )
            elif key != left:
                cell.entered += 1

    def refit(
        self,
        cells: DynamicScreenCells,
        recent: Iterable[bytes],
        space: Space[Any],
        rng: np.random.Generator,
    ) -> None:
        """Fit `cells` to recent screens, and keep the best known visit to each new cell."""
        cells.fit(unpacked(recent, space), rng)
        new: dict[Hashable, _Cell] = {START: self._cells.pop(START)}
        old = list(self._cells.values())
        for begin in range(0, len(old), 256):
            chunk = old[begin : begin + 256]
            screens = unpacked([cell.screen for cell in chunk], space)
            for key, cell in zip(cells(screens, BatchInfo(len(chunk), {})), chunk, strict=True):
                other = new.get(key)
                if other is None or other.is_worse(cell.visit.score, cell.visit.frames):
                    new[key] = cell
        self._cells = new

    def visits(self) -> dict[Hashable, Visit]:
        """Return the best visit to each cell."""
        return {key: cell.visit for key, cell in self._cells.items() if key is not START}

    def newest(self) -> int:
        """Return the node of the cell that was found last; without cells, 0 (the first step)."""
        cells = [cell for key, cell in self._cells.items() if key is not START]
        return max(cells, key=lambda cell: cell.visit.found.transitions).node if cells else 0


def as_column(keys: list[Hashable]) -> NDArray[np.object_]:
    """Return `keys` as an array ``(N,)`` of objects, even if they are tuples."""
    column = np.empty(len(keys), object)
    for row, key in enumerate(keys):
        column[row] = key
    return column
