"""A nest of tensors in memory that several processes share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.engine.nests import Leaf, leaves, map_nest
from plangym_like.processes.shared_memory import SharedBlock, attach

# Every tensor begins on a cache line of its own.
_ALIGNMENT = 64


class SharedNest:
    """Tensors in one block of memory without a name, zeroed; it is freed with its last holder.

    Another process gets them by `layout` and a copy of the descriptor `fd`: see `attach_nest`.

    Parameters
    ----------
    layout : nest of Leaf
    lead : sequence of int
        Leading axes that every tensor has.

    Attributes
    ----------
    layout : nest of Leaf
        With the leading axes in the shapes.
    tensors : nest of torch.Tensor

    Raises
    ------
    MemoryError
        The memory is not to be had.
    """

    def __init__(self, layout: Any, lead: Sequence[int] = ()) -> None:
        self.layout = map_nest(lambda leaf: Leaf((*lead, *leaf.shape), leaf.dtype), layout)
        self._block = SharedBlock(_nbytes(self.layout))
        self.tensors = _lay_out(self._block.array(), self.layout)

    @property
    def fd(self) -> int:
        """The descriptor of the memory."""
        return self._block.fd

    def close(self) -> None:
        """Give the descriptor back; the memory lives as long as the tensors do."""
        self._block.close()


def attach_nest(fd: int, layout: Any) -> Any:
    """Return the nest of tensors in the memory behind `fd`, which is closed.

    `layout` is the `SharedNest`'s own.
    """
    return _lay_out(attach(fd), layout)


def _nbytes(layout: Any) -> int:
    return sum(_padded_nbytes(leaf) for leaf in leaves(layout))


def _padded_nbytes(leaf: Leaf) -> int:
    nbytes = math.prod(leaf.shape) * leaf.dtype.itemsize
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _lay_out(memory: NDArray[np.uint8], layout: Any) -> Any:
    place = 0

    def tensor(leaf: Leaf) -> torch.Tensor:
        nonlocal place
        begin, place = place, place + _padded_nbytes(leaf)
        count = math.prod(leaf.shape)
        if not count:
            return torch.empty(leaf.shape, dtype=leaf.dtype)
        data = torch.from_numpy(memory[begin : begin + count * leaf.dtype.itemsize])
        return data.view(leaf.dtype).view(leaf.shape)

    return map_nest(tensor, layout)
