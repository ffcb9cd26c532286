"""Shared memory between this process and an actor on the same machine, instead of the object store.

Ray hands actors no file descriptors, so the actor opens this process's memory files under
``/proc``. Where it cannot (another machine, container or user) everything goes through Ray.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from plangym_like.batches import Inputs, Layout, Rows
from plangym_like.execution.placement import REGIONS, Memory, Shape, place, region_nbytes
from plangym_like.processes.shared_memory import BlockPool, SharedBlock

_SECRET_NBYTES = 16


@dataclass(frozen=True, slots=True)
class Proof:
    """A memory file with known content: who can read it shares memory with who made it."""

    pid: int
    fd: int
    secret: bytes

    def holds(self) -> bool:
        """Return whether this process can read the file."""
        try:
            fd = _open(self.pid, self.fd)
        except OSError:
            return False
        try:
            return os.pread(fd, _SECRET_NBYTES, 0) == self.secret
        finally:
            os.close(fd)


def proof_of(block: SharedBlock) -> Proof:
    """Fill `block` so that others can prove that they are near."""
    secret = os.urandom(_SECRET_NBYTES)
    block.memory[:_SECRET_NBYTES] = secret
    return Proof(os.getpid(), block.fd, secret)


@dataclass(frozen=True, slots=True)
class NearOrder:
    """Where a chunk lies: the process, its memory, and by region the number and descriptor."""

    pid: int
    memory: int
    shape: Shape
    blocks: Mapping[str, tuple[int, int]]


class NearMemory:
    """The memory of one chunk at a time, on the side that deals them out.

    Parameters
    ----------
    number : int
        Tells it from the others that an actor has.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._blocks: dict[str, SharedBlock] = {}
        self._rows: Rows | None = None

    @property
    def rows(self) -> Rows:
        """The chunk that lies here."""
        assert self._rows is not None
        return self._rows

    def put(self, layout: Layout, inputs: Inputs, *, states: bool, observations: bool) -> NearOrder:
        """Copy the inputs of a chunk here, make room for its results, and say where that is.

        Raises
        ------
        MemoryError
            There is not enough.
        """
        shape = Shape.of(inputs, states=states, observations=observations)
        arrays: dict[str, Memory] = {}
        for region, nbytes in region_nbytes(layout, shape).items():
            if nbytes:
                arrays[region] = self._fit(region, nbytes)
        actions = inputs.actions if isinstance(inputs.actions, list) else None
        self._rows = place(layout, shape, arrays, actions)
        sent = self._rows.inputs
        sent.states[:] = inputs.states
        if actions is None:
            sent.actions[:] = inputs.actions
        if not isinstance(sent.dt, int):
            sent.dt[:] = inputs.dt
        if sent.seeds is not None and inputs.seeds is not None:
            sent.seeds[:] = inputs.seeds
        blocks = {region: self._blocks[region] for region in arrays}
        named = {region: (block.number, block.fd) for region, block in blocks.items()}
        return NearOrder(os.getpid(), self.number, shape, named)

    def _fit(self, region: str, nbytes: int) -> Memory:
        block = self._blocks.get(region)
        if block is None or block.nbytes < nbytes:
            if block is not None:
                block.close()
            # Chunks vary in size; the next one should fit as well.
            block = self._blocks[region] = SharedBlock(nbytes + nbytes // 2)
        return block.array()

    def close(self) -> None:
        """Give the memory back."""
        self._rows = None
        for block in self._blocks.values():
            block.close()
        self._blocks.clear()


class GivenPool(BlockPool):
    """One region of the memory that was given for the next chunk, on the actor's side."""

    def __init__(self) -> None:
        super().__init__()
        self._given: dict[int, tuple[int, SharedBlock]] = {}
        self._next: SharedBlock | None = None

    def offer(self, pid: int, memory: int, number: int, fd: int) -> Memory:
        """Open the block `number` of memory `memory`, if that has not been done yet."""
        known, block = self._given.get(memory, (-1, None))
        if known != number or block is None:
            if block is not None:
                self._drop(block)
            block = SharedBlock.adopt(_open(pid, fd))
            self._given[memory] = number, block
        self._next = block
        return block.array()

    def take(self, nbytes: int) -> SharedBlock:
        """Return the block that was offered last."""
        assert self._next is not None
        return self._next

    def may_lend(self) -> bool:
        """Say yes: nobody here keeps what was lent."""
        return True

    def lend(self, block: SharedBlock) -> Memory:
        """Return an array over `block`."""
        return block.array()

    def give(self, block: SharedBlock) -> None:
        """Keep it."""


class GivenPools(dict[str, BlockPool]):
    """The given memory of all regions."""

    def __init__(self) -> None:
        self._by_region = {region: GivenPool() for region in REGIONS}
        super().__init__(self._by_region)

    def offer(self, order: NearOrder) -> dict[str, Memory]:
        """Open the memory that `order` names, and return the bytes of each region."""
        return {
            region: self._by_region[region].offer(order.pid, order.memory, number, fd)
            for region, (number, fd) in order.blocks.items()
        }


def _open(pid: int, fd: int) -> int:
    return os.open(descriptor_path(pid, fd), os.O_RDWR | os.O_CLOEXEC)


def descriptor_path(pid: int, fd: int) -> str:
    """Return where a process that may can open what descriptor `fd` of another stands for."""
    return f"/proc/{pid}/fd/{fd}"
