"""A tree of NumPy arrays in memory that several processes share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.lanes.tree import Leaf, tree_leaves, tree_map
from plangym_like.processes.shared_memory import SharedBlock, attach

# Each array begins at a new cache line.
_ALIGNMENT = 64


class SharedArrays:
    """Arrays filled with zeros, in one block of shared memory without a name.

    Another process gets them with `attach_arrays`, from the layout and a copy of the descriptor.
    The memory is freed when no process uses it any more.

    Parameters
    ----------
    layout : tree of Leaf
        Shapes with all axes; no leaf has the dtype ``object``.

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
        self.arrays = _lay_out(self._block.array(), layout)

    @property
    def fd(self) -> int:
        """The descriptor of the memory."""
        return self._block.fd

    def close(self) -> None:
        """Close the descriptor; the memory lives as long as the arrays do."""
        self._block.close()


def attach_arrays(fd: int, layout: Any) -> Any:
    """Return the arrays of the `SharedArrays` with descriptor `fd`, and close `fd`."""
    return _lay_out(attach(fd), layout)


def _nbytes(leaf: Leaf) -> int:
    return math.prod(leaf.shape) * int(np.dtype(leaf.dtype).itemsize)


def _padded_nbytes(leaf: Leaf) -> int:
    return -(-_nbytes(leaf) // _ALIGNMENT) * _ALIGNMENT


def _lay_out(memory: NDArray[np.uint8], layout: Any) -> Any:
    place = 0

    def array(leaf: Leaf) -> NDArray[Any]:
        nonlocal place
        begin, place = place, place + _padded_nbytes(leaf)
        part: NDArray[Any] = memory[begin : begin + _nbytes(leaf)].view(leaf.dtype)
        return part.reshape(leaf.shape)

    return tree_map(array, layout)
