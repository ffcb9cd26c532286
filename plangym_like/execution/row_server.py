"""`serve`: how a worker steps rows of batches.

A worker serves: it takes tokens from the pipe that all processes of its pool read (see `Tokens`),
steps their rows, and marks these in shared memory. In the usual case no message is sent. A worker
stops serving, and so replies to its owner, if it has results that are no arrays, if a row raises an
exception, or if its owner has sent another request.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from plangym_like.batch.arrays import Rows
from plangym_like.batch.layout import Layout
from plangym_like.batch.row_stepper import row_exit
from plangym_like.errors import StateMismatchError
from plangym_like.execution.shared_batch import (
    HEADER_NBYTES,
    RESULTS,
    Description,
    Key,
    Range,
    Tokens,
    read_header,
)
from plangym_like.processes.remote_errors import pack_exception
from plangym_like.processes.shared_memory import WRITES_IN_ORDER, attach
from plangym_like.processes.wire import dumps, loads
from plangym_like.processes.worker import wait_for_request
from plangym_like.states.rows import Row

# The indexes of the fields of a progress slot, and its size in words of 64 bits: the row that the
# worker is stepping; the range that it has taken; whether it may have taken a token; the number of
# its batch; how long it has stepped rows so far, and how many.
CURSOR, START, STOP, BUSY, BATCH, NANOSECONDS, STEPPED = range(7)
SLOT_WORDS = 16
# The frames of this module that are left out of tracebacks.
_OWN_FRAMES = 2
# The longest time that a worker waits for a token or a request.
_WAIT_SECONDS = 60.0

# The number of batches whose arrays are cached; most programs use few shapes and blocks.
_KEPT_PLACES = 16


class Order(NamedTuple):
    """A request to a worker to step rows.

    Attributes
    ----------
    attached : sequence of int
        The numbers of blocks whose file descriptors are sent with the order.
    dropped : sequence of int
        The numbers of blocks that the worker no longer needs.
    """

    attached: Sequence[int]
    dropped: Sequence[int]


@dataclass(slots=True)
class Report:
    """What a worker sends about rows, in addition to the results in shared memory.

    Attributes
    ----------
    batch : int
        The number of the batch; 0 if there is nothing to say.
    stepped : list of (int, int)
        The ranges of rows that it reports on, whose results it has not reported before.
    objects : dict of int to bytes
        The infos and observations that are Python objects, pickled, by row index.
    errors : dict of int to bytes
        If rows are masked, the packed exceptions of failed rows, by row index.
    failure : bytes
        If rows are not masked, the packed exception of the row that has failed; empty if none.
    row : int
        The row that has failed; the rows from `start` to this one have been stepped.
    start : int
    """

    batch: int = 0
    stepped: list[Range] = field(default_factory=list)
    objects: dict[int, bytes] = field(default_factory=dict)
    errors: dict[int, bytes] = field(default_factory=dict)
    failure: bytes = b""
    row: int = 0
    start: int = 0


def unreported(worker: int) -> int:
    """Return the mark of rows whose results `worker` has not reported yet."""
    return -2 - worker


@dataclass(slots=True)
class _Batch:
    """A batch that this worker steps rows of."""

    key: Key
    description: Description
    rows: Rows

    def is_done(self) -> bool:
        """Return whether all rows are marked."""
        assert self.rows.marks is not None
        return bool(self.rows.marks.all())


class _RowServer:
    """Steps rows of batches in this process; there is one for each process.

    Its blocks stay mapped from one request to the next.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, Row] = {}
        self._placed: dict[tuple[Any, ...], tuple[Description, Rows]] = {}
        self._tokens: Tokens
        self._done_fd = -1
        self._batch: _Batch | None = None
        self._errors: dict[int, Exception] = {}
        self._stepped: list[Range] = []
        self._reports = False

    def connect(self, worker: int, linger: float, fds: Sequence[int]) -> None:
        """Take the descriptors that `greet` describes."""
        if self._done_fd >= 0:
            self._tokens.close()
            os.close(self._done_fd)
        slots_fd, read_fd, write_fd, self._done_fd = fds
        self._tokens = Tokens(read_fd, write_fd)
        nbytes = 8 * SLOT_WORDS
        slots = attach(slots_fd)
        self._slot = slots[worker * nbytes : (worker + 1) * nbytes].view(np.int64)
        self._worker, self._linger = worker, linger

    def begin(self, env: Any, order: Order, fds: Sequence[int]) -> None:
        """Get ready for an order.

        Raises
        ------
        MemoryError
            A block cannot be mapped.
        """
        self._map(order.attached, list(fds))
        if order.dropped:
            self._placed.clear()
            self._batch = None
        for number in order.dropped:
            self._blocks.pop(number, None)
        self._stepper = env.row_stepper

    def serve(self) -> None:
        """Step the rows of tokens until there is something to report, or another request.

        Requests are looked for between batches: the owner sends none to a worker with tokens left.
        """
        slot, tokens, stepped, until = self._slot, self._tokens, True, 0.0
        while True:
            slot[BUSY] = 1
            token = tokens.take()
            if token is not None:
                key, (start, stop) = token
                if key != self._key and (self._reports or not self._open_next(key)):
                    tokens.put_back(key, (start, stop))
                    break
                if self._batch is not None:
                    self._step(start, stop)
                    stepped = True
                continue
            if self._reports:
                break
            slot[BUSY] = 0
            if self._batch is not None and self._batch.is_done():
                os.eventfd_write(self._done_fd, 1)
                self._batch = None
            if stepped:
                stepped, until = False, time.perf_counter() + self._linger
            if self._waits(until):
                break

    def _open_next(self, key: Key) -> bool:
        """Find the batch `key`; return False if a request, such as for its blocks, comes first."""
        return not wait_for_request(-1, 0.0) and self._open(key)

    def _waits(self, until: float) -> bool:
        """Wait for the next token or request; return whether there is a request.

        Poll until `until`, and sleep after that.
        """
        tokens = self._tokens
        while time.perf_counter() < until:
            if wait_for_request(-1, 0.0):
                return True
            if len(tokens):
                return False
            os.sched_yield()
        return wait_for_request(tokens.read_fd, _WAIT_SECONDS)

    @property
    def _key(self) -> Key | None:
        return None if self._batch is None else self._batch.key

    def _open(self, key: Key) -> bool:
        """Find the batch `key`; return False if this process does not have its blocks yet.

        If the batch is over, `_batch` is ``None``.
        """
        if self._batch is not None and self._batch.key == key:
            return True
        block, number = key
        if block not in self._blocks:
            return False
        memory = self._blocks[block]
        found, results, pickled = read_header(memory)
        self._batch = None
        if found != number:
            return True
        if not all(each in self._blocks for each in results if each):
            return False
        packed = pickled.tobytes()
        cached = self._placed.get((block, *results, packed))
        if cached is None:
            cached = self._place(block, results, packed)
        description, rows = cached
        if rows.infos is not None:
            rows = replace(rows, infos={})
        slot = self._slot
        slot[CURSOR], slot[START], slot[STOP], slot[BATCH] = -1, 0, 0, number
        rows.cursor = slot[CURSOR : CURSOR + 1]
        self._batch = _Batch(key, description, rows)
        return True

    def _place(self, block: int, results: Sequence[int], packed: bytes) -> tuple[Description, Rows]:
        """Return a batch's description and its arrays.

        Batches whose inputs are arrays are cached by their shape and blocks. Without the cache,
        finding the arrays in their blocks would take most of the time before the first row.
        """
        description: Description = loads(packed)
        regions = {
            region: self._blocks[number]
            for region, number in zip(RESULTS, results, strict=True)
            if number
        }
        regions["inputs"] = self._blocks[block][HEADER_NBYTES:]
        layout, actions = self._stepper.layout, description.actions
        rows = layout.place(description.shape, regions, actions)
        rows.inputs.verified = description.verified
        found = description, rows
        if actions is None and isinstance(rows.inputs.dt, int) and not rows.objects:
            if len(self._placed) >= _KEPT_PLACES:
                self._placed.clear()
            self._placed[block, *results, packed] = found
        return found

    def _step(self, start: int, stop: int) -> None:
        """Step a range of rows, and mark them.

        The progress slot holds the range, and the row in it. If the worker dies, the slot and the
        marks tell the owner which rows are left, and which row was being stepped.
        """
        batch = self._batch
        assert batch is not None and batch.rows.marks is not None
        slot, rows, description = self._slot, batch.rows, batch.description
        slot[START], slot[STOP] = start, stop
        begun = time.perf_counter_ns()
        rows.cursor[0] = start
        self._stepper.layout.verify(rows.inputs, start, stop)
        errors = self._stepper.run_rows(rows, start, stop, masked=description.masked)
        self._errors |= errors or {}
        slot[NANOSECONDS] += time.perf_counter_ns() - begun
        slot[STEPPED] += stop - start
        if not WRITES_IN_ORDER or self._errors or _holds_objects(rows):
            self._reports = True
            self._stepped.append((start, stop))
        mark = unreported(self._worker) if self._reports else self._worker + 1
        batch.rows.marks[start:stop] = mark
        slot[START] = stop

    def report(self, failure: BaseException | None = None) -> Report:
        """Return the report on the rows that have been stepped since the last one.

        `failure` is the exception of a row, if one was raised.
        """
        batch, self._batch = self._batch, None
        errors, self._errors = self._errors, {}
        stepped, self._stepped, self._reports = self._stepped, [], False
        report, slot = Report(), self._slot
        if failure is not None and batch is None:
            raise failure
        if batch is not None and (stepped or failure is not None):
            report.batch, report.stepped = batch.key[1], stepped
            report.start = int(slot[START])
            report.row = max(int(slot[CURSOR]), report.start)
            if _holds_objects(batch.rows):
                rows = itertools.chain.from_iterable(range(*each) for each in stepped)
                report.objects, refused = _pack(batch.rows, rows)
                if refused and not batch.description.masked and failure is None:
                    report.row = report.start = min(refused)
                    failure = refused[report.row]
                errors |= refused
            report.errors = {index: pack_exception(error) for index, error in errors.items()}
            if failure is not None:
                report.failure = pack_exception(failure, skip_frames=_OWN_FRAMES)
        slot[START] = slot[STOP] = 0
        slot[BUSY] = 0
        return report

    def _map(self, numbers: Sequence[int], fds: list[int]) -> None:
        """Map the blocks `numbers`; keep none if one mapping fails."""
        # A separate method, for the same reason as in `RowStepper._run_range`.
        try:
            for number in numbers:
                self._blocks[number] = attach(fds.pop(0))
        except BaseException:
            for number in numbers:
                self._blocks.pop(number, None)
            for fd in fds:
                os.close(fd)
            raise


_server = _RowServer()


def serve(env: Any, order: Order, fds: Sequence[int] = ()) -> Report:
    """Serve until there is something to report, or another request."""
    _server.begin(env, order, fds)
    try:
        _server.serve()
    except BaseException as error:
        return _server.report(error)
    return _server.report()


def _mismatch(layout: Layout) -> StateMismatchError:
    return StateMismatchError(
        "the worker's environment differs from the caller's: its constructor made another one "
        "there, or the environment behaves differently in each process (it iterates a set of "
        "strings, or draws from a global generator); or the environments that were given to a "
        "BatchEnv differ. The worker's state rows have the fields "
        f"{layout.format.fingerprint_fields}, and its observations are in "
        f"{layout.observation_space}",
        f"{layout.signature:016x}",
        layout.format.fingerprint_fields,
    )


def _holds_objects(rows: Rows) -> bool:
    """Return whether some of the results so far are Python objects."""
    return bool(rows.infos or rows.objects)


def _pack(rows: Rows, stepped: Iterable[int]) -> tuple[dict[int, bytes], dict[int, Exception]]:
    """Pickle the info and the observations of each row, so that each can be read alone.

    Return them by row index, and the errors of the rows for which this failed.
    """
    packed: dict[int, bytes] = {}
    refused: dict[int, Exception] = {}
    infos = rows.infos or {}
    for row in stepped:
        if not rows.objects and row not in infos:
            continue
        try:
            packed[row] = dumps((infos.get(row), [array[row] for array in rows.objects]))
        except BaseException as error:  # pickling raised it: workers are not interrupted
            failure = error if isinstance(error, Exception) else row_exit(error)
            failure.add_note("(its info or observation cannot be sent from its worker)")
            failure.add_note(f"(in row {row} of a batch of {rows.inputs.count})")
            refused[row] = failure
    return packed, refused


def greet(env: Any, worker: int, linger: float, signature: int, fds: Sequence[int]) -> None:
    """Make the environment, unless it exists already, and get ready to serve.

    Parameters
    ----------
    env : PlanEnv
    worker : int
        The number of the worker's progress slot.
    linger : float
        Seconds for which the worker polls for the next token before it sleeps.
    signature : int
        The signature of the owner's layout.
    fds : sequence of int
        The descriptors of the block of progress slots, of both ends of the pipe of tokens, and of
        the event that tells the owner that a batch is done.

    Raises
    ------
    StateMismatchError
        The batches of `env` have another layout than those of the owner.
    """
    _server.connect(worker, linger, fds)
    env.setup()
    env.row_stepper.hosted = True
    layout = env.row_stepper.layout
    if layout.signature != signature:
        raise _mismatch(layout)
