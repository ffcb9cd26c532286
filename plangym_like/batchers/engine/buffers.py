"""Buffers that hosted objects fill, and that the owner of the workers reads."""

from __future__ import annotations

from typing import Any, Protocol

from plangym_like.batchers.engine.packed_tree import PackedTree, unpack
from plangym_like.batchers.engine.shared_tree import SharedTree
from plangym_like.lanes.tree import take


class Buffers(Protocol):
    """Buffers that all have the same layout. Each holds one tree of tensors."""

    def __getitem__(self, index: int) -> Any:
        """Return the tree of tensors that was last written to buffer `index`."""

    def close(self) -> None:
        """Release the memory; trees returned earlier stay valid."""


class SharedBuffers:
    """`Buffers` in shared memory, which the workers write to.

    Attributes
    ----------
    shared : SharedTree
        All buffers, stacked along a new first axis.
    """

    def __init__(self, layout: Any, count: int) -> None:
        self.shared = SharedTree(layout, (count,))
        self._buffers = [take(self.shared.tensors, index) for index in range(count)]

    def __getitem__(self, index: int) -> Any:
        return self._buffers[index]

    def close(self) -> None:
        self.shared.close()


class ReceivedBuffers:
    """`Buffers` whose contents arrive with the results of jobs, and are read without a copy."""

    def __init__(self) -> None:
        self._buffers: dict[int, Any] = {}

    def receive(self, index: int, packed: PackedTree) -> None:
        """Set the content of buffer `index`."""
        self._buffers[index] = unpack(packed)

    def __getitem__(self, index: int) -> Any:
        return self._buffers[index]

    def close(self) -> None:
        self._buffers.clear()
