"""Nests of tensors on their way between machines: bytes that nobody has to copy to pickle them."""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.engine.nests import Leaf, leaves, map_nest, rebuild


class Parcel(NamedTuple):
    """The `layout` of a nest, and the bytes of each of its tensors.

    >>> nest = {"weight": torch.ones(2, 3, dtype=torch.bfloat16), "steps": torch.tensor(3)}
    >>> copy = unpack(pack(nest))
    >>> copy["weight"].dtype, copy["weight"].shape, int(copy["steps"])
    (torch.bfloat16, torch.Size([2, 3]), 3)
    """

    layout: Any
    contents: list[NDArray[np.uint8]]


def pack(nest: Any) -> Parcel:
    """Return a parcel over the memory of a nest of CPU tensors, where they are contiguous."""
    layout = map_nest(lambda tensor: Leaf(tuple(tensor.shape), tensor.dtype), nest)
    return Parcel(layout, [_bytes_of(tensor) for tensor in leaves(nest)])


def unpack(parcel: Parcel) -> Any:
    """Return the nest over the memory of `parcel`."""
    contents = iter(parcel.contents)
    tensors = (_tensor_of(leaf, next(contents)) for leaf in leaves(parcel.layout))
    return rebuild(parcel.layout, tensors)


def _bytes_of(tensor: torch.Tensor) -> NDArray[np.uint8]:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()


def _tensor_of(leaf: Leaf, content: NDArray[np.uint8]) -> torch.Tensor:
    if not math.prod(leaf.shape):
        return torch.empty(leaf.shape, dtype=leaf.dtype)
    return torch.from_numpy(_writable(content)).view(leaf.dtype).view(leaf.shape)


def _writable(content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return `content` as an array that torch takes, though it came as one that is only read.

    Nobody else has what came in a parcel, so nobody would mind who writes to it.
    """
    if content.flags.writeable:
        return content
    memory: Any = (ctypes.c_uint8 * content.nbytes).from_address(content.ctypes.data)
    # It lives as long as its memory is used.
    memory.content = content
    return np.frombuffer(memory, np.uint8)
