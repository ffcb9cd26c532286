"""Errors for actions that do not belong to the action space, with hints about common mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from plangym_like.errors import ActionError
from plangym_like.states import MAGIC


def wrong_shape(space: spaces.Space[Any], given: Any, lead: int) -> ActionError:
    """Return the error for actions with a wrong shape; `lead` is as in `spaces.as_actions`."""
    shape = tuple(space.shape or ())
    expected = ", ".join([*"NT"[:lead], *map(str, shape)])
    hint = _rows_hint(np.asarray(given))
    if not hint and not lead and np.ndim(given) > len(shape):
        hint = "; step takes one action, step_batch takes one for each row"
    return ActionError(
        f"actions of {space} must have shape ({expected}), got shape {np.shape(given)}{hint}"
    )


def wrong_dtype(space: spaces.Space[Any], given: Any) -> ActionError:
    """Return the error for actions of a dtype that does not fit `space`."""
    array = np.asarray(given)
    hint = ""
    if array.dtype.kind == "f":
        hint = "; it takes whole numbers: convert them with astype(int)"
    elif array.dtype.kind in "SU":
        hint = "; they are text"
    elif array.dtype == object and all(isinstance(each, int) for each in array.flat):
        hint = "; whole numbers must fit into 64 bits"
    elif array.ndim == 0:
        hint = f"; give an array or a list, not a {type(given).__name__}"
    return ActionError(f"actions of dtype {array.dtype} do not fit the action space {space}{hint}")


def not_in_space(
    space: spaces.Space[Any], batch: NDArray[Any], good: NDArray[np.bool_], lead: int
) -> ActionError:
    """Return the error that names the first action of `batch` outside `space`, and its row."""
    row = tuple(int(x) for x in np.argwhere(~good)[0][:lead])
    place = f" (row {row if lead > 1 else row[0]})" if lead else ""
    return ActionError(
        f"action {batch[row].tolist()}{place} is not in the action space {space}{_rows_hint(batch)}"
    )


def _rows_hint(actions: NDArray[Any]) -> str:
    """Return a hint if `actions` are state rows; otherwise an empty string."""
    if actions.dtype == np.uint8 and actions.ndim and actions.size:
        if actions[(0,) * (actions.ndim - 1)][:4].tobytes() == MAGIC:
            return "; these are states: the first argument is the actions, the second the states"
    return ""
