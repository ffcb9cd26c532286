"""`Strip`: several variables that one writer extends together, a row at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from plangym_like.batchers.engine.nests import Leaf

_FIRST_NBYTES = 2**20


class Strip:
    """Rows ``[B, ...]`` of several variables in tensors ``[capacity, B, ...]`` that grow.

    Making a small tensor costs more than filling it does; here the rows are made many at a time,
    and a variable's rows are one tensor from the start. A row is written once: what has been read
    never changes.

    Parameters
    ----------
    layout : sequence of Leaf
        One row of each variable, without the batch.
    batch_size : int
    capacity : int
        Rows to begin with, as far as they fit into a megabyte.
    start : int
        The time of the first row.

    Attributes
    ----------
    count : int
        Rows that are written.
    tensors : list of torch.Tensor
        ``[capacity, B, ...]``; only the first `count` rows mean anything.
    """

    def __init__(
        self, layout: Sequence[Leaf], batch_size: int, capacity: int, start: int = 0
    ) -> None:
        self._layout = list(layout)
        self._batch_size = batch_size
        row_nbytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in layout)
        self._capacity = max(1, min(capacity, _FIRST_NBYTES // (row_nbytes * batch_size)))
        self.start = start
        self.count = 0
        self._grow([])

    @property
    def stop(self) -> int:
        """The time of the next row."""
        return self.start + self.count

    def blank(self) -> list[NDArray[Any]]:
        """Return the arrays ``(B, ...)`` of the next row, zeros; it is one once `count` says so."""
        if self.count == self._capacity:
            self._capacity *= 2
            self._grow([tensor[: self.count] for tensor in self.tensors])
        count = self.count
        return [array[count] for array in self._arrays]

    def fill(self, columns: Sequence[Tensor]) -> None:
        """Begin at time 0 with the rows ``[T, B, ...]`` of `columns`."""
        self.start, self.count = 0, len(columns[0])
        self._capacity = max(self._capacity, 2 * self.count)
        self._grow(columns)

    def _grow(self, columns: Sequence[Tensor]) -> None:
        """Make tensors of the present capacity, and copy what there is into them."""
        lead = (self._capacity, self._batch_size)
        self.tensors = [
            torch.zeros((*lead, *leaf.shape), dtype=leaf.dtype) for leaf in self._layout
        ]
        self._arrays: list[NDArray[Any]] = [tensor.numpy() for tensor in self.tensors]
        for tensor, column in zip(self.tensors, columns, strict=False):
            tensor[: len(column)] = column
