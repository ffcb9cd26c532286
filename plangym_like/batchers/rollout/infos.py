"""The numbers in environments' infos, as arrays with one value for each step and lane.

`InfoColumns` collects those of one group during a fragment; `FragmentInfos` joins the groups'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.trees import as_torch_dtype
from plangym_like.errors import InputError
from plangym_like.vector.tree import as_numbers

# The keys that lead to a value in nested infos.
Path = tuple[Any, ...]
Columns = dict[Path, NDArray[Any]]

_DTYPES = {
    kind: np.dtype(kind)
    for kind in (int, float, bool, np.float64, np.float32, np.int64, np.int32, np.bool_)
}


class InfoColumns:
    """The numbers in the infos of T steps of B lanes.

    Attributes
    ----------
    columns : dict of Path to array ``(T, B, ...)``
        0 where a step's info lacks the key. The dtype holds all values by NumPy's rules of
        promotion: 0.5 among integers makes a column of float64.
    """

    def __init__(self, num_steps: int, num_lanes: int) -> None:
        self._size = num_steps, num_lanes
        self.columns: Columns = {}

    def note(self, infos: Mapping[Any, Any], t: int, lane: int, path: Path = ()) -> None:
        """Write the numbers in the info of one lane at step `t`; leave out everything else.

        Raises
        ------
        InputError
            The shape of an array differs from an earlier one.
        """
        for key, value in infos.items():
            place = (*path, key)
            column = self.columns.get(place)
            # The usual case, in less time than the general one.
            if column is not None and _DTYPES.get(type(value)) is column.dtype:
                try:
                    column[t, lane] = value
                    continue
                except OverflowError:
                    pass
            if isinstance(value, Mapping):
                self.note(value, t, lane, place)
            else:
                self._note(place, column, value, t, lane)

    def _note(self, path: Path, column: NDArray[Any] | None, value: Any, t: int, lane: int) -> None:
        array = as_numbers(value)
        if array is None:
            return
        try:
            as_torch_dtype(array.dtype)
        except InputError:
            return
        if column is None:
            column = np.zeros((*self._size, *array.shape), array.dtype)
        elif column.shape[2:] != array.shape:
            raise _other_shape(path, column.shape[2:], array.shape, lane)
        column = column.astype(np.result_type(column.dtype, array.dtype), copy=False)
        column[t, lane] = array
        self.columns[path] = column


class FragmentInfos:
    """Joins the columns of groups, in the owner's process.

    A key is present from the first fragment in which it occurs, and dtypes never become narrower.
    """

    def __init__(self) -> None:
        # For each key, zeros in the form of one value.
        self._known: Columns = {}

    def join(self, groups: Sequence[Columns], num_steps: int, num_lanes: int) -> dict[Any, Any]:
        """Return the infos of all groups as a tree of tensors ``(T, B, ...)``.

        Parameters
        ----------
        groups : sequence of dict
            The `InfoColumns.columns` of each group.
        num_steps, num_lanes : int
            T, and the number of lanes of each group.

        Raises
        ------
        InputError
            The shapes of two groups or fragments differ, or a key leads to a number here and to
            more keys there.
        """
        for columns in groups:
            for path, column in columns.items():
                known = self._known.get(path, np.zeros(column.shape[2:], column.dtype))
                if known.shape != column.shape[2:]:
                    raise _other_shape(path, known.shape, column.shape[2:])
                self._known[path] = known.astype(np.result_type(known.dtype, column.dtype))
        tree: dict[Any, Any] = {}
        for path, known in self._known.items():
            parts = [
                columns[path]
                if path in columns
                else np.zeros((num_steps, num_lanes, *known.shape), known.dtype)
                for columns in groups
            ]
            whole = np.concatenate(parts, 1).astype(known.dtype, copy=False)
            _put(tree, path, torch.from_numpy(whole))
        return tree


def _put(tree: Any, path: Path, value: torch.Tensor) -> None:
    for key in path[:-1]:
        if isinstance(tree, dict):
            tree = tree.setdefault(key, {})
    if not isinstance(tree, dict) or isinstance(tree.get(path[-1]), dict):
        raise InputError(
            f"the info {_named(path)} is a number in one step and a dict in another: keep one "
            "kind, or give infos=False"
        )
    tree[path[-1]] = value


def _other_shape(path: Path, first: Any, now: Any, lane: int | None = None) -> InputError:
    owner = "the" if lane is None else f"lane {lane}'s"
    return InputError(
        f"{owner} info {_named(path)} had the shape {tuple(first)} before, and {tuple(now)} now. A "
        "fragment holds arrays of one shape: keep the shape, or give infos=False"
    )


def _named(path: Path) -> str:
    return repr(path[0]) + "".join(f"[{key!r}]" for key in path[1:])
