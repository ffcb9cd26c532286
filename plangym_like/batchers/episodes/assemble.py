"""Assemble trajectories from the buffers that workers have filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict

from plangym_like.batchers.episodes.episode_loop import EpisodeArgs
from plangym_like.batchers.episodes.episode_worker import Part
from plangym_like.batchers.episodes.trajectories import Trajectories
from plangym_like.vector.tree import tree_map


class Steps(NamedTuple):
    """Steps for n rows of the result, from time `start` on: `tensors` are ``(T, n, ...)``."""

    rows: torch.Tensor
    lengths: torch.Tensor
    start: int
    tensors: Any


def read_part(part: Part, buffer: Any) -> Steps:
    """Return a copy of the steps that `part` describes; `buffer` is the content of its buffer."""
    lengths = torch.tensor(part.lengths)
    (lanes,) = lengths.nonzero(as_tuple=True)
    longest = int(lengths.max())
    tensors = tree_map(lambda steps: steps[:longest, lanes], buffer)
    return Steps(part.first_row + lanes, lengths[lanes], part.start, tensors)


def assemble(parts: Sequence[Steps], rows: Sequence[int], args: EpisodeArgs) -> Trajectories:
    """Return the trajectories of `rows`, in this order, padded with zeros.

    Parameters
    ----------
    parts : sequence of Steps
    rows : sequence of int
        The rows to return, in ascending order.
    args : EpisodeArgs
        The arguments of the episodes, with one row for each of `rows`.
    """
    place = torch.full((max(rows) + 1,), -1)
    place[torch.tensor(rows)] = torch.arange(len(rows))
    lengths = torch.zeros(len(rows), dtype=torch.int64)
    for part in parts:
        lengths[place[part.rows]] += part.lengths
    longest = int(lengths.max())
    padding = torch.arange(longest) >= lengths[:, None]
    is_padded = bool(padding.any())

    def join(*tensors: torch.Tensor) -> torch.Tensor:
        first = tensors[0]
        whole = torch.zeros((len(rows), longest, *first.shape[2:]), dtype=first.dtype)
        for part, steps in zip(parts, tensors, strict=True):
            whole[place[part.rows], part.start : part.start + len(steps)] = steps.transpose(0, 1)
        if is_padded:
            whole.masked_fill_(padding.view(*padding.shape, *(1,) * (whole.ndim - 2)), 0)
        return whole

    steps = tree_map(join, *(part.tensors for part in parts))
    record = TensorDict(steps, batch_size=[len(rows), longest])
    return Trajectories(record, lengths, args.agent_info, args.env_info)
