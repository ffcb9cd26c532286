"""`BatchMemory`: the shared memory of one batch, with one block for each region."""

from __future__ import annotations

from collections.abc import Mapping

from plangym_like.errors import WorkerError
from plangym_like.execution.placement import REGIONS, Memory
from plangym_like.memory_limits import refuse_too_much
from plangym_like.processes.shared_memory import BlockPool, SharedBlock


class BatchMemory:
    """The shared memory of one batch: one block for each of its regions (see `placement`).

    Attributes
    ----------
    blocks : dict of str to SharedBlock
        The block of each region; empty regions have none.
    arrays : dict of str to ``(nbytes,) uint8``
        The bytes of each region.
    private : set of str
        Regions whose blocks are not lent to the caller, so that results in them must be copied.

    Raises
    ------
    MemoryError, WorkerError
        There is not enough memory, or no file descriptor is left; no block is kept.
    """

    def __init__(self, pools: Mapping[str, BlockPool], sizes: Mapping[str, int]) -> None:
        self._pools = pools
        self.blocks: dict[str, SharedBlock] = {}
        self.arrays: dict[str, Memory] = {}
        self.private: set[str] = set()
        try:
            self._check(sizes)
        except MemoryError:
            self._drop_idle()
            self._check(sizes)
        try:
            for region in REGIONS:
                if sizes[region]:
                    self._take(region, sizes[region])
        except BaseException:
            self.release()
            raise

    def _check(self, sizes: Mapping[str, int]) -> None:
        """Raise `MemoryError` if all new blocks and copies together would not fit into memory."""
        nbytes = 0
        for region, size in sizes.items():
            pool = self._pools[region]
            nbytes += 0 if pool.has(size) else size
            nbytes += 0 if region == "inputs" or pool.may_lend() else size
        refuse_too_much(nbytes)

    def _drop_idle(self) -> None:
        for pool in self._pools.values():
            pool.drop_idle()

    def _take(self, region: str, nbytes: int) -> None:
        pool = self._pools[region]
        try:
            block = pool.take(nbytes)
        except (MemoryError, WorkerError):
            self._drop_idle()
            block = pool.take(nbytes)
        self.blocks[region] = block
        if region != "inputs" and pool.may_lend():
            self.arrays[region] = pool.lend(block)
        else:
            self.private.add(region)
            self.arrays[region] = block.array()

    def results(self) -> dict[str, Memory]:
        """Return the bytes of each region; copy the results in `private` regions."""
        return {
            region: array.copy() if region in self.private and region != "inputs" else array
            for region, array in self.arrays.items()
        }

    def release(self) -> None:
        """Give the blocks back to their pools; lent blocks follow when the caller drops the arrays.

        Call this only when no worker writes to the blocks any more. A second call is safe, even if
        Ctrl-C interrupted the first: no block is returned twice, so no two batches share a block.
        """
        while self.private:
            region = self.private.pop()
            self._pools[region].give(self.blocks[region])
        self.arrays = {}
