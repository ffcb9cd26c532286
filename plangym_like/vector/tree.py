"""Trees: dicts, tuples, named tuples and lists of leaves, nested to any depth.

Observations, actions, recurrent states and infos are trees. A leaf is an array, a tensor, a number
or, in a layout, a `Leaf`. ``None`` and empty containers are trees without leaves.

>>> layout = layout_of({"image": np.zeros((2, 2), np.uint8), "speed": 0.5})
>>> layout["image"]
Leaf(shape=(2, 2), dtype=dtype('uint8'))
>>> rows = zeros(layout, (3,))
>>> take(rows, 1)["image"].tolist()
[[0, 0], [0, 0]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.ownership import owned
from plangym_like.batch.spaces import as_dtype
from plangym_like.batch.spaces import is_leaf as is_leaf_space
from plangym_like.errors import InputError

NUMERIC_KINDS = "biufc"


class Leaf(NamedTuple):
    """The shape and dtype of one array or tensor of a tree, without its leading axes.

    `dtype` is a NumPy dtype in the layouts of lanes, and a torch dtype in layouts of tensors.
    """

    shape: tuple[int, ...]
    dtype: Any


# The layout of an object that is not an array, such as an element of a `Text` or `Graph` space.
OBJECT = Leaf((), np.dtype(object))


def tree_map(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Call `fn` with each leaf and its counterparts in `others`; return the tree of the results.

    The result has the containers of `tree`, with mappings as plain dicts. The trees `others` must
    have the same keys and lengths as `tree`, but may have subtrees where `tree` has leaves.
    """
    if isinstance(tree, Leaf):
        return fn(tree, *others)
    if isinstance(tree, Mapping):
        return {key: tree_map(fn, tree[key], *(other[key] for other in others)) for key in tree}
    if isinstance(tree, (tuple, list)):
        inner = [tree_map(fn, *parts) for parts in zip(tree, *others, strict=True)]
        return _sequence_like(tree, inner)
    return None if tree is None else fn(tree, *others)


def _sequence_like(example: Any, parts: list[Any]) -> Any:
    """Return `parts` as a tuple, named tuple or list, of the same type as `example`."""
    if hasattr(example, "_fields"):
        return type(example)(*parts)
    return tuple(parts) if isinstance(example, tuple) else parts


def with_axes(layout: Any, lead: Sequence[int]) -> Any:
    """Return a layout with the axes `lead` added before the axes of each leaf.

    >>> with_axes({"x": Leaf((3,), "f")}, (8, 2))
    {'x': Leaf(shape=(8, 2, 3), dtype='f')}
    """
    return tree_map(lambda leaf: Leaf((*lead, *leaf.shape), leaf.dtype), layout)


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of `tree` in order.

    >>> tree_leaves({"a": (1, 2), "b": [3, {"c": 4}], "d": None})
    [1, 2, 3, 4]
    """
    found: list[Any] = []
    tree_map(found.append, tree)
    return found


def tree_unflatten(tree: Any, values: Iterator[Any]) -> Any:
    """Return a tree with the containers of `tree`, and with leaves taken from `values`."""
    return tree_map(lambda _: next(values), tree)


def is_leaf(tree: Any) -> bool:
    """Return whether `tree` is a single leaf, not a container."""
    return tree is not None and (
        isinstance(tree, Leaf) or not isinstance(tree, (Mapping, tuple, list))
    )


def named_parts(tree: Any) -> dict[str, Any] | None:
    """Return the parts of a container by name, ``None`` for a leaf; parts of a tuple are numbered.

    ``None`` is a container without parts.

    >>> named_parts((1, {"a": 2}))
    {'0': 1, '1': {'a': 2}}
    """
    if isinstance(tree, Mapping):
        return {str(key): part for key, part in tree.items()}
    if is_leaf(tree):
        return None
    tree = () if tree is None else tree
    names = getattr(tree, "_fields", map(str, range(len(tree))))
    return dict(zip(names, tree, strict=True))


def take(rows: Any, index: Any) -> Any:
    """Return the tree of ``leaf[index]`` for every leaf of `rows`."""
    if type(rows) is np.ndarray:
        return rows[index]
    return tree_map(lambda leaf: leaf[index], rows)


def as_array(value: Any) -> NDArray[Any]:
    """Return a number, list or tensor as an array; ``bfloat16`` becomes ``float32``.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        NumPy or torch cannot convert the value.
    """
    if hasattr(value, "detach"):  # a tensor of torch, which is not imported here
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    return np.asarray(value)


def zeros(layout: Any, lead: Sequence[int]) -> Any:
    """Return a tree of arrays ``(*lead, *leaf.shape)`` filled with zeros."""
    return tree_map(lambda leaf: np.zeros((*lead, *leaf.shape), leaf.dtype), layout)


def layout_of(
    example: Any, space: gymnasium.Space[Any] | None = None, *, objects: bool = False
) -> Any:
    """Return the tree of `Leaf` that describes `example`.

    Parameters
    ----------
    example : tree
        A tree of arrays, tensors and numbers.
    space : gymnasium.Space, optional
        The space of `example`. If its elements are arrays of one shape, shape and dtype are taken
        from the space; `plangym_like.vector.tree` checks that values have them.
    objects : bool
        Whether to use a leaf of dtype ``object`` for a space whose elements are not arrays of one
        shape, as Gymnasium's vector API does.

    Raises
    ------
    InputError
        A leaf is not a number or an array of numbers, or the containers differ from those of the
        space; the message names the part.
    """
    return _layout(example, space, "the value", objects)


def _layout(example: Any, space: Any, part: str, objects: bool) -> Any:
    if objects and has_object_elements(space):
        return OBJECT
    if space is not None and space.shape is not None and space.dtype is not None:
        return _leaf(space.shape, space.dtype, part)
    spaces = _subspaces(example, space, part)
    if isinstance(example, Mapping):
        return {
            key: _layout(value, spaces.get(key), f"{part}[{key!r}]", objects)
            for key, value in example.items()
        }
    nested = isinstance(space, (gymnasium.spaces.Tuple, gymnasium.spaces.Dict))
    if isinstance(example, tuple) or (isinstance(example, list) and (space is None or nested)):
        parts = enumerate(example)
        inner = [_layout(value, spaces.get(i), f"{part}[{i}]", objects) for i, value in parts]
        # Tuples, as Gymnasium batches them, even if the environment returns a list.
        return tuple(inner) if objects and nested else _sequence_like(example, inner)
    if example is None:
        return None
    try:
        array = as_array(example)
    except ValueError as error:
        raise InputError(f"{part} consists of parts with different shapes: {example!r}") from error
    return _leaf(array.shape, array.dtype, part)


def _subspaces(example: Any, space: Any, part: str) -> Mapping[Any, Any]:
    """Check that `example` has the keys of `space`, and return the space of each part."""
    if isinstance(space, gymnasium.spaces.Dict):
        if not isinstance(example, Mapping) or example.keys() != space.spaces.keys():
            raise InputError(f"{part} must have the keys {list(space.spaces)}, got {example!r}")
        return space.spaces
    if isinstance(space, gymnasium.spaces.Tuple):
        if not isinstance(example, (tuple, list)) or len(example) != len(space.spaces):
            raise InputError(f"{part} must have {len(space.spaces)} parts, got {example!r}")
        return dict(enumerate(space.spaces))
    return {}


def has_object_elements(space: gymnasium.Space[Any] | None) -> bool:
    """Return whether Gymnasium's vector API batches elements of `space` as tuples, not arrays.

    >>> has_object_elements(gymnasium.spaces.Text(5))
    True
    """
    if space is None or isinstance(space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)):
        return False
    if not is_leaf_space(space):
        return True  # also for a user's class of spaces, which Gymnasium batches as tuples
    return space.shape is None or space.dtype is None or space.dtype.kind not in NUMERIC_KINDS


def has_objects(layout: Any) -> bool:
    """Return whether a layout has leaves of dtype ``object``."""
    return any(leaf == OBJECT for leaf in tree_leaves(layout))


def layout_of_space(space: gymnasium.Space[Any], *, objects: bool = False) -> Any:
    """Return the tree of `Leaf` that describes the elements of `space`.

    Parameters
    ----------
    space : gymnasium.Space
    objects : bool
        See `layout_of`.

    Raises
    ------
    InputError
        The elements of the space have no fixed shape, or are not numbers.

    Examples
    --------
    >>> layout_of_space(gymnasium.spaces.Discrete(3))
    Leaf(shape=(), dtype=dtype('int64'))
    """
    if isinstance(space, gymnasium.spaces.Dict):
        parts = space.spaces.items()
        return {key: layout_of_space(part, objects=objects) for key, part in parts}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(layout_of_space(part, objects=objects) for part in space.spaces)
    if objects and has_object_elements(space):
        return OBJECT
    if space.shape is None or space.dtype is None:
        raise InputError(f"the elements of {space} are not arrays of one shape")
    return _leaf(space.shape, space.dtype, str(space))


def _leaf(shape: Sequence[int], dtype: Any, part: str) -> Leaf:
    dtype = np.dtype(dtype)
    if dtype.kind not in NUMERIC_KINDS:
        raise InputError(
            f"{part} is of dtype {dtype}; only numbers and arrays of numbers can be batched"
        )
    return Leaf(tuple(shape), dtype)


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
