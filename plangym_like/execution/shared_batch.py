"""`SharedBatch`: one batch in shared memory, and its jobs for workers."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from plangym_like.batch.arrays import REGIONS, Inputs, Rows, Shape
from plangym_like.batch.layout import Layout
from plangym_like.errors import StateFormatError, WorkerError
from plangym_like.execution.executor import SubmitOptions
from plangym_like.execution.row_server import HEADER_NBYTES, WANTED, Description, write_header
from plangym_like.execution.tokens import Key
from plangym_like.processes.shared_memory import BlockPool, SharedBlock
from plangym_like.states.rows import Row

# The states of a batch are verified and copied in parts of so many bytes, so that workers can begin
# with the first part (`benchmarks/throughput.py`, MsPacman with 256 states).
_PART_NBYTES = 1 << 20
_numbers = itertools.count(1)


class SharedBatch:
    """The inputs and results of a batch, in memory that is shared with workers.

    Parameters
    ----------
    layout : Layout
    pools : dict of str to BlockPool
        The pool of memory blocks for each region.
    inputs : Inputs
        The checked inputs.
    options : SubmitOptions
        If `blocking` is false, all inputs are copied before the batch is sent, because the caller
        may change its arrays afterwards.

    Attributes
    ----------
    number : int
        The number of the batch.
    key : (int, int)
        The key of the batch in tokens.
    inputs : Inputs
        The checked inputs; a copy of its actions if they are objects and `blocking` is false.
    processes : int array or None
        As in `SubmitOptions`.
    rows : Rows
        The batch, with its results in shared memory and the inputs that this process reads.
    nbytes : int
        The bytes of shared memory that the batch uses.
    """

    def __init__(
        self, layout: Layout, pools: dict[str, BlockPool], inputs: Inputs, options: SubmitOptions
    ) -> None:
        self.layout, self.masked, self.audit = layout, options.masked, options.audit
        self.processes = options.processes
        self.number = next(_numbers)
        kept = options.blocking
        if not kept and isinstance(inputs.actions, list):
            inputs = replace(inputs, actions=copy.deepcopy(inputs.actions))
        self.inputs = inputs
        self._shape = Shape.of(inputs, states=options.states, observations=options.observations)
        sizes = dict(layout.region_nbytes(self._shape))
        self.nbytes = sum(sizes.values())
        actions = inputs.actions if isinstance(inputs.actions, list) else None
        description = Description(self._shape, self.masked, self.audit, actions).packed()
        place = HEADER_NBYTES + sizes["inputs"]
        sizes["inputs"] = place + len(description)
        self.memory = BatchMemory(pools, sizes)
        blocks = {region: block.number for region, block in self.memory.blocks.items()}
        self.key: Key = blocks["inputs"], self.number
        header = self.memory.arrays["inputs"]
        self._header = write_header(header, self.number, blocks, place, description, inputs.count)
        regions = {**self.memory.arrays, "inputs": header[HEADER_NBYTES:]}
        self.rows = layout.place(self._shape, regions, actions)
        assert self.rows.marks is not None
        self.marks = self.rows.marks
        self.marks[:] = 0
        self._sent = self.rows.inputs
        if kept:
            self.rows.inputs = inputs
        # States that are not shared by all rows may be copied part by part.
        self._copies_late = kept and len(inputs.states) > 1

    def begin(self) -> None:
        """Copy the inputs that every worker reads. After this, call `parts`.

        Raises
        ------
        StateFormatError
            The checksum of a state is wrong.
        """
        sent, given = self._sent, self.inputs
        if not isinstance(given.actions, list):
            sent.actions[:] = given.actions
        if not isinstance(given.dt, int):
            assert not isinstance(sent.dt, int)
            sent.dt[:] = given.dt
        if given.seeds is not None:
            assert sent.seeds is not None
            sent.seeds[:] = given.seeds
        if not self._copies_late:
            self.layout.verify(given)
            given.verified = True
            sent.states[:] = given.states

    def parts(self) -> Iterator[tuple[int, int]]:
        """Verify and copy the states, part by part; yield the rows of each part.

        Raises
        ------
        StateFormatError
            The checksum of a state is wrong.
        """
        inputs = self.inputs
        size = inputs.count
        if self._copies_late and not inputs.verified:
            size = max(1, _PART_NBYTES // max(1, inputs.states.itemsize * inputs.states.shape[1]))
        for start in range(0, inputs.count, max(1, size)):
            stop = min(start + size, inputs.count)
            if self._copies_late:
                self.layout.verify(inputs, start, stop)
                self._sent.states[start:stop] = inputs.states[start:stop]
            yield start, stop
        inputs.verified = True

    @property
    def blocks(self) -> Sequence[SharedBlock]:
        """The blocks that workers need."""
        return tuple(self.memory.blocks.values())

    def want_until(self, row: int) -> None:
        """Tell workers that rows from `row` on need not be stepped."""
        self._header[WANTED] = row

    def verify_from(self, start: int) -> None:
        """Verify the states of rows from `start` on.

        If one of them is damaged, the states of all rows are verified, so that the error names the
        first damaged row of the batch.

        Raises
        ------
        StateFormatError
            The checksum of a state is wrong.
        """
        try:
            self.layout.verify(self.inputs, start if len(self.inputs.states) > 1 else 0)
        except StateFormatError:
            self.layout.verify(self.inputs)
            raise

    def result(self, errors: dict[int, Exception]) -> Any:
        """Return the result, whose memory then belongs to the caller; all rows must be done."""
        self.rows.inputs = self.inputs
        result = self.layout.result(self._own_rows(), errors)
        self.memory.release()
        return result

    def _own_rows(self) -> Rows:
        """Return the rows; arrays whose memory cannot be lent to the caller are copied."""
        if not self.memory.private - {"inputs"}:
            return self.rows
        rows = self.layout.place(self._shape, self.memory.results(), inputs=self.inputs)
        rows.infos = self.rows.infos
        if isinstance(self.rows.observations, list):
            rows.observations = self.rows.observations
        return rows


class BatchMemory:
    """The shared memory of one batch: one block for each of its regions (see `REGIONS`).

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
        self.arrays: dict[str, Row] = {}
        self.private: set[str] = set()
        try:
            for region in REGIONS:
                if sizes[region]:
                    self._take(region, sizes[region])
        except BaseException:
            self.release()
            raise

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

    def results(self) -> dict[str, Row]:
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
