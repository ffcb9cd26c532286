"""Write values into arrays only if they fit, and raise an error otherwise.

Assignment in NumPy wraps the integers of other arrays (300 becomes 44 in ``uint8``), turns ``None``
into NaN in arrays of floats, and fills a whole row with a single number. So values that
environments return are written by this module, unless they are known to fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.ownership import owned
from plangym_like.batch.spaces import as_dtype
from plangym_like.errors import InputError
from plangym_like.vector.tree import NUMERIC_KINDS, as_array


def as_fitting(
    value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], place: str
) -> NDArray[Any]:
    """Return `value` as an array of exactly the given shape and dtype.

    Parameters
    ----------
    value : array, number, or list of numbers
    shape : tuple of int
    dtype : numpy.dtype
        The dtype of the result. It must be able to hold the numbers; see
        `plangym_like.batch.spaces.as_dtype`.
    place : str
        The name of the value in the error message.

    Raises
    ------
    InputError
        `value` has another shape, or holds something other than numbers that `dtype` can hold.
    """
    array = as_numbers(value)
    if array is None:
        raise InputError(
            f"{place} must be numbers of shape {shape} and dtype {dtype}, got {value!r}"
        )
    if array.shape != shape:
        raise InputError(f"{place} must have the shape {shape}, got the shape {array.shape}")
    fitting = as_dtype(array, dtype)
    if fitting is None:
        raise InputError(
            f"{place} must be {dtype}, got {array.dtype} with values from {array.min()} to "
            f"{array.max()}, which {dtype} cannot hold"
        )
    return fitting


def as_numbers(value: Any) -> NDArray[Any] | None:
    """Return `value` as an array of numbers, or ``None`` if it is something else."""
    try:
        array = as_array(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array if array.dtype.kind in NUMERIC_KINDS else None


def put_fitting(
    rows: Any, lane: int, value: Any, place: str = "observation", first_lane: int = 0
) -> None:
    """Write the tree `value` into row `lane` of `rows`, a tree of arrays with the same containers.

    In error messages, row 0 is lane `first_lane`.

    Raises
    ------
    InputError
        A part is missing or unexpected, or a leaf does not fit (see `as_fitting`); the message
        names the lane and the part.
    """
    if isinstance(rows, np.ndarray):
        shape = rows.shape[1:]
        if type(value) is np.ndarray and value.dtype is rows.dtype and value.shape == shape:
            rows[lane] = value
            return
        if rows.dtype == object:
            rows[lane] = owned(value)
            return
        rows[lane] = as_fitting(value, shape, rows.dtype, f"lane {first_lane + lane}'s {place}")
    elif isinstance(rows, dict):
        keys = value.keys() if isinstance(value, Mapping) else None
        if keys != rows.keys():
            told = type(value).__name__ if keys is None else f"the keys {list(keys)}"
            raise InputError(
                f"lane {first_lane + lane}'s {place} must have the keys {list(rows)}, got {told}"
            )
        for key, row in rows.items():
            put_fitting(row, lane, value[key], f"{place}[{key!r}]", first_lane)
    elif isinstance(rows, (tuple, list)):
        if not isinstance(value, (tuple, list, np.ndarray)) or len(value) != len(rows):
            raise InputError(
                f"lane {first_lane + lane}'s {place} must have {len(rows)} parts, got {value!r}"
            )
        for number, (row, part) in enumerate(zip(rows, value, strict=True)):
            put_fitting(row, lane, part, f"{place}[{number}]", first_lane)
