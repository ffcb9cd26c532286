"""Copy the outputs of actors into buffers; raise an error rather than broadcast or overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from plangym_like.errors import ActionError, InputError
from plangym_like.vector.tree import tree_map


def copy_fitting(target: torch.Tensor, value: Any, place: str) -> None:
    """Copy `value` into `target`, which must have the same shape and a dtype that is wide enough.

    `place` is the name of `value` in error messages.

    Raises
    ------
    InputError
        `value` is not a tensor, its shape differs, or its dtype has values that the dtype of
        `target` cannot hold.
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


def as_actions(value: Any, shape: tuple[int, ...], dtype: torch.dtype, place: str) -> torch.Tensor:
    """Convert actions ``(n, ...)`` to the dtype of the action space, on the CPU, without gradients.

    If `dtype` is floating-point, values are rounded to its precision. Otherwise, no value changes.

    Raises
    ------
    ActionError
        `value` is not a tensor, its shape differs, `dtype` cannot hold its values, or `value` is
        floating-point and `dtype` is not.
    """
    if not isinstance(value, torch.Tensor):
        raise ActionError(
            f"{place} must be a tensor {tuple(shape)} {dtype}, got {type(value).__name__}"
        )
    if value.dtype is dtype and value.shape == shape:
        return value.detach().cpu()
    if value.shape != shape or not torch.can_cast(value.dtype, dtype):
        raise ActionError(
            f"{place} must be a tensor {tuple(shape)} {dtype}, got {tuple(value.shape)} "
            f"{value.dtype}"
        )
    value = value.detach().cpu()
    cast: torch.Tensor = value.to(dtype)
    # NumPy compares the two dtypes by value. Casting back could hide a change of sign.
    if not dtype.is_floating_point and not np.array_equal(cast.numpy(), value.numpy()):
        raise ActionError(
            f"{place} must be {dtype}, got {value.dtype} with values from {value.min()} to "
            f"{value.max()}, which {dtype} cannot hold"
        )
    return cast


def copy_actions(rows: Any, value: Any) -> None:
    """Convert an actor's actions as `as_actions` does, and copy them into the tree `rows`."""
    if type(rows) is not torch.Tensor:
        tree_map(copy_actions, rows, value)
    elif type(value) is torch.Tensor and value.dtype is rows.dtype and value.shape == rows.shape:
        rows.copy_(value)
    else:
        rows.copy_(as_actions(value, rows.shape, rows.dtype, "the actor's actions"))


def _widens(dtype: torch.dtype, target: torch.dtype) -> bool:
    return dtype is target or torch.promote_types(dtype, target) is target
