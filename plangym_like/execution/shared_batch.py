"""`SharedBatch`: one batch in shared memory, where workers find its description."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from plangym_like.batch.arrays import Inputs, Rows, SubmitOptions
from plangym_like.batch.layout import REGIONS, Layout, Shape, shape_of
from plangym_like.errors import WorkerError
from plangym_like.execution.schedule import Key
from plangym_like.processes.shared_memory import BlockPool, SharedBlock, as_bytes
from plangym_like.processes.wire import dumps
from plangym_like.states.rows import Row

# The states of a batch are copied in parts of so many bytes, so that workers can begin with the
# first part (`benchmarks/throughput.py`, MsPacman with 256 states).
_PART_NBYTES = 1 << 20
_numbers = itertools.count(1)
# The first bytes of the block that holds a batch's inputs, as int64: the number of the batch; the
# numbers of the blocks of its results (0 for none); where its `Description` is pickled, and its
# size.
HEADER_NBYTES = 64
_WORDS = 6
RESULTS = ("states", "observations", "outcomes")


class Description(NamedTuple):
    """What a worker has to know of a batch, in addition to its arrays.

    Attributes
    ----------
    shape : Shape
    masked : bool
        Whether to continue after a row that raises.
    verified : bool
        Whether the checksums of the states have been verified.
    actions : sequence or None
        The actions of all rows, if they are objects.
    """

    shape: Shape
    masked: bool
    verified: bool
    actions: Sequence[Any] | None


# The descriptions of most batches are equal to one of the last ones.
_packed = lru_cache(maxsize=64)(dumps)


def write_header(
    memory: Row, number: int, blocks: dict[str, int], place: int, description: bytes
) -> None:
    """Describe a batch in the block of its inputs, with its pickled description at `place`."""
    memory[place : place + len(description)] = np.frombuffer(description, np.uint8)
    words = memory[:HEADER_NBYTES].view(np.int64)
    for index, region in enumerate(RESULTS, 1):
        words[index] = blocks.get(region, 0)
    words[len(RESULTS) + 1 : _WORDS] = place, len(description)
    words[0] = number


def read_header(memory: Row) -> tuple[int, Sequence[int], Row]:
    """Return the batch's number, the numbers of the blocks `RESULTS`, and the description."""
    words: list[int] = memory[:HEADER_NBYTES].view(np.int64)[:_WORDS].tolist()
    number, *results, place, length = words
    return number, results, memory[place : place + length]


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
    blocks : tuple of SharedBlock
        The blocks that workers need.
    block_numbers : set of int
        Their numbers.

    Raises
    ------
    MemoryError, WorkerError
        There is not enough memory, or no file descriptor is left.
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
        self._shape = shape_of(inputs, states=options.states, observations=options.observations)
        sizes = dict(layout.region_nbytes(self._shape))
        self.nbytes = sum(sizes.values())
        actions = inputs.actions if isinstance(inputs.actions, list) else None
        # The process that steps a row verifies its state. A state that all rows share is verified
        # in `begin`.
        self._verifies_late = kept and len(inputs.states) > 1 and not inputs.verified
        description = Description(
            self._shape, self.masked, not self._verifies_late, actions
        )
        packed = _packed(description) if actions is None else dumps(description)
        place = HEADER_NBYTES + sizes["inputs"]
        sizes["inputs"] = place + len(packed)
        self._pools = pools
        self._blocks: dict[str, SharedBlock] = {}
        # The bytes of each region, and the regions whose blocks are not lent to the caller, so that
        # results in them must be copied.
        self._regions: dict[str, Row] = {}
        self._private: set[str] = set()
        self._take_blocks(sizes)
        numbers = {region: block.number for region, block in self._blocks.items()}
        self.blocks = tuple(self._blocks.values())
        self.block_numbers = set(numbers.values())
        self.key: Key = numbers["inputs"], self.number
        header = self._regions["inputs"]
        write_header(header, self.number, numbers, place, packed)
        regions = {**self._regions, "inputs": header[HEADER_NBYTES:]}
        self.rows = layout.place(self._shape, regions, actions)
        assert self.rows.marks is not None
        self.marks = self.rows.marks
        self.marks[:] = 0
        self._sent = self.rows.inputs
        if kept:
            self.rows.inputs = inputs

    def begin(self) -> None:
        """Copy the inputs that every worker reads, except states. After this, call `parts`.

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
        if not self._verifies_late:
            self.verify()

    def parts(self) -> Iterator[tuple[int, int]]:
        """Copy the states, part by part; yield the rows of each part."""
        given, sent, count = self.inputs.states, self._sent.states, self.inputs.count
        if len(given) == 1:
            sent[:] = given
            yield 0, count
            return
        size = max(1, _PART_NBYTES // given.shape[1])
        for start in range(0, count, size):
            stop = min(start + size, count)
            sent[start:stop] = given[start:stop]
            yield start, stop

    def verify(self, start: int = 0, stop: int | None = None) -> None:
        """Verify the checksums of the states of rows ``start:stop``, unless this has been done.

        Raises
        ------
        StateFormatError
            A checksum is wrong.
        """
        if len(self.inputs.states) == 1:
            start, stop = 0, None
        self.layout.verify(self.inputs, start, stop)

    def result(self, errors: dict[int, Exception]) -> Any:
        """Return the result, whose memory then belongs to the caller; all rows must be done."""
        self.rows.inputs = self.inputs
        rows = self.rows if self._private <= {"inputs"} else self._copied()
        result = self.layout.result(rows, errors)
        self.release()
        return result

    def _copied(self) -> Rows:
        """Return the rows with copies of the arrays whose memory cannot be lent to the caller."""
        regions = {
            region: array.copy() if region in self._private and region != "inputs" else array
            for region, array in self._regions.items()
        }
        rows = self.layout.place(self._shape, regions, inputs=self.inputs)
        rows.infos = self.rows.infos
        for own, array in zip(rows.objects, self.rows.objects, strict=True):
            own[:] = array
        return rows

    # Blocks

    def _take_blocks(self, sizes: Mapping[str, int]) -> None:
        """Take one block for each region that is not empty (see `REGIONS`).

        Raises
        ------
        MemoryError, WorkerError
            There is not enough memory, or no file descriptor is left; no block is kept.
        """
        try:
            for region in REGIONS:
                if sizes[region]:
                    self._take(region, sizes[region])
        except BaseException:
            self.release()
            raise

    def _take(self, region: str, nbytes: int) -> None:
        pool = self._pools[region]
        try:
            block = pool.take(nbytes)
        except (MemoryError, WorkerError):
            for each in self._pools.values():
                each.drop_idle()
            block = pool.take(nbytes)
        self._blocks[region] = block
        lent = pool.lend(block) if region != "inputs" else None
        if lent is None:
            self._private.add(region)
            lent = as_bytes(block.memory)
        self._regions[region] = lent

    def release(self) -> None:
        """Give the blocks back to their pools; lent blocks follow when the caller drops the arrays.

        Call this only when no worker writes to the blocks any more. A second call is safe, even if
        Ctrl-C interrupted the first: no block is returned twice, so no two batches share a block.
        """
        while self._private:
            region = self._private.pop()
            self._pools[region].give(self._blocks[region])
        self._regions = {}
