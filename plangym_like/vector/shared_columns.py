"""`SharedColumns`: info columns of lanes in memory that their processes share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.vector.tree import NUMERIC_KINDS

# Bytes for the infos of one lane. Longer infos, and infos that are not numbers, are sent in
# messages.
COLUMNS_NBYTES = 512

# The name, dtype and shape of each info.
Form = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]


class SharedColumns:
    """Writes and reads info columns, arrays ``(n, ...)`` of numbers, in shared memory.

    Both sides compute the places of the arrays from their form, which is sent with every reply.

    Parameters
    ----------
    rows : array ``(n, COLUMNS_NBYTES) uint8``
        The memory of the n lanes of one process.
    """

    def __init__(self, rows: NDArray[np.uint8]) -> None:
        self._rows = rows
        self._form: Form = ()
        self._columns: dict[str, NDArray[Any]] | None = {}

    def write(self, columns: Mapping[str, NDArray[Any]]) -> Form | None:
        """Write `columns` and return their form; ``None`` if they do not fit or are not numbers."""
        form = tuple((name, each.dtype, each.shape[1:]) for name, each in columns.items())
        places = self.read(form)
        if places is None:
            return None
        for name, column in columns.items():
            places[name][...] = column
        return self._form

    def read(self, form: Form) -> dict[str, NDArray[Any]] | None:
        """Return the columns of this form, or ``None`` if they do not fit or are not numbers.

        The next step overwrites the columns.
        """
        if form != self._form:
            self._columns, self._form = self._lay_out(form), form
        return self._columns

    def _lay_out(self, form: Form) -> dict[str, NDArray[Any]] | None:
        memory, place, columns = self._rows.reshape(-1), 0, {}
        for name, dtype, shape in form:
            column = np.empty((len(self._rows), *shape), dtype)
            end = place + column.nbytes
            if dtype.kind not in NUMERIC_KINDS or end > len(memory):
                return None
            columns[name] = memory[place:end].view(dtype).reshape(column.shape)
            place = -(-end // 16) * 16
        return columns
