"""Pieces of memory that residents fill and their owner reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from plangym_like.batchers.engine.nests import map_nest, take
from plangym_like.batchers.engine.shared_nest import SharedNest


class Pool(Protocol):
    """The owner's side: pieces of one layout, by their numbers."""

    def __getitem__(self, index: int) -> Any:
        """Return the nest of tensors that piece `index` was last filled with."""

    def gather(self, indices: Sequence[int], length: int) -> Any:
        """Return copies of the first `length` rows of pieces: ``[len(indices), length, ...]``.

        Rows that were not handed in may be anything. The pieces are not read again.
        """

    def close(self) -> None:
        """Give back what is held; nests that were returned stay good."""


class SharedPool:
    """A pool in memory that the workers write to themselves.

    Attributes
    ----------
    shared : SharedNest
        The pieces along a leading axis.
    """

    def __init__(self, layout: Any, count: int) -> None:
        self.shared = SharedNest(layout, (count,))
        self._pieces = [take(self.shared.tensors, index) for index in range(count)]

    def __getitem__(self, index: int) -> Any:
        return self._pieces[index]

    def gather(self, indices: Sequence[int], length: int) -> Any:
        places = torch.tensor(indices)
        return map_nest(lambda pieces: pieces[:, :length][places], self.shared.tensors)

    def close(self) -> None:
        self.shared.close()
