"""Copy rows of trees of arrays that have one row for each lane."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np

from plangym_like.vector.tree import tree_map


def put_batch(rows: Any, values: Any, which: Any = ...) -> bool:
    """Copy the tree of arrays `values` to `rows`; with `which`, copy only the rows `which`.

    Returns
    -------
    bool
        False if `rows` is ``None``, or if containers, shapes or dtypes differ. Some arrays may then
        have been copied already.
    """
    if isinstance(rows, np.ndarray):
        if type(values) is not np.ndarray or values.dtype != rows.dtype:
            return False
        if values.shape != rows.shape:
            return False
        rows[which] = values[which]
        return True
    if isinstance(rows, dict):
        alike = isinstance(values, dict) and values.keys() == rows.keys()
        return alike and all(put_batch(row, values[key], which) for key, row in rows.items())
    if isinstance(rows, tuple):
        alike = isinstance(values, tuple) and len(values) == len(rows)
        return alike and all(map(put_batch, rows, values, repeat(which)))
    return False


def write_rows(target: Any, rows: Any, values: Any) -> None:
    """Write the tree `values` to the rows `rows` of the arrays in the tree `target`."""

    def write(to: Any, value: Any) -> None:
        to[rows] = value

    tree_map(write, target, values)


def copy_rows(target: Any, source: Any, rows: Any = ...) -> None:
    """Copy the rows `rows` of the arrays in the tree `source` to the same rows of `target`."""

    if type(target) is np.ndarray:  # the usual case, in less time than the general one
        target[rows] = source[rows]
        return

    def copy(to: Any, values: Any) -> None:
        to[rows] = values[rows]

    tree_map(copy, target, source)
