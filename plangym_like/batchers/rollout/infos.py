"""The numbers in environments' infos: columns, and extras for values that fit no column.

The infos of the first reset determine the columns of a buffer. If infos of steps have another key,
its values get a column outside the buffer, which is sent as an `Extra`. A value that does not fit
its column, such as 0.3 in a column of integers, is also sent as an `Extra`. When the fragment is
assembled, `EnvInfos` widens columns or adds them. No value is ever rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.trees import as_torch_dtype, tensor_layout
from plangym_like.errors import InputError
from plangym_like.vector.tree import as_numbers, layout_of

Path = tuple[Any, ...]
_SCALARS = frozenset((int, float, bool, np.float64, np.float32, np.int64, np.int32, np.bool_))


class Extra(NamedTuple):
    """Values of one key of the infos: for steps from `t` on, and for lanes from `lane` on.

    `path` holds the keys that lead to the values, which have the shape ``(steps, lanes, ...)``.
    """

    path: Path
    t: int
    lane: int
    values: NDArray[Any]


class Unplaced:
    """The infos of one fragment that the columns of its buffer cannot hold.

    Parameters
    ----------
    size : (int, int)
        The numbers of steps T and of lanes B in the fragment.

    Attributes
    ----------
    columns : dict of Path to array ``(T, B, ...)``
        New columns, for keys that the buffer lacks.
    values : list of Extra
        Values that do not fit their column.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self._size = size
        self.columns: dict[Path, NDArray[Any]] = {}
        self.values: list[Extra] = []

    def put(self, path: Path, t: int, lane: int, array: NDArray[Any]) -> None:
        """Make a column for `path`, and write `array` into it."""
        column = self.columns[path] = np.zeros((*self._size, *array.shape), array.dtype)
        column[t, lane] = array

    def extras(self) -> list[Extra]:
        """Return the new columns, and then the values, which must be written after them."""
        return [Extra(path, 0, 0, held) for path, held in self.columns.items()] + self.values


def layout_of_infos(infos: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the layout of the infos that are numbers, arrays of numbers, or trees of these."""
    layouts = {}
    for key, value in infos.items():
        try:
            layouts[key] = tensor_layout(layout_of(value))
        except InputError:
            continue
    return layouts


def note_infos(
    columns: Any, infos: Any, t: int, lane: int, unplaced: Unplaced, path: Path = ()
) -> None:
    """Write the info of one lane at step `t` into `columns`.

    Values that fit no column are written into `unplaced`. Values that are not numbers are left out.

    Parameters
    ----------
    columns : dict
        A tree of arrays or tensors ``(T, B, ...)``.

    Raises
    ------
    InputError
        The shape or the parts of a value differ from those of its column.
    """
    for key, value in infos.items():
        column = columns.get(key)
        if column is None:
            column = unplaced.columns.get((*path, key))
        if type(column) is np.ndarray and type(value) in _SCALARS and column.ndim == 2:
            if _put_number(column, t, lane, value):
                continue
        if value is not None:
            _note(column, value, t, lane, unplaced, (*path, key))


def _note(column: Any, value: Any, t: int, lane: int, unplaced: Unplaced, path: Path) -> None:
    if isinstance(value, Mapping) and (column is None or isinstance(column, dict)):
        note_infos(column or {}, value, t, lane, unplaced, path)
        return
    if isinstance(column, (tuple, list)):
        if not isinstance(value, (tuple, list, np.ndarray)) or len(value) != len(column):
            raise _other_shape(path, lane, f"{len(column)} parts", repr(value))
        parts = dict(enumerate(value))
        note_infos(dict(enumerate(column)), parts, t, lane, unplaced, path)
        return
    array = as_numbers(value)
    if array is None:
        return
    if isinstance(column, dict):
        raise _other_shape(path, lane, f"the keys {list(column)}", repr(value))
    if column is not None:
        if tuple(column.shape[2:]) != array.shape:
            told = f"the shape {tuple(column.shape[2:])}"
            raise _other_shape(path, lane, told, f"the shape {array.shape}")
        if _put_array(column, t, lane, array):
            return
    try:
        as_torch_dtype(array.dtype)
    except InputError:
        return
    if column is None:
        unplaced.put(path, t, lane, array)
    else:
        # A copy, since the environment may change the array.
        unplaced.values.append(Extra(path, t, lane, array[None, None].copy()))


def _put_number(column: NDArray[Any], t: int, lane: int, value: Any) -> bool:
    """Write a number if the column can hold it exactly, and return whether it can."""
    if isinstance(value, np.generic):
        value = value.item()
    try:
        column[t, lane] = value
    except (OverflowError, ValueError):
        return False
    # Python compares ints and floats exactly.
    held = column.item(t, lane)
    if held == value or (held != held and value != value):
        return True
    column[t, lane] = 0
    return False


def _put_array(column: NDArray[Any], t: int, lane: int, array: NDArray[Any]) -> bool:
    """Write an array if the column can hold it exactly, and return whether it can."""
    with np.errstate(all="ignore"):
        cast = array.astype(column.dtype)
        back = cast.astype(array.dtype)
    # `back` is compared too, because NumPy may round an integer when it compares it with a float.
    if not (((cast == array) & (back == array)) | ((cast != cast) & (array != array))).all():
        return False
    column[t, lane] = cast
    return True


def _other_shape(path: Path, lane: int | None, first: str, now: str) -> InputError:
    owner = "the" if lane is None else f"lane {lane}'s"
    return InputError(
        f"{owner} info {_named(path)} had {first} at the beginning, and {now} now. A "
        "fragment holds arrays of one shape: keep the shape, or give infos=False"
    )


def _named(path: Path) -> str:
    return repr(path[0]) + "".join(f"[{key!r}]" for key in path[1:])


class EnvInfos:
    """Writes `Extra` values into the columns of fragments, in the owner's process.

    In all later fragments, widened columns keep their dtype, and added columns are present.
    """

    def __init__(self) -> None:
        self._dtypes: dict[Path, torch.dtype] = {}
        self._late: dict[Path, tuple[int, ...]] = {}

    def complete(self, env: Any, extras: Sequence[Extra], size: tuple[int, int]) -> Any:
        """Return the tree `env` of tensors ``(T, B, ...)`` with `extras` written into it.

        Raises
        ------
        InputError
            The values of one key differ in shape, or no dtype can hold them all.
        """
        values: dict[Path, list[Extra]] = {path: [] for path in self._dtypes}
        for extra in extras:
            values.setdefault(extra.path, []).append(extra)
        for path, found in values.items():
            column = _get(env, path)
            if column is None:
                shape = self._late.setdefault(path, found[0].values.shape[2:] if found else ())
                dtype = self._dtypes.get(path) or torch.from_numpy(found[0].values).dtype
                column = torch.zeros((*size, *shape), dtype=dtype)
            env = _with(env, path, self._widened(path, column, found))
        return env

    def _widened(self, path: Path, column: torch.Tensor, extras: Sequence[Extra]) -> torch.Tensor:
        """Return a copy of `column` with `extras` written into it, in a dtype that holds both."""
        dtype = self._dtypes.get(path, column.dtype)
        for extra in extras:
            dtype = _common(dtype, torch.from_numpy(extra.values).dtype)
        self._dtypes[path] = dtype
        wide = column.to(dtype, copy=True)
        fits = _same_values(wide, column)
        for extra in extras:
            values = torch.from_numpy(extra.values)
            steps, lanes, *shape = values.shape
            if tuple(shape) != wide.shape[2:]:
                told = f"the shape {tuple(wide.shape[2:])}"
                one = extra.lane if steps == lanes == 1 else None
                raise _other_shape(path, one, told, f"the shape {tuple(shape)}")
            place = wide[extra.t : extra.t + steps, extra.lane : extra.lane + lanes]
            place[...] = values
            fits = fits and _same_values(place, values)
        if not fits:
            raise InputError(
                f"no dtype holds all values of {_named(path)} in the environments' infos "
                f"({column.dtype} at the beginning); keep one dtype, or give infos=False"
            )
        return wide


def _common(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    """Return the common dtype by NumPy's rules; for example, int64 and float32 give float64."""
    arrays = []
    for dtype in (one, other):
        try:
            arrays.append(torch.empty(0, dtype=dtype).numpy().dtype)
        except TypeError:
            return torch.float64
    return torch.from_numpy(np.empty(0, np.result_type(*arrays))).dtype


def _same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether `one`, which may have a wider dtype, holds the same numbers as `other`."""
    back = one.to(other.dtype)
    same = (back == other) | (other != other)
    if not other.dtype.is_floating_point and one.dtype.is_floating_point:
        # Not all integers above 2**53 are exact in float64.
        same &= one.abs() <= 2.0**53
    return bool(same.all())


def _get(tree: Any, path: Path) -> Any:
    for key in path:
        if isinstance(tree, dict):
            tree = tree.get(key)
        elif isinstance(tree, (tuple, list)):
            tree = tree[key]
        else:
            return None
    return tree


def _with(tree: Any, path: Path, tensor: torch.Tensor) -> Any:
    """Return a copy of `tree` with `tensor` under `path`."""
    if not path:
        return tensor
    key, rest = path[0], path[1:]
    if isinstance(tree, (tuple, list)):
        parts = [_with(part, rest, tensor) if i == key else part for i, part in enumerate(tree)]
        if hasattr(tree, "_fields"):
            return type(tree)(*parts)
        return tuple(parts) if isinstance(tree, tuple) else parts
    inner = dict(tree or {})
    inner[key] = _with(inner.get(key), rest, tensor)
    return inner
