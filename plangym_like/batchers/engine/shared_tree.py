"""A tree of tensors in memory that several processes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plangym_like.batchers.engine.tensor_tree import tensor_over
from plangym_like.lanes.shared_arrays import SharedArrays, attach_arrays
from plangym_like.lanes.tree import with_axes


class SharedTree(SharedArrays):
    """A tree of tensors in one block of shared memory, at first all zeros; see `SharedArrays`.

    Another process maps them with `attach_tree`.

    Parameters
    ----------
    layout : tree of Leaf
    lead : sequence of int
        The lengths of additional axes, which come first in the shape of every tensor.

    Attributes
    ----------
    layout : tree of Leaf
        The layout, with the leading axes in the shapes.
    tensors : tree of torch.Tensor
    """

    def __init__(self, layout: Any, lead: Sequence[int] = ()) -> None:
        super().__init__(with_axes(layout, lead), tensor_over)
        self.tensors = self.arrays


def attach_tree(fd: int, layout: Any) -> Any:
    """Map the `SharedTree` with the descriptor `fd`, return its tensors, and close `fd`."""
    return attach_arrays(fd, layout, tensor_over)
