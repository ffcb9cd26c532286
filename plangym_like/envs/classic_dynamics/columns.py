"""The states of many rows, column by column, and those among them that still go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Columns:
    """The states of N rows.

    ``x`` ``(size, N)`` is the physical state; ``hidden`` ``(N,)`` the attribute beside it;
    ``single`` ``(N,) bool`` tells which rows the environment would hold in ``float32`` (``None``:
    none of them); ``elapsed`` ``(N,) int64`` counts the steps for a time limit.
    """

    x: Floats
    hidden: NDArray[Any]
    single: NDArray[np.bool_] | None = None
    elapsed: NDArray[np.int64] | None = None

    def take(self, rows: NDArray[np.intp]) -> Columns:
        """Return a copy of `rows`."""
        return Columns(
            self.x[:, rows],
            self.hidden[rows],
            None if self.single is None else self.single[rows],
            None if self.elapsed is None else self.elapsed[rows],
        )

    def put(self, rows: NDArray[np.intp], part: Columns) -> None:
        """Write `part`, what became of ``take(rows)``, back."""
        self.x[:, rows] = part.x
        self.hidden[rows] = part.hidden
        if self.single is not None and part.single is not None:
            self.single[rows] = part.single
        if self.elapsed is not None and part.elapsed is not None:
            self.elapsed[rows] = part.elapsed


class Survivors:
    """The rows of `whole` that have not ended, gathered anew whenever some of them do.

    Attributes
    ----------
    part : Columns
        What is stepped: `whole` itself as long as nobody has ended, else a copy of some rows.
    rows : slice or index array
        Where `part` stands in `whole`.
    """

    def __init__(self, whole: Columns) -> None:
        self._whole = whole
        self.part = whole
        self.rows: slice | NDArray[np.intp] = slice(None)

    def __len__(self) -> int:
        return len(self.part.hidden)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Go on with those rows of `part` where `mask` is true."""
        if mask.all():
            return
        self.write_back()
        self.rows = mask.nonzero()[0] if isinstance(self.rows, slice) else self.rows[mask]
        self.part = self._whole.take(self.rows)

    def write_back(self) -> None:
        """Bring `whole` up to date."""
        if not isinstance(self.rows, slice):
            self._whole.put(self.rows, self.part)
