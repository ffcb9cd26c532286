"""`SharedBatch`: one batch in shared memory; `Tokens`: its rows that no process has begun.

`BlockPool` lends blocks of memory to batches, and to the arrays of their results. Workers find the
description of a batch in the block of its inputs. `cut` divides its rows into ranges. Each process
takes the next one.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import mmap
import os
import struct
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Inputs, Rows, SubmitOptions
from plangym_like.batch.layout import REGIONS, Layout, Shape, shape_of
from plangym_like.errors import WorkerError
from plangym_like.processes.shared_memory import SharedBlock
from plangym_like.processes.wire import dumps
from plangym_like.states.rows import Row
from plangym_like.support import fork_safety

# The states of a batch are copied in parts of so many bytes, so that workers can begin with the
# first part (`benchmarks/bench.py`, MsPacman with 256 states).
_PART_NBYTES = 1 << 20
_numbers = itertools.count(1)
# The first bytes of the block that holds a batch's inputs, as int64: the number of the batch; the
# numbers of the blocks of its results (0 for none); where its `Description` is pickled, and its
# size.
HEADER_NBYTES = 64
_WORDS = 6
RESULTS = ("states", "observations", "outcomes")
# The batch's key (see `Key`), and the range of its rows.
_TOKEN = struct.Struct("=qqqq")
# The most tokens of one write; the kernel does not divide writes of up to 4,096 bytes.
_MOST = 4096 // _TOKEN.size
# No tokens are added while the pipe holds so many, so that tokens can always be put back.
_FULL = 1000
# Rows are stepped in ranges that take `_COARSE_SECONDS`, and less toward the end of a batch, down
# to `FINE_SECONDS` (`benchmarks/bench.py`, 16 to 256 rows). In each round, every process gets an
# equal part of this fraction of the rows that are left.
FINE_SECONDS, _COARSE_SECONDS = 2.5e-4, 12e-3
_ROUND = 0.75
# Added to a number of rows before it is rounded down: it may be a whole number, but for rounding.
_ROUNDING = 1e-6

Range = tuple[int, int]
# The number of the block that describes a batch, and the number of the batch.
Key = tuple[int, int]


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
    pool : BlockPool
        Where the blocks come from.
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
        self, layout: Layout, pool: BlockPool, inputs: Inputs, options: SubmitOptions
    ) -> None:
        self.layout, self.masked, self.audit = layout, options.masked, options.audit
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
        description = Description(self._shape, self.masked, not self._verifies_late, actions)
        packed = _packed(description) if actions is None else dumps(description)
        place = HEADER_NBYTES + sizes["inputs"]
        sizes["inputs"] = place + len(packed)
        self._pool = pool
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
        pool = self._pool
        try:
            block = pool.take(nbytes)
        except (MemoryError, WorkerError):
            pool.drop_idle()
            block = pool.take(nbytes)
        self._blocks[region] = block
        # Audits keep results across calls, and few blocks can be lent.
        lent = None if region == "inputs" or self.audit else pool.lend(block)
        if lent is None:
            self._private.add(region)
            lent = np.frombuffer(block.memory, np.uint8)
        self._regions[region] = lent

    def void(self) -> None:
        """Let workers ignore tokens of this batch from now on: its header names no batch."""
        if "inputs" in self._regions:
            self._regions["inputs"][:HEADER_NBYTES].view(np.int64)[0] = 0

    def release(self) -> None:
        """Give the blocks back to their pools; lent blocks follow when the caller drops the arrays.

        Call this only when no worker writes to the blocks any more. A second call is safe, even if
        Ctrl-C interrupted the first: no block is returned twice, so no two batches share a block.
        """
        while self._private:
            region = self._private.pop()
            self._pool.give(self._blocks[region])
        self._regions = {}


@dataclass(eq=False)
class BlockPool:
    """Lends blocks as arrays, and reuses a block when its array has been garbage-collected.

    If Ctrl-C interrupts a method, the pool may lose a block, which is then freed.

    Parameters
    ----------
    most_lent : int
        How many blocks may be lent at the same time; each of them uses two file descriptors.
    most_idle : int
        How many unused blocks are kept.
    """

    most_lent: int = 12
    most_idle: int = 8
    _idle: list[SharedBlock] = field(default_factory=list, init=False)
    # The lent blocks, with weak references to their arrays, by the ids of these references.
    _lent: dict[int, tuple[weakref.ref[NDArray[np.uint8]], SharedBlock]] = field(
        default_factory=dict, init=False
    )
    _returned: deque[weakref.ref[Any]] = field(default_factory=deque, init=False)
    _num_forks: int = field(default=-1, init=False)

    def take(self, nbytes: int) -> SharedBlock:
        """Return a block of at least `nbytes` that is not much larger."""
        if self._num_forks != fork_safety.num_forks:
            # The arrays that are lent may still be used in a forked copy of this process.
            self._num_forks = fork_safety.num_forks
            self._lent.clear()
        while self._returned:
            _, returned = self._lent.pop(id(self._returned[0]), (None, None))
            self._returned.popleft()
            if returned is not None:
                self.give(returned)
        found, most = None, 2 * nbytes + mmap.PAGESIZE
        for block in self._idle:
            if nbytes <= block.nbytes <= most:
                found, most = block, block.nbytes - 1  # the smallest one that fits
        if found is None:
            return SharedBlock(nbytes)
        self._idle.remove(found)
        return found

    def lend(self, block: SharedBlock) -> NDArray[np.uint8] | None:
        """Return an array over `block`; the block becomes idle when the array is dropped.

        Return ``None``, and lend nothing, if too many blocks are lent.
        """
        if len(self._lent) >= self.most_lent:
            return None
        array = np.frombuffer(block.memory, np.uint8)
        # The callback may run anywhere, even inside this class, so it only appends to a queue.
        reference = weakref.ref(array, self._returned.append)
        self._lent[id(reference)] = reference, block
        return array

    def give(self, block: SharedBlock) -> None:
        """Take back a block that was not lent."""
        self._idle.append(block)
        while len(self._idle) > self.most_idle:
            self._idle.pop(0).close()

    def drop_idle(self) -> None:
        """Drop all unused blocks."""
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        """Drop every block; arrays over lent ones stay valid."""
        for _, block in self._lent.values():
            block.close()
        for block in self._idle:
            block.close()
        self._lent.clear()
        self._idle.clear()


class Tokens:
    """A pipe of tokens, which all processes of a pool read.

    A token is written and read as a whole, because the kernel locks a pipe during each read and
    write, and everything in it is a multiple of a token. So the processes need no lock of their
    own, which a killed process could hold.

    Parameters
    ----------
    read_fd, write_fd : int
        The descriptors of a pipe, which this object closes; by default, a new pipe is made.
    """

    def __init__(self, read_fd: int = -1, write_fd: int = -1) -> None:
        if read_fd < 0:
            read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.read_fd, self.write_fd = read_fd, write_fd
        self._finalizers = (
            weakref.finalize(self, os.close, read_fd),
            weakref.finalize(self, os.close, write_fd),
        )
        for each in self._finalizers:
            each.atexit = False

    def put(self, batch: Key, ranges: Iterable[Range]) -> list[Range]:
        """Add tokens; return those for which there is no room."""
        left = list(ranges)
        while left and len(self) < _FULL:
            packed = bytearray()
            for each in left[:_MOST]:
                packed += _TOKEN.pack(*batch, *each)
            try:
                os.write(self.write_fd, packed)
            except OSError:  # full, or closed by another thread
                break
            del left[:_MOST]
        return left

    def put_back(self, batch: Key, rows: Range) -> None:
        """Put back a token that this process has taken."""
        while self.write_fd >= 0:  # otherwise another thread has closed it
            with contextlib.suppress(BlockingIOError):
                os.write(self.write_fd, _TOKEN.pack(*batch, *rows))
                return
            time.sleep(1e-3)  # others take tokens meanwhile

    def take(self) -> tuple[Key, Range] | None:
        """Remove the next token, and return its batch and its rows; ``None`` if none is left."""
        try:
            block, number, start, stop = _TOKEN.unpack(os.read(self.read_fd, _TOKEN.size))
        except OSError:  # empty, or closed by another thread
            return None
        return (block, number), (start, stop)

    def take_of(self, batch: Key) -> Range | None:
        """Return the next token's range if it is of `batch`; otherwise leave the token there."""
        token = self.take()
        if token is None:
            return None
        if token[0] != batch:
            self.put_back(*token)
            return None
        return token[1]

    def drain(self, batch: Key | None) -> list[Range]:
        """Remove all tokens, and return the ranges of those of `batch`."""
        found = []
        while (token := self.take()) is not None:
            if token[0] == batch:
                found.append(token[1])
        return found

    def __len__(self) -> int:
        if self.read_fd < 0:
            return 0
        import fcntl
        import termios

        nbytes = fcntl.ioctl(self.read_fd, termios.FIONREAD, b"\0" * 4)
        return int.from_bytes(nbytes, sys.byteorder) // _TOKEN.size

    def close(self) -> None:
        """Close the pipe; safe to call more than once."""
        self.read_fd = self.write_fd = -1
        for each in self._finalizers:
            each()


def cut(
    start: int,
    stop: int,
    steps: int | NDArray[np.int64],
    step_seconds: float,
    processes: int,
    later: float = 0.0,
    fine_seconds: float = FINE_SECONDS,
) -> Iterator[Range]:
    """Divide the rows ``start:stop`` into ranges, which become smaller toward the end.

    They come in rounds of one range for each process. The fewer rounds, the less time is lost to
    what a range costs in addition to its rows; the shorter the last ranges, the less time
    processes wait for each other at the end.

    Parameters
    ----------
    start, stop : int
    steps : int or array ``(N,)``
        How many single steps each row takes, or all rows of the batch.
    step_seconds : float
        Seconds of a single step; 0 if it is not known.
    processes : int
        The number of processes that take the ranges.
    later : float
        How many single steps the rows take that will be dealt after these.
    fine_seconds : float
        The least seconds that a range takes, unless too few rows are left for all processes.

    Examples
    --------
    >>> list(cut(0, 100, 1, 1e-4, 2))
    [(0, 37), (37, 75), (75, 84), (84, 93), (93, 95), (95, 98), (98, 99), (99, 100)]
    """
    count, second = stop - start, step_seconds or 1.0
    # When the rows end, in seconds; with one number of steps for all rows, nothing is searched.
    ends, each = None, 0.0
    if isinstance(steps, int):
        each = steps * second
        total = count * each
    else:
        ends = np.cumsum(steps[start:stop], dtype=np.float64) * second
        total = float(ends[-1]) if count else 0.0
    total += later * second
    coarse = _COARSE_SECONDS if step_seconds else total
    fine = min(fine_seconds, coarse) if step_seconds else 0.0
    at, taken, until, size, number = 0, 0.0, 0.0, 0.0, 0
    while at < count:
        if number % processes == 0:
            until, equal = taken, (total - taken) / processes
            size = min(coarse, _ROUND * equal)
            if size < fine:  # this is the last round
                size = equal
        until, number = until + size, number + 1
        if ends is None:
            end = min(count, max(at + 1, int(until / each + _ROUNDING)))
            taken = end * each
        else:
            end = max(at + 1, int(ends.searchsorted(until, side="right")))
            taken = float(ends[end - 1])
        yield start + at, start + end
        at = end
