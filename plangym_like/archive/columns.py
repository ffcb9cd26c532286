"""Check the dtypes of an archive's columns, and convert values to them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError


def check_archivable(env: Any) -> None:
    """Raise `InputError` unless `env` is a `PlanEnv` whose actions are arrays."""
    if not isinstance(env, PlanEnv):
        raise InputError(f"StateArchive needs an environment of plangym_like.make, got {env!r}")
    if not env.layout.array_actions:
        raise InputError(
            f"StateArchive keeps actions in one array, but those of {env.action_space} are not "
            "arrays"
        )


def dtype_and_shape(name: str, given: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Split a column's dtype, such as ``(np.uint8, 88)``, into the dtype and shape of one value.

    Raises
    ------
    InputError
        `given` is not a dtype, or its values are not numbers.

    Examples
    --------
    >>> dtype_and_shape("cell", (np.uint8, 88))
    (dtype('uint8'), (88,))
    """
    try:
        dtype = np.dtype(given)
    except TypeError as error:
        raise InputError(
            f"column {name!r} needs a dtype, such as float or (numpy.uint8, 88), got {given!r}"
        ) from error
    base, shape = dtype.subdtype or (dtype, ())
    if base.kind not in "biuf":
        raise InputError(
            f"column {name!r} must have a dtype of integers, floats or bools, got {dtype}"
        )
    return base, shape


def fitted(name: str, values: ArrayLike, like: NDArray[Any], count: int) -> NDArray[Any]:
    """Convert `values` to an array ``(count, *shape)`` of a column's dtype; floats may be rounded.

    Parameters
    ----------
    name : str
        The column's name, for error messages.
    values : array ``(count, *shape)``, or one value for all
    like : array ``(N, *shape)``
        The column's current values.
    count : int
        The number of values.

    Raises
    ------
    InputError
        The values are not numbers, the dtype cannot hold them, or they cannot be broadcast to
        ``(count, *shape)``; or actions for a column of floats have another dtype.
    """
    try:
        given = np.asarray(values)
        spread = np.broadcast_to(given, (count, *like.shape[1:]))
    except ValueError as error:
        raise InputError(
            f"{name} must have shape {(count, *like.shape[1:])} or that of one value: {error}"
        ) from error
    if name == "actions" and like.dtype.kind == "f" and given.dtype != like.dtype:
        raise InputError(
            f"actions are {given.dtype}, but the archive has {like.dtype}, so a replay may differ; "
            f"give action_dtype={str(given.dtype)!r} to StateArchive"
        )
    if given.dtype.kind not in "biuf":
        raise InputError(f"{name} must be numbers of dtype {like.dtype}, got {given.dtype}")
    with np.errstate(all="ignore"):
        result = spread.astype(like.dtype)
    # Floats may be rounded, but not to infinity.
    kept = np.isfinite if like.dtype.kind == "f" else np.asarray
    if not np.array_equal(kept(result), kept(spread)):
        raise InputError(f"{name} has values that do not fit its dtype {like.dtype}")
    return result
