"""Filled slots, put together to trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict

from plangym_like.batchers.engine.nests import map_nest
from plangym_like.batchers.engine.pools import Pool
from plangym_like.batchers.episodes.dict_tensor import DictTensor, has_tensors
from plangym_like.batchers.episodes.player import Piece
from plangym_like.batchers.episodes.trajectories import Trajectories


class _Batch(NamedTuple):
    """Pieces that begin at the same step, and their tensors ``[n_pieces, longest, ...]``."""

    rows: torch.Tensor
    lengths: torch.Tensor
    start: int
    longest: int
    tensors: Any


class Harvest:
    """What has been read from slots so far."""

    def __init__(self) -> None:
        self._batches: list[_Batch] = []

    def add(self, pieces: Sequence[Piece], slots: Pool) -> None:
        """Copy `pieces` out of `slots`."""
        for start in sorted({piece.start for piece in pieces}):
            columns = zip(*(piece for piece in pieces if piece.start == start), strict=True)
            row_numbers, places, _, all_lengths = columns
            rows, lengths = torch.tensor(row_numbers), torch.tensor(all_lengths)
            longest = max(all_lengths)
            tensors = slots.gather(places, longest)
            self._batches.append(_Batch(rows, lengths, start, longest, tensors))

    def rows(self) -> list[int]:
        """Return the rows of which there is something, ascending."""
        return sorted({row for batch in self._batches for row in batch.rows.tolist()})

    def trajectories(self, rows: Sequence[int], agent_info: Any, env_info: Any) -> Trajectories:
        """Return the trajectories of `rows`, in this order, with their infos.

        Parameters
        ----------
        rows : sequence of int
            Ascending.
        agent_info, env_info : DictTensor or None
            A row for each of `rows`.
        """
        place = torch.full((max(rows) + 1,), -1)
        place[torch.tensor(rows)] = torch.arange(len(rows))
        lengths = torch.zeros(len(rows), dtype=torch.int64)
        for batch in self._batches:
            lengths[place[batch.rows]] += batch.lengths
        longest = int(lengths.max())
        padding = torch.arange(longest) >= lengths[:, None]
        is_padded = bool(padding.any())

        def put_together(*parts: torch.Tensor) -> torch.Tensor:
            shape = (len(rows), longest, *parts[0].shape[2:])
            whole = torch.zeros(shape, dtype=parts[0].dtype)
            for batch, part in zip(self._batches, parts, strict=True):
                whole[place[batch.rows], batch.start : batch.start + batch.longest] = part
            if is_padded:
                whole.masked_fill_(padding.view(*padding.shape, *(1,) * (whole.ndim - 2)), 0)
            return whole

        steps = map_nest(put_together, *(batch.tensors for batch in self._batches))
        record = TensorDict(steps, batch_size=[len(rows), longest])
        return Trajectories(record, lengths, agent_info, env_info)


def checked_info(info: Any, name: str) -> DictTensor | None:
    """Return a copy of what the user gave as `agent_info` or `env_info`, ``None`` for nothing."""
    if info is None:
        return None
    given = info if isinstance(info, DictTensor) else DictTensor(dict(info.items()))
    return given.detach().clone().cpu() if has_tensors(given) else None
