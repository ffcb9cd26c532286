"""`Columns`: the states of many rows, with one array per variable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(slots=True)
class Columns:
    """The states of N rows.

    ``x`` ``(size, N)`` is the physical state, and ``hidden`` ``(N,)`` is `Dynamics.hidden`.
    ``single`` ``(N,) bool`` marks the rows that the environment would store in ``float32``
    (``None`` means no row). ``elapsed`` ``(N,) int64`` counts the steps for a time limit.
    """

    x: Floats
    hidden: NDArray[Any]
    single: NDArray[np.bool_] | None = None
    elapsed: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.hidden)

    def take(self, rows: NDArray[np.intp]) -> Columns:
        """Return a copy of the states of `rows`."""
        return Columns(
            self.x[:, rows],
            self.hidden[rows],
            None if self.single is None else self.single[rows],
            None if self.elapsed is None else self.elapsed[rows],
        )

    def put(self, rows: NDArray[np.intp], part: Columns) -> None:
        """Replace the states of `rows` with `part`, a result of `take` that has been stepped."""
        self.x[:, rows] = part.x
        self.hidden[rows] = part.hidden
        if self.single is not None and part.single is not None:
            self.single[rows] = part.single
        if self.elapsed is not None and part.elapsed is not None:
            self.elapsed[rows] = part.elapsed
