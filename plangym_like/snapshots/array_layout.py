"""`ArrayLayout`: preserves the shared memory and the axis order of the arrays in one snapshot.

NumPy itself pickles a view as a separate array in C or Fortran order. Writing to the restored array
then no longer changes the array that it was a view of, and sums may be computed in another order.
"""

from __future__ import annotations

import array as array_module
import contextlib
import ctypes
import pickle
import sys
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from plangym_like.errors import SnapshotError

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]
# Objects whose memory programs change without an array.
_WRITTEN_BY_OTHERS = (bytearray, array_module.array, ctypes.Array)
# A view that spans more than this many times its own bytes is saved without the gaps.
_WIDEST = 64


class OverlapError(Exception):
    """Two views of the array with the id ``args[0]`` overlap, and neither contains the other."""


class ArrayLayout:
    """Records the arrays written into one snapshot so far, and the memory that they share.

    Parameters
    ----------
    whole : collection of int
        Ids of arrays whose whole memory has to be written, because two views of it overlap and
        neither contains the other.
    """

    def __init__(self, whole: Collection[int] = ()) -> None:
        self._whole = whole
        self._written: dict[int, list[NDArray[Any]]] = {}
        self._made: list[NDArray[Any]] = []

    def reduce(self, array: NDArray[Any]) -> Reduced | None:
        """Return ``(function, arguments)`` that make `array` as a view of another array.

        Return ``None`` if the elements of `array` must be written.

        Raises
        ------
        OverlapError
            `array` overlaps another array whose elements were written. Add the id in the error to
            `whole`, and start the snapshot again.
        SnapshotError
            The shared memory has gaps, so it cannot be written.
        """
        if not array.size or array.dtype.hasobject:
            return None
        key = id(array)
        if array.base is None and key not in self._written and key not in self._whole:
            # A fast path for the usual case: an array that shares no memory.
            if array.flags.c_contiguous:
                self._written[key] = [array]
                return None
        root = root_of(array)
        if type(root) is not np.ndarray or root.dtype.hasobject:
            return None
        written = self._written.setdefault(id(root), [])
        if not written and id(root) in self._whole:
            written.append(_flat(root))
        for owner in written:
            if owner is array:
                return None
            if (reduced := _within(array, owner, id(root))) is not None:
                return reduced
        written.append(array)
        if array.flags.c_contiguous or array.flags.f_contiguous:
            return None
        low, high = byte_bounds(array)
        if high - low > _WIDEST * array.nbytes:
            return None
        # New memory with zeros in the gaps, whose bytes do not belong to this array.
        memory = np.zeros(high - low, np.uint8)
        self._made.append(memory)
        offset = array.__array_interface__["data"][0] - low
        view_of(memory, array.dtype, array.shape, array.strides, offset)[...] = array
        return view_of, (memory, array.dtype, array.shape, array.strides, offset)


def root_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array that `array` is a view of, or `array` itself."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _references(root: NDArray[Any]) -> tuple[int, int] | None:
    """Return how many references there are to the memory of `root`, and to its memoryview.

    Return ``None`` if the memory is not reached through a memoryview.
    """
    view: Any = root.base
    return (sys.getrefcount(view.obj), sys.getrefcount(view)) if type(view) is memoryview else None


# Those of an array that was unpickled, if nothing else refers to its memory.
_OWN_MEMORY = _references(root_of(pickle.loads(pickle.dumps(np.zeros(1), 5))))


def refuse_hidden_memory(array: NDArray[Any]) -> None:
    """Raise `SnapshotError` if another object than an array may change the memory of `array`.

    Examples are a bytearray, and the capsule that owns the memory of MuJoCo's ``MjData.qpos``. A
    restored array would no longer share its memory with that object. An array that comes from a
    pickle has a bytearray of its own, which nothing else refers to.
    """
    root = root_of(array)
    if root.base is None or _references(root) == _OWN_MEMORY:
        return
    owner: Any = root.base
    if hasattr(owner, "__array_interface__") or hasattr(owner, "__array__"):
        return
    owner = owner.obj if isinstance(owner, memoryview) else owner
    with contextlib.suppress(TypeError):
        memoryview(owner)
        if not isinstance(owner, _WRITTEN_BY_OTHERS):
            return
    raise SnapshotError(
        f"the memory of the array belongs to {_described(owner)}, and a restored array would have "
        "memory of its own; keep a copy made by numpy.array, or make the array each time"
    )


def _described(owner: Any) -> str:
    name = type(owner).__name__
    return "a library" if name == "PyCapsule" else f"a {name}"


def view_of(
    owner: NDArray[Any],
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
) -> NDArray[Any]:
    """Return a view of the contiguous array `owner`; it begins `offset` bytes into its memory."""
    flat = (owner if owner.flags.c_contiguous else owner.T).reshape(-1).view(np.uint8)
    return np.ndarray(shape, dtype, flat, offset, strides)


def _within(array: NDArray[Any], owner: NDArray[Any], root: int) -> Reduced | None:
    """Return how to make `array` as a view of `owner`, or ``None`` if they share no memory."""
    start, stop = byte_bounds(array)
    low, high = byte_bounds(owner)
    if stop <= low or high <= start:
        return None
    dense = owner.flags.c_contiguous or owner.flags.f_contiguous
    if not (dense and low <= start and stop <= high):
        raise OverlapError(root)
    offset = array.__array_interface__["data"][0] - low
    return view_of, (owner, array.dtype, array.shape, array.strides, offset)


def _flat(root: NDArray[Any]) -> NDArray[Any]:
    """Return the memory of `root` as a one-dimensional array."""
    if root.ndim == 1 and root.flags.c_contiguous:
        return root
    dense = root.transpose(sorted(range(root.ndim), key=lambda axis: -abs(root.strides[axis])))
    if not dense.flags.c_contiguous:
        raise SnapshotError("two arrays share memory in a way that cannot be kept; copy one")
    return dense.reshape(-1)
