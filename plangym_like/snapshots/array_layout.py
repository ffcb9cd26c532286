"""NumPy arrays in a pickle, with the memory that they share and the order of their axes in it.

NumPy itself pickles a view as an array of its own, in C or Fortran order. Then writing to the one
no longer shows in the other, and sums are added up in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


class ArrayLayout:
    """What one pickle has said so far about the memory of arrays."""

    def __init__(self) -> None:
        self._owners: dict[int, NDArray[Any]] = {}

    def reduce(self, array: NDArray[Any]) -> Reduced | None:
        """Return how `array` is made from others, or ``None``: NumPy's own way is right."""
        if not array.size:
            return None
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        if type(root) is not np.ndarray or root.dtype.hasobject or array.dtype.hasobject:
            return None
        owner = self._owners.get(id(root))
        if owner is None:
            dense = array.flags.c_contiguous or array.flags.f_contiguous
            if dense and (array is root or array.nbytes == root.nbytes):
                self._owners[id(root)] = array
                return None
            owner = _flat(root)
            if owner is None:
                return None
            self._owners[id(root)] = owner
        if owner is array:
            return None
        # The owner is contiguous, so its data begin at its lowest address.
        offset = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
        return view_of, (owner, array.dtype, array.shape, array.strides, offset)


def copies(arrays: list[NDArray[Any]]) -> dict[int, Any]:
    """Return copies of `arrays`, by their ids, that share memory where these do.

    `copy.deepcopy` takes them as its memo.
    """
    layout = ArrayLayout()
    made: dict[int, Any] = {}

    def copy_of(array: NDArray[Any]) -> NDArray[Any]:
        if id(array) not in made:
            make, (owner, *rest) = layout.reduce(array) or (None, (array,))
            made[id(array)] = array.copy("A") if make is None else make(copy_of(owner), *rest)
        copied: NDArray[Any] = made[id(array)]
        return copied

    return {id(array): copy_of(array) for array in arrays if not array.dtype.hasobject}


def view_of(
    owner: NDArray[Any],
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
) -> NDArray[Any]:
    """Return an array in the memory of `owner`, which is contiguous."""
    flat = (owner if owner.flags.c_contiguous else owner.T).reshape(-1).view(np.uint8)
    return np.ndarray(shape, dtype, flat, offset, strides)


def _flat(root: NDArray[Any]) -> NDArray[Any] | None:
    """Return the memory of `root` as one row; ``None`` if there are gaps in it."""
    if root.ndim == 1 and root.flags.c_contiguous:
        return root
    dense = root.transpose(sorted(range(root.ndim), key=lambda axis: -abs(root.strides[axis])))
    return dense.reshape(-1) if dense.flags.c_contiguous else None
