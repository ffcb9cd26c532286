"""Pieces that residents far away have filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plangym_like.batchers.engine.nests import map_nest
from plangym_like.batchers.engine.parcels import Parcel, unpack


class Inbox:
    """A `Pool` whose pieces come with the answers to jobs, and are read where they have arrived."""

    def __init__(self) -> None:
        self._pieces: dict[int, Any] = {}

    def put(self, index: int, parcel: Parcel) -> None:
        """Take in what piece `index` has been filled with."""
        self._pieces[index] = unpack(parcel)

    def __getitem__(self, index: int) -> Any:
        return self._pieces[index]

    def gather(self, indices: Sequence[int], length: int) -> Any:
        """See `Pool`; the pieces are forgotten."""

        def side_by_side(*parts: torch.Tensor) -> torch.Tensor:
            whole = parts[0].new_zeros((len(parts), length, *parts[0].shape[1:]))
            for row, part in zip(whole, parts, strict=True):
                row[: len(part)] = part
            return whole

        return map_nest(side_by_side, *(self._pieces.pop(index) for index in indices))

    def close(self) -> None:
        """Forget all pieces."""
        self._pieces.clear()
