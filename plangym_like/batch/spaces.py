"""Batches of observations and actions as nested arrays, according to Gymnasium spaces.

``Box``, ``Discrete``, ``MultiDiscrete`` and ``MultiBinary`` are leaves: N elements are one array
``(N, *shape)``. Elements of other spaces (``Text``, ``Graph``, ``Sequence``, ``OneOf``) have no
fixed size, so N of them are an array ``(N,)`` of Python objects; in results, a list. ``Dict`` and
``Tuple`` are batched as in Gymnasium: as trees of such arrays with the same structure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from plangym_like.batch.ownership import owned
from plangym_like.errors import ActionError, ObservationError

_OBJECT, _INT64 = np.dtype(object), np.dtype(np.int64)
LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
# The kind of a space's dtype -> the kinds of numbers that its observations may have.
_CASTS = {"f": "biuf", "i": "biu", "u": "biu", "b": "biu"}


def is_leaf(space: spaces.Space[Any]) -> bool:
    """Return whether N elements of `space` are one array ``(N, *shape)``."""
    return isinstance(space, LEAVES)


def leaves(space: spaces.Space[Any]) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return the shape and dtype of each leaf, in order; a part without a fixed size is an object.

    >>> leaves(spaces.Dict(a=spaces.Text(3), b=spaces.Box(0, 1, (2,))))
    [((), dtype('O')), ((2,), dtype('float32'))]
    """
    if isinstance(space, LEAVES):
        assert space.dtype is not None and space.shape is not None
        # NumPy's own object for this dtype, which arrays have: a copied space has a copy of it, and
        # two objects take longer to compare.
        return [(tuple(space.shape), np.dtype(np.dtype(space.dtype).str))]
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return [((), _OBJECT)]
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
    return [leaf for part in parts for leaf in leaves(part)]


def build(space: spaces.Space[Any], arrays: Iterator[Any]) -> Any:
    """Return the tree of `space` with its leaves taken from `arrays`, in the order of `leaves`."""
    if isinstance(space, spaces.Dict):
        return {key: build(part, arrays) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple([build(part, arrays) for part in space.spaces])
    return next(arrays)


def flatten(space: spaces.Space[Any], tree: Any) -> list[Any]:
    """Return the leaves of `tree`, a batch of `space`; the inverse of :func:`build`."""
    if isinstance(space, spaces.Dict):
        return [x for key, part in space.spaces.items() for x in flatten(part, tree[key])]
    if isinstance(space, spaces.Tuple):
        parts = zip(space.spaces, tree, strict=True)
        return [x for part, value in parts for x in flatten(part, value)]
    return [tree]


def empty(space: spaces.Space[Any], lead: tuple[int, ...]) -> Any:
    """Return an uninitialised batch of `space` with the leading shape `lead`.

    >>> empty(spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Text(5)), (3,))["b"]
    array([None, None, None], dtype=object)
    """
    found = [np.empty((*lead, *shape), dtype) for shape, dtype in leaves(space)]
    return build(space, iter(found))


def as_row(space: spaces.Space[Any], obs: Any) -> Any:
    """Return the observation `obs` with the dtypes that it has in a batch of `space`.

    Raises
    ------
    ObservationError
        See `put`.
    """
    batch = empty(space, (1,))
    put(space, batch, 0, obs)
    return take(batch, 0)


def with_lists(space: spaces.Space[Any], batch: Any) -> Any:
    """Return `batch` with lists in place of arrays of objects."""
    parts = flatten(space, batch)
    if not any(part.dtype.hasobject for part in parts):
        return batch
    return build(space, iter([p.tolist() if p.dtype.hasobject else p for p in parts]))


def put(space: spaces.Space[Any], batch: Any, index: int | tuple[int, ...], value: Any) -> None:
    """Write `value`, an observation of `space`, as row `index` of `batch`.

    Raises
    ------
    ObservationError
        The keys, shape or dtype of `value` do not match the space; bounds are not checked.
    """
    if isinstance(batch, np.ndarray):
        lead = 1 if isinstance(index, int) else len(index)
        kind = type(value)
        if kind is int:  # a number of a `Discrete` space
            fits = batch.ndim == lead and batch.dtype == np.int64 and -(2**63) <= value < 2**63
        elif kind is np.ndarray or isinstance(value, np.generic):
            fits = value.dtype == batch.dtype and value.shape == batch.shape[lead:]
        else:
            fits = kind is str and batch.dtype.hasobject
        if not fits or (kind is np.ndarray and batch.dtype.hasobject):
            value = fitted(space, value, batch.shape[lead:], batch.dtype)
        batch[index] = value
    else:
        parts: Any = space.spaces  # type: ignore[attr-defined]
        if isinstance(batch, dict):
            _check_keys(space, value)
            keys = parts
        else:
            _check_length(space, value)
            keys = range(len(parts))
        key = None
        try:
            for key in keys:
                put(parts[key], batch[key], index, value[key])
        except ObservationError as error:
            raise ObservationError(error.args[0], (key, *error.path)) from None


def parts_of(batch: Any) -> list[tuple[Any, NDArray[Any], np.dtype[Any], tuple[int, ...]]]:
    """Return the arrays of a dict or tuple, for `put_parts`: key, array, dtype and shape of a row.

    Return an empty list if `batch` is an array, or if a part is no array.
    """
    if isinstance(batch, np.ndarray):
        return []
    parts = list(batch.items() if isinstance(batch, dict) else enumerate(batch))
    if not all(isinstance(part, np.ndarray) for _, part in parts):
        return []
    return [(key, array, array.dtype, array.shape[1:]) for key, array in parts]


def put_parts(batch: Any, parts: list[Any], index: int, value: Any) -> bool:
    """Write `value`, a dict or tuple, as `put` does but in less time, to ``parts_of(batch)``.

    Return False if `value` or a part of it does not have the type of its batch: `put` must be
    called.
    """
    if not parts or type(value) is not type(batch) or len(value) != len(parts):
        return False
    try:
        for key, array, dtype, shape in parts:
            part = value[key]
            kind = type(part)
            if kind is np.ndarray or kind is np.int64:
                fits = part.dtype is dtype and part.shape == shape and dtype is not _OBJECT
            elif kind is int:
                fits = dtype is _INT64 and shape == () and -(2**63) <= part < 2**63
            else:
                fits = kind is str and dtype is _OBJECT
            if not fits:
                return False
            array[index] = part
    except (KeyError, TypeError):
        return False
    return True


def _check_keys(space: Any, value: Any) -> None:
    if type(value) is not dict and not isinstance(value, Mapping):
        raise ObservationError(f"the observation is {_told(value)}, not a dict as in {space}")
    if value.keys() != space.spaces.keys():
        missing = [key for key in space.spaces if key not in value]
        extra = [key for key in value if key not in space.spaces]
        raise ObservationError(
            f"the observation has other keys than its space: it lacks {missing}, and {extra} are "
            f"not in {space}"
        )


def _check_length(space: Any, value: Any) -> None:
    if not isinstance(value, (tuple, list)) and not (isinstance(value, np.ndarray) and value.ndim):
        raise ObservationError(f"the observation is {_told(value)}, not a tuple as in {space}")
    if len(value) != len(space.spaces):
        raise ObservationError(
            f"the observation has {len(value)} parts, but {len(space.spaces)} are in {space}"
        )


def fitted(
    space: spaces.Space[Any], value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Any:
    """Return the observation `value` as an array of `shape` and `dtype`; see `as_dtype`.

    If `dtype` is ``object``, return a copy of `value`.

    Raises
    ------
    ObservationError
        The observation does not fit; the message names `space`.
    """
    if dtype.hasobject:
        if value is None:
            raise ObservationError(f"the observation is None, which is not in {space}")
        return owned(value)
    try:
        given = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ObservationError(f"the observation is not an array as in {space}: {error}") from error
    if given.dtype.kind not in _CASTS.get(dtype.kind, dtype.kind):
        raise ObservationError(
            f"the observation is {_told(value)}, which cannot become {dtype} as in {space}"
        )
    if given.shape != shape:
        raise ObservationError(
            f"the observation has shape {given.shape}, but the shape is {shape} in {space}"
        )
    fitting = as_dtype(given, dtype)
    if fitting is None:
        wrong = next(one for one in given.ravel() if as_dtype(one, dtype) is None)
        raise ObservationError(
            f"the observation holds {wrong}, which {dtype}, the dtype of {space}, cannot represent"
        )
    return fitting


def as_dtype(numbers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return `numbers` converted to `dtype`, or ``None`` if `dtype` cannot hold them.

    If `dtype` is a float type, numbers may be rounded to its precision, but finite numbers must
    stay finite. If `dtype` is an integer type or bool, all numbers must keep their values.

    >>> as_dtype(np.array([1, 300]), np.dtype(np.uint8)) is None
    True
    """
    if np.can_cast(numbers.dtype, dtype):
        return numbers.astype(dtype, copy=False)
    if dtype.kind in "fc" and (numbers.dtype.kind != "c" or dtype.kind == "c"):
        try:
            with np.errstate(over="raise"):
                return numbers.astype(dtype)
        except FloatingPointError:
            return None
    with np.errstate(all="ignore"):
        cast = numbers.astype(dtype)
    return cast if np.array_equal(cast, numbers) else None


def _told(value: Any) -> str:
    """Return a short description of `value`."""
    if value is None:
        return "None"
    dtype = getattr(value, "dtype", None)
    return type(value).__name__ if dtype is None else f"an array of {dtype}"


def take(batch: Any, index: int | tuple[int, ...]) -> Any:
    """Return row `index` of `batch`, a tree of arrays and lists."""
    if isinstance(batch, dict):
        return {key: take(inner, index) for key, inner in batch.items()}
    if isinstance(batch, tuple):
        return tuple(take(inner, index) for inner in batch)
    return batch[index]


def as_actions(
    space: spaces.Space[Any], actions: Any, lead: int = 1, out_of_bounds: str = "pass"
) -> Any:
    """Return `actions` as one batch of `space`, after checking each of them.

    Actions of a `Box` keep the dtype that ``numpy.asarray`` gives them, because an environment
    computes in the precision of its actions. Actions of other spaces get the dtype of the space.

    Parameters
    ----------
    space : gymnasium.Space
        The action space.
    actions : array or sequence
        Either a batch (`lead` leading axes) or, with ``lead=1``, a single action, which becomes a
        batch of one.
    lead : int
        The number of leading axes: 1 for a batch ``(N, ...)``, 2 for rollouts ``(N, T, ...)``, or 0
        for a single action, which is not batched.
    out_of_bounds : {"pass", "raise", "clip"}
        What to do with finite numbers beyond the bounds of a `Box`: leave them unchanged (as in
        Gymnasium), raise an error, or clip them like Gymnasium's ``ClipAction``.

    Raises
    ------
    ActionError
        An action is not in the space; the message names the first such action and its row.
    """
    if isinstance(space, LEAVES):
        return _leaf_actions(space, actions, lead, out_of_bounds)
    return _object_actions(space, actions, lead, out_of_bounds)


def _leaf_actions(
    space: spaces.Space[Any], actions: Any, lead: int, out_of_bounds: str
) -> NDArray[Any]:
    assert space.dtype is not None and space.shape is not None
    shape, dtype = tuple(space.shape), np.dtype(space.dtype)
    try:
        batch = np.asarray(actions)
    except ValueError as error:
        raise ActionError(f"actions have different shapes; the space is {space}") from error
    if lead and batch.size == 0 and batch.shape[:1] == (0,):
        horizon = () if lead == 1 else (batch.shape[1] if batch.ndim > 1 else 0,)
        return np.empty((0, *horizon, *shape), dtype)
    if batch.ndim == len(shape) and lead == 1:
        batch = batch[None]
    if batch.ndim != len(shape) + lead or batch.shape[lead:] != shape:
        raise _wrong_shape(space, actions, lead)
    kinds = {"f": "iuf", "b": "biu"}.get(dtype.kind, "iu")
    if isinstance(space, spaces.MultiBinary):
        kinds = "biu"
    if batch.dtype.kind not in kinds or batch.dtype.itemsize > 8:
        raise _wrong_dtype(space, actions)
    good: Any
    if isinstance(space, spaces.Box):
        if out_of_bounds == "clip":
            batch = np.clip(batch, space.low, space.high)
        dtype = _native(batch.dtype)
        good = _within(space, batch, out_of_bounds)
    elif isinstance(space, spaces.Discrete):
        low = int(space.start)
        good = (batch >= low) & (batch < low + int(space.n))
    elif isinstance(space, spaces.MultiDiscrete):
        # In 64 bits, because the sum may not fit into the dtype of the space.
        start = np.asarray(space.start, np.int64)
        good = (batch >= start) & (batch < start + np.asarray(space.nvec, np.int64))
    else:
        good = (batch == 0) | (batch == 1)
    if np.count_nonzero(good) != good.size:
        raise _not_in_space(space, batch, good, lead)
    checked: NDArray[Any] = np.asarray(batch, dtype, order="C")[()]
    return checked


@lru_cache(maxsize=32)
def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the same native dtype object for all dtypes of one kind and size."""
    return np.dtype(dtype.str[1:])


def _within(space: spaces.Box, batch: NDArray[Any], out_of_bounds: str) -> Any:
    """Return a mask of the numbers of `batch` that may be passed to an environment."""
    strict = out_of_bounds == "raise"
    if not strict:
        finite = np.isfinite(batch)
        if np.count_nonzero(finite) == finite.size:
            return finite
    if strict and batch.dtype.kind == "f":
        # A bound in double precision may be slightly beyond the same bound in single precision.
        with np.errstate(over="ignore"):
            batch = batch.astype(space.dtype, copy=False)
    inside = (batch >= space.low) & (batch <= space.high)
    return inside if strict else inside | finite


def _object_actions(space: spaces.Space[Any], actions: Any, lead: int, out_of_bounds: str) -> Any:
    if lead == 0:
        return _one_action(space, actions, out_of_bounds, "")
    if lead == 1 and not isinstance(actions, (np.ndarray, list)):
        with contextlib.suppress(ActionError):  # otherwise, it is a batch
            return [_one_action(space, actions, out_of_bounds, "")]
    if isinstance(actions, (np.ndarray, list)):
        rows: list[Any] = list(actions)
    elif isinstance(actions, (dict, tuple)):
        try:
            rows = _unstacked(space, actions)
            rows = rows if lead == 1 else [_unstacked(space, row) for row in rows]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            message = f"actions are not a batch of {space}: its parts must be arrays of one length"
            raise ActionError(message) from error
    else:
        raise ActionError(f"expected a list of actions of {space}, got {type(actions).__name__}")
    for index, row in enumerate(rows):
        place = f" (row {index})"
        if lead == 1:
            rows[index] = _one_action(space, row, out_of_bounds, place)
        elif isinstance(row, (list, tuple, np.ndarray)):
            rows[index] = [_one_action(space, step, out_of_bounds, place) for step in row]
        else:
            raise ActionError(f"row {index} must be a sequence of actions of {space}, got {row!r}")
    return rows


def _unstacked(space: spaces.Space[Any], batch: Any) -> list[Any]:
    """Return the rows of a tree of arrays; raise `ValueError` if the arrays differ in length."""
    (count,) = {len(part) for part in flatten(space, batch)}
    return [take(batch, index) for index in range(count)]


def _one_action(space: spaces.Space[Any], action: Any, out_of_bounds: str, place: str) -> Any:
    """Check all parts of an action that is not an array; return the action."""
    try:
        return _checked_parts(space, action, out_of_bounds)
    except ActionError as error:
        raise ActionError(f"action {action!r}{place} is not in the action space {space}") from error


def _checked_parts(space: spaces.Space[Any], action: Any, out_of_bounds: str) -> Any:
    if isinstance(space, spaces.Box):
        return _leaf_actions(space, action, 0, out_of_bounds)
    if isinstance(space, spaces.Dict):
        if isinstance(action, Mapping) and action.keys() == space.spaces.keys():
            return {
                key: _checked_parts(part, action[key], out_of_bounds)
                for key, part in space.spaces.items()
            }
    elif isinstance(space, spaces.Tuple):
        if isinstance(action, (tuple, list)) and len(action) == len(space.spaces):
            pairs = zip(space.spaces, action, strict=True)
            return tuple([_checked_parts(part, inner, out_of_bounds) for part, inner in pairs])
    elif space.contains(action):
        return action
    raise ActionError(f"{action!r} is not in {space}")


def _wrong_shape(space: spaces.Space[Any], given: Any, lead: int) -> ActionError:
    """Return the error for actions with a wrong shape; `lead` is as in `as_actions`."""
    shape = tuple(space.shape or ())
    expected = ", ".join([*"NT"[:lead], *map(str, shape)])
    several = not lead and np.ndim(given) > len(shape)
    hint = "; step takes one action, step_batch takes one for each row" if several else ""
    return ActionError(
        f"actions of {space} must have shape ({expected}), got shape {np.shape(given)}{hint}"
    )


def _wrong_dtype(space: spaces.Space[Any], given: Any) -> ActionError:
    """Return the error for actions of a dtype that does not fit `space`."""
    array = np.asarray(given)
    hint = ""
    if array.dtype.kind == "f":
        hint = "; it takes whole numbers: convert them with astype(int)"
    elif array.ndim == 0:
        hint = f"; give an array or a list, not a {type(given).__name__}"
    return ActionError(f"actions of dtype {array.dtype} do not fit the action space {space}{hint}")


def _not_in_space(
    space: spaces.Space[Any], batch: NDArray[Any], good: NDArray[np.bool_], lead: int
) -> ActionError:
    """Return the error that names the first action of `batch` outside `space`, and its row."""
    row = tuple(int(x) for x in np.argwhere(~good)[0][:lead])
    place = f" (row {row if lead > 1 else row[0]})" if lead else ""
    return ActionError(f"action {batch[row].tolist()}{place} is not in the action space {space}")
