"""`SharedArrays`: a tree of arrays or tensors in memory that several processes share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.processes.shared_memory import SharedBlock, as_bytes, attach
from plangym_like.vector.tree import Leaf, tree_leaves, tree_map

# Each array begins at a new cache line.
_ALIGNMENT = 64
# A function that returns the bytes of a leaf as an array or tensor over the same memory.
Over = Callable[[NDArray[np.uint8], Leaf], Any]


def array_over(content: NDArray[np.uint8], leaf: Leaf) -> NDArray[Any]:
    """Return an array of `leaf`'s shape and dtype over the memory of `content`."""
    array: NDArray[Any] = content.view(leaf.dtype).reshape(leaf.shape)
    return array


class SharedArrays:
    """Zero-filled arrays in one block of anonymous shared memory.

    To attach to them, another process calls `attach_arrays` with a copy of the descriptor, and with
    the layout. The memory is freed when no process uses it any more.

    Parameters
    ----------
    layout : tree of Leaf
        The shapes include all axes; no leaf has the dtype ``object``.
    over : callable
        Makes an array or tensor over some bytes; by default, a NumPy array.

    Attributes
    ----------
    layout : tree of Leaf
    arrays : tree of array

    Raises
    ------
    MemoryError
        There is not enough memory.
    """

    def __init__(self, layout: Any, over: Over = array_over) -> None:
        self.layout = layout
        self._block = SharedBlock(sum(map(_padded_nbytes, tree_leaves(layout))))
        self.arrays = _lay_out(as_bytes(self._block.memory), layout, over)

    @property
    def fd(self) -> int:
        """The file descriptor of the memory."""
        return self._block.fd

    def close(self) -> None:
        """Close the descriptor; the memory remains as long as the arrays exist."""
        self._block.close()


def attach_arrays(fd: int, layout: Any, over: Over = array_over) -> Any:
    """Return the arrays of the `SharedArrays` with descriptor `fd`, and close `fd`."""
    return _lay_out(attach(fd), layout, over)


def nbytes_of(leaf: Leaf) -> int:
    """Return the size of one array or tensor in bytes."""
    nbytes: int = math.prod(leaf.shape) * leaf.dtype.itemsize
    return nbytes


def _padded_nbytes(leaf: Leaf) -> int:
    return -(-nbytes_of(leaf) // _ALIGNMENT) * _ALIGNMENT


def _lay_out(memory: NDArray[np.uint8], layout: Any, over: Over) -> Any:
    place = 0

    def leaf_over(leaf: Leaf) -> Any:
        nonlocal place
        begin, place = place, place + _padded_nbytes(leaf)
        return over(memory[begin : begin + nbytes_of(leaf)], leaf)

    return tree_map(leaf_over, layout)
