"""A tree of tensors in memory that several processes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.engine.tensor_tree import nbytes_of, tensor_over
from plangym_like.lanes.tree import Leaf, tree_leaves, tree_map
from plangym_like.processes.shared_memory import SharedBlock, attach

# Each tensor begins at a new cache line.
_ALIGNMENT = 64


class SharedTree:
    """Tensors filled with zeros, in one block of anonymous shared memory.

    Another process maps them with `attach_tree`, from the layout and a copy of the descriptor. The
    memory is freed when no process uses it any more.

    Parameters
    ----------
    layout : tree of Leaf
    lead : sequence of int
        Leading axes that every tensor has.

    Attributes
    ----------
    layout : tree of Leaf
        The layout, with the leading axes in the shapes.
    tensors : tree of torch.Tensor

    Raises
    ------
    MemoryError
        There is not enough memory.
    """

    def __init__(self, layout: Any, lead: Sequence[int] = ()) -> None:
        self.layout = tree_map(lambda leaf: Leaf((*lead, *leaf.shape), leaf.dtype), layout)
        self._block = SharedBlock(_nbytes(self.layout))
        self.tensors = _lay_out(self._block.array(), self.layout)

    @property
    def fd(self) -> int:
        """The descriptor of the memory."""
        return self._block.fd

    def close(self) -> None:
        """Close the descriptor; the memory lives as long as the tensors do."""
        self._block.close()


def attach_tree(fd: int, layout: Any) -> Any:
    """Return the tensors of the `SharedTree` with this layout and descriptor; close the latter."""
    return _lay_out(attach(fd), layout)


def _nbytes(layout: Any) -> int:
    return sum(_padded_nbytes(leaf) for leaf in tree_leaves(layout))


def _padded_nbytes(leaf: Leaf) -> int:
    return -(-nbytes_of(leaf) // _ALIGNMENT) * _ALIGNMENT


def _lay_out(memory: NDArray[np.uint8], layout: Any) -> Any:
    place = 0

    def tensor(leaf: Leaf) -> torch.Tensor:
        nonlocal place
        begin, place = place, place + _padded_nbytes(leaf)
        return tensor_over(memory[begin : begin + nbytes_of(leaf)], leaf)

    return tree_map(tensor, layout)
