"""Trees: dicts, tuples, named tuples and lists of leaves, nested to any depth.

Observations, actions, recurrent states and infos are trees. A leaf is an array, a tensor, a number
or, in a layout, a `Leaf`. ``None`` and empty containers are trees without leaves. `SharedArrays` is
a tree of arrays in memory that several processes share.

>>> layout = {"image": Leaf((2, 2), np.dtype("u1")), "speed": Leaf((), np.dtype(float))}
>>> rows = zeros(layout, (3,))
>>> take(rows, 1)["image"].tolist()
[[0, 0], [0, 0]]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.processes.shared_memory import SharedBlock, as_bytes, attach

NUMERIC_KINDS = "biufc"
# In shared memory, each array begins at a new cache line.
_ALIGNMENT = 64


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


def zeros(layout: Any, lead: Sequence[int]) -> Any:
    """Return a tree of arrays ``(*lead, *leaf.shape)`` filled with zeros."""
    return tree_map(lambda leaf: np.zeros((*lead, *leaf.shape), leaf.dtype), layout)


def layout_of_space(space: gymnasium.Space[Any]) -> Any:
    """Return the tree of `Leaf` that describes the elements of `space`.

    Elements that are not arrays of one shape are leaves of dtype ``object``. Gymnasium's vector API
    batches them as tuples.

    Examples
    --------
    >>> layout_of_space(gymnasium.spaces.Discrete(3))
    Leaf(shape=(), dtype=dtype('int64'))
    """
    return spaces.build(space, (Leaf(*leaf) for leaf in spaces.leaves(space)))


def has_objects(layout: Any) -> bool:
    """Return whether a layout has leaves of dtype ``object``."""
    return OBJECT in tree_leaves(layout)


def write_rows(target: Any, rows: Any, values: Any) -> None:
    """Write the tree `values` to the rows `rows` of the arrays in the tree `target`."""
    if type(target) is np.ndarray:  # the usual case, in less time than the general one
        target[rows] = values
        return

    def write(to: Any, value: Any) -> None:
        to[rows] = value

    tree_map(write, target, values)


# Shared memory


class SharedArrays:
    """Zero-filled arrays in one block of anonymous shared memory.

    To attach to them, another process calls `attach_arrays` with a copy of the descriptor, and with
    the layout. The memory is freed when no process uses it any more.

    Parameters
    ----------
    layout : tree of Leaf
        The shapes include all axes; no leaf has the dtype ``object``.

    Attributes
    ----------
    layout : tree of Leaf
    arrays : tree of array

    Raises
    ------
    MemoryError
        There is not enough memory.
    """

    def __init__(self, layout: Any) -> None:
        self.layout = layout
        self._block = SharedBlock(sum(map(_padded_nbytes, tree_leaves(layout))))
        self.arrays = _lay_out(as_bytes(self._block.memory), layout)

    @property
    def fd(self) -> int:
        """The file descriptor of the memory."""
        return self._block.fd

    def close(self) -> None:
        """Close the descriptor; the memory remains as long as the arrays exist."""
        self._block.close()


def attach_arrays(fd: int, layout: Any) -> Any:
    """Return the arrays of the `SharedArrays` with descriptor `fd`, and close `fd`."""
    return _lay_out(attach(fd), layout)


def nbytes_of(leaf: Leaf) -> int:
    """Return the size of one array or tensor in bytes."""
    nbytes: int = math.prod(leaf.shape) * leaf.dtype.itemsize
    return nbytes


def _padded_nbytes(leaf: Leaf) -> int:
    return -(-nbytes_of(leaf) // _ALIGNMENT) * _ALIGNMENT


def _lay_out(memory: NDArray[np.uint8], layout: Any) -> Any:
    """Return the arrays of `layout`, one after the other over `memory`."""
    place = 0

    def array_of(leaf: Leaf) -> NDArray[Any]:
        nonlocal place
        begin, place = place, place + _padded_nbytes(leaf)
        array: NDArray[Any] = memory[begin : begin + nbytes_of(leaf)].view(leaf.dtype)
        return array.reshape(leaf.shape)

    return tree_map(array_of, layout)
