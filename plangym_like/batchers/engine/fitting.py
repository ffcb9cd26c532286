"""Values that must fit where they are written: nothing is wrapped, broadcast or made up.

NumPy's assignment turns 300 into 44 for ``uint8``, ``None`` into NaN, and fills a row with a single
number. All that environments and actors return is written through this module instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.engine.nests import map_nest
from plangym_like.errors import ActionError, InputError
from plangym_like.spaces import as_dtype

_NUMERIC_KINDS = "biufc"


def as_fitting(
    value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], place: str
) -> NDArray[Any]:
    """Return `value` as an array of exactly this shape and dtype.

    Parameters
    ----------
    value : array, number, or list of numbers
    shape : tuple of int
    dtype : numpy.dtype
        It must be able to hold the numbers: see `plangym_like.spaces.as_dtype`.
    place : str
        What the error calls the value.

    Raises
    ------
    InputError
        The value has another shape, is not a number, or is a number that `dtype` cannot hold.
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
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            value = value.float() if value.dtype is torch.bfloat16 else value
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array if array.dtype.kind in _NUMERIC_KINDS else None


def put_fitting(rows: Any, lane: int, value: Any, place: str = "observation") -> None:
    """Write `value`, a nest with the containers of `rows`, as row `lane` of a nest of arrays.

    Raises
    ------
    InputError
        A part is missing or unexpected, or a leaf does not fit (see `as_fitting`); the message
        names the lane and the part.
    """
    if isinstance(rows, np.ndarray):
        rows[lane] = as_fitting(value, rows.shape[1:], rows.dtype, f"lane {lane}'s {place}")
    elif isinstance(rows, dict):
        keys = value.keys() if isinstance(value, Mapping) else None
        if keys != rows.keys():
            told = type(value).__name__ if keys is None else f"the keys {list(keys)}"
            raise InputError(f"lane {lane}'s {place} must have the keys {list(rows)}, got {told}")
        for key, row in rows.items():
            put_fitting(row, lane, value[key], f"{place}[{key!r}]")
    elif isinstance(rows, (tuple, list)):
        if not isinstance(value, (tuple, list, np.ndarray)) or len(value) != len(rows):
            raise InputError(f"lane {lane}'s {place} must have {len(rows)} parts, got {value!r}")
        for number, (row, part) in enumerate(zip(rows, value, strict=True)):
            put_fitting(row, lane, part, f"{place}[{number}]")
    elif rows is not None:
        tensor = torch.as_tensor(value)
        if tensor.shape != rows.shape[1:] or not _widens(tensor.dtype, rows.dtype):
            raise InputError(
                f"lane {lane}'s {place} must be {tuple(rows.shape[1:])} {rows.dtype}, got "
                f"{tuple(tensor.shape)} {tensor.dtype}"
            )
        rows[lane] = tensor


def copy_fitting(target: torch.Tensor, value: Any, place: str) -> None:
    """Copy a tensor into `target`, which has its shape and a dtype that holds all its values.

    Raises
    ------
    InputError
        `value` is not a tensor, or has another shape, or a dtype with values that `target` cannot
        hold.
    """
    if (
        not isinstance(value, torch.Tensor)
        or value.shape != target.shape
        or not _widens(value.dtype, target.dtype)
    ):
        got = type(value).__name__
        if isinstance(value, torch.Tensor):
            got = f"{tuple(value.shape)} {value.dtype}"
        raise InputError(
            f"{place} must be a tensor {tuple(target.shape)} {target.dtype}, as in the first step, "
            f"got {got}"
        )
    target.copy_(value)


def as_actions(
    value: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, place: str
) -> torch.Tensor:
    """Return actions ``(n, ...)`` in the dtype of the action space, on the CPU, without gradients.

    Raises
    ------
    ActionError
        The shape is another, or the dtype cannot hold the values. Real numbers are rounded to the
        precision of a real `dtype`; whole numbers must keep their values.
    """
    if value.dtype is dtype and value.shape == shape:
        return value.detach().cpu()
    if value.shape != shape or not torch.can_cast(value.dtype, dtype):
        raise ActionError(
            f"{place} must be a tensor {tuple(shape)} {dtype}, got {tuple(value.shape)} "
            f"{value.dtype}"
        )
    value = value.detach().cpu()
    cast = value.to(dtype)
    if not dtype.is_floating_point and not torch.equal(cast.to(value.dtype), value):
        raise ActionError(
            f"{place} must be {dtype}, got {value.dtype} with values from {value.min()} to "
            f"{value.max()}, which {dtype} cannot hold"
        )
    return cast


def copy_actions(rows: Any, value: Any) -> None:
    """Copy an actor's actions into a nest of tensors, as `as_actions` has them."""
    if type(rows) is not torch.Tensor:
        map_nest(copy_actions, rows, value)
    elif type(value) is torch.Tensor and value.dtype is rows.dtype and value.shape == rows.shape:
        rows.copy_(value)
    else:
        rows.copy_(as_actions(value, rows.shape, rows.dtype, "the actor's actions"))


def _widens(dtype: torch.dtype, target: torch.dtype) -> bool:
    return dtype is target or torch.promote_types(dtype, target) is target
