"""Convert trees of tensors to bytes, which can be pickled without a copy, and back."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.engine.tensor_tree import tensor_over
from plangym_like.lanes.tree import Leaf, tree_leaves, tree_map, tree_unflatten


class PackedTree(NamedTuple):
    """The `layout` of a tree of tensors, and the bytes of each tensor.

    >>> tree = {"weight": torch.ones(2, 3, dtype=torch.bfloat16), "steps": torch.tensor(3)}
    >>> copy = unpack(pack(tree))
    >>> copy["weight"].dtype, copy["weight"].shape, int(copy["steps"])
    (torch.bfloat16, torch.Size([2, 3]), 3)
    """

    layout: Any
    contents: list[NDArray[np.uint8]]


def pack(tree: Any) -> PackedTree:
    """Pack a tree of CPU tensors; only tensors that are not contiguous are copied."""
    layout = tree_map(lambda tensor: Leaf(tuple(tensor.shape), tensor.dtype), tree)
    return PackedTree(layout, [_bytes_of(tensor) for tensor in tree_leaves(tree)])


def unpack(packed: PackedTree) -> Any:
    """Return the packed tree; its tensors share memory with `packed`."""
    contents = iter(packed.contents)
    tensors = (tensor_over(_writable(next(contents)), leaf) for leaf in tree_leaves(packed.layout))
    return tree_unflatten(packed.layout, tensors)


def _bytes_of(tensor: torch.Tensor) -> NDArray[np.uint8]:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()


def _writable(content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a writable array that shares memory with `content`; torch needs writable arrays.

    The arrays that Ray delivers are read-only, although no other object uses their memory.
    """
    if content.flags.writeable:
        return content
    memory: Any = (ctypes.c_uint8 * content.nbytes).from_address(content.ctypes.data)
    # Keeps the memory alive.
    memory.content = content
    return np.frombuffer(memory, np.uint8)
