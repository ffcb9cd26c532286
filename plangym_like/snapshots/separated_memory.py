"""`SeparatedMemory`: finds objects that share memory, but would not do so after a restore.

Plain arrays that share memory still share it (see `ArrayLayout`). Any other object, such as a
bytearray, a masked array or a tensor, has separate memory after a restore from a pickle.
"""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from plangym_like.snapshots.array_layout import root_of

_UNCHANGING = (type(None), bool, int, float, complex, str, bytes, np.generic, pickle.PickleBuffer)


class SeparatedMemory:
    """Collects the objects of one pickle, and compares where their memory lies."""

    def __init__(self) -> None:
        # The objects are kept alive, so that no two of them have the same address.
        self._things: dict[int, Any] = {}
        self._parts: dict[int, Any] = {}

    def add(self, thing: Any) -> None:
        """Add `thing`, which is in the pickle."""
        if not isinstance(thing, _UNCHANGING) and id(thing) not in self._parts:
            self._things[id(thing)] = thing

    def leave_out(self, part: Any) -> None:
        """Do not add `part`, an object that only the pickle of another object contains."""
        self._parts[id(part)] = part

    def pair(self) -> tuple[Any, Any] | None:
        """Return two objects that share memory now, but would not after a restore, or ``None``."""
        spans = []
        for thing in self._things.values():
            array = _memory(thing)
            if array is None or not array.size:
                continue
            root = root_of(array)
            owner: Any = root.base
            if isinstance(owner, memoryview):
                owner = owner.obj
            if isinstance(owner, bytes):
                continue
            if isinstance(root, np.memmap):
                return thing, root
            if owner is not thing and id(owner) in self._things:
                return thing, owner
            plain = type(thing) is type(root) is np.ndarray and not array.dtype.hasobject
            spans.append((*byte_bounds(array), id(root if plain else thing), thing))
        spans.sort(key=lambda span: span[:3])
        end, group, last = 0, 0, None
        for low, high, own, thing in spans:
            if low < end and own != group:
                return last, thing
            if high > end:
                end, group, last = high, own, thing
        return None


def _memory(thing: Any) -> NDArray[Any] | None:
    """Return the memory of `thing` as an array, or ``None`` if it has none."""
    if isinstance(thing, np.ndarray):
        return thing
    with contextlib.suppress(Exception):
        if is_tensor(thing):
            return np.asarray(thing.detach().numpy())
        return np.frombuffer(memoryview(thing).cast("B"), np.uint8)
    return None


def is_tensor(thing: Any) -> bool:
    """Return whether `thing` is a tensor of torch."""
    return hasattr(thing, "detach") and hasattr(thing, "__array__")
