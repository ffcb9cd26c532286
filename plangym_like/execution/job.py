"""`Job`: a batch for one worker, and the function with which the worker steps rows of it."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Inputs, Rows, steps_of
from plangym_like.batch.layout import Layout
from plangym_like.batch.row_stepper import RowStepper, row_exit
from plangym_like.errors import StateMismatchError
from plangym_like.execution.costs import CostModel
from plangym_like.execution.placement import Memory, Shape, place, signature
from plangym_like.execution.short_episode import ShortEpisode, check, play_rows
from plangym_like.execution.tokens import Range, Tokens
from plangym_like.processes.remote_errors import pack_exception
from plangym_like.processes.shared_memory import attach
from plangym_like.processes.wire import dumps

# The indexes of the fields of a progress slot, and its size in words of 64 bits: the row that the
# worker is stepping; the range that it has taken; whether the caller will add tokens; whether the
# worker should stop; and how long it has stepped rows so far, and how many.
CURSOR, START, STOP, MORE, CANCELLED, NANOSECONDS, STEPPED = range(7)
SLOT_WORDS = 8
# How long a worker waits for the next token while the caller is still adding tokens.
_TOKEN_SECONDS = 5e-3
# How long a worker steps rows before it looks whether the batch was cancelled.
_PORTION_SECONDS = 12e-3

# The number of batches whose arrays are cached; most programs use few shapes and blocks.
_KEPT_PLACES = 16

_blocks: dict[int, Memory] = {}
_placed: dict[tuple[Any, ...], Rows] = {}
_tokens: list[Tokens] = []
_costs = CostModel()


class HostedEnv(Protocol):
    """The interface of the `PlanEnv` that a worker hosts."""

    @property
    def row_stepper(self) -> RowStepper:
        """The object that steps rows in the worker."""

    def setup(self) -> None:
        """Make the environment, unless it exists already."""


class Job(NamedTuple):
    """A batch, of which a worker steps rows.

    Attributes
    ----------
    batch : int
        The number of the batch in tokens.
    worker : int
        The number of the worker's progress slot.
    slots : int
        The number of the block that holds all progress slots.
    signature : int
        The signature of the sender's layout.
    shape : Shape
        The shape of the batch.
    rows : (int, int) or None
        The only rows that the worker steps; ``None``: it takes tokens.
    blocks : mapping of str to int
        The number of each region's block.
    attached : sequence of int
        The numbers of blocks whose file descriptors are sent with the job. If it begins with 0, the
        descriptors of the pipe of tokens are sent before them.
    dropped : sequence of int
        The numbers of blocks that the worker no longer needs.
    masked : bool
        Whether to continue after a row that raises.
    audit : bool
        Whether the rows are stepped for an audit; see `RowStepper.run_rows`.
    actions : sequence or None
        The actions of all rows, if they are objects.
    """

    batch: int
    worker: int
    slots: int
    signature: int
    shape: Shape
    rows: Range | None
    blocks: Mapping[str, int]
    attached: Sequence[int]
    dropped: Sequence[int]
    masked: bool
    audit: bool
    actions: Sequence[Any] | None


@dataclass(slots=True)
class Report:
    """What a worker sends about its rows, in addition to the results in shared memory.

    Attributes
    ----------
    objects : bytes
        The pickled infos and observations that are Python objects, by index; empty if none.
    errors : dict of int to bytes
        If rows are masked, the packed exceptions of failed rows, by row index.
    """

    objects: bytes = b""
    errors: dict[int, bytes] = field(default_factory=dict)


def run_job(env: HostedEnv, job: Job, fds: Sequence[int] = ()) -> Report:
    """Step the ranges of the tokens that this worker takes, until there are none left.

    The worker's progress slot holds the range that it is stepping, and the row in it. When the
    range is done, its rows are marked. If the worker dies, the slot and the marks tell the parent
    which rows are left, and which row was being stepped.
    """
    _attach(job.attached, fds)
    if job.dropped:
        _placed.clear()
    for number in job.dropped:
        _blocks.pop(number, None)
    stepper = env.row_stepper
    layout = stepper.layout
    if signature(layout) != job.signature:
        raise StateMismatchError(
            "the worker's environment differs from the caller's: its constructor made another one "
            "there, or the environment behaves differently in each process (it iterates a set of "
            "strings, or draws from a global generator). The worker's state rows have the fields "
            f"{layout.format.fingerprint_fields}, and its observations are in "
            f"{layout.observation_space}",
            f"{job.signature:016x}",
            layout.format.fingerprint_fields,
        )
    rows = _rows_of(layout, job)
    steps = steps_of(rows.inputs)
    slot = progress_slot(_blocks[job.slots], job.worker)
    rows.cursor = slot[CURSOR : CURSOR + 1]
    assert rows.marks is not None
    errors: dict[int, Exception] = {}
    stepped: list[int] = []
    for start, stop in _ranges(job, slot):
        slot[START], slot[STOP] = start, stop
        while start < stop and not slot[CANCELLED]:
            middle = start + _portion(stop - start, steps)
            begun = time.perf_counter_ns()
            errors |= (
                stepper.run_rows(rows, start, middle, masked=job.masked, audit=job.audit) or {}
            )
            nanoseconds = time.perf_counter_ns() - begun
            _costs.note((middle - start) * steps, steps, seconds=nanoseconds * 1e-9)
            slot[NANOSECONDS] += nanoseconds
            slot[STEPPED] += middle - start
            rows.marks[start:middle] = job.worker + 1
            stepped.extend(range(start, middle) if rows.have_objects else ())
            slot[START] = start = middle
        slot[START] = slot[STOP]
    report = Report()
    if rows.have_objects:
        report.objects, refused = _pack(rows, job, stepped)
        if refused and not job.masked:
            slot[CURSOR] = min(refused)
            raise refused[min(refused)]
        errors |= refused
    report.errors = {index: pack_exception(error) for index, error in errors.items()}
    return report


def _portion(count: int, steps: float) -> int:
    """Return how many of `count` rows to step before looking whether the batch was cancelled."""
    seconds = _costs.seconds_per_row(steps)
    if not seconds:
        return 1
    if seconds * count <= 2 * _PORTION_SECONDS:
        return count
    return max(1, int(_PORTION_SECONDS / seconds))


def _ranges(job: Job, slot: NDArray[np.int64]) -> Iterator[Range]:
    """Yield the ranges that this worker takes."""
    if job.rows is not None:
        yield job.rows
        return
    tokens = _tokens[0]
    poller = select.poll()
    poller.register(tokens.read_fd, select.POLLIN)
    while not slot[CANCELLED]:
        more = slot[MORE]  # read before the pipe, which is filled before this is set to 0
        token = tokens.take()
        if token is not None and token[0] == job.batch:
            yield token[1:]
        elif token is not None:
            tokens.put_back(token[0], token[1:])
            break
        elif more:
            poller.poll(1000 * _TOKEN_SECONDS)
        else:
            break


def _pack(rows: Rows, job: Job, stepped: Sequence[int]) -> tuple[bytes, dict[int, Exception]]:
    """Pickle infos and observations; return the bytes, and the errors of unpicklable rows."""
    infos: dict[int, Any] = dict(rows.infos or {})
    observations: dict[int, Any] = {}
    span = max(1, job.shape.horizon)
    if isinstance(rows.observations, list):
        observations = {
            index: rows.observations[index]
            for row in stepped
            for index in range(row * span, (row + 1) * span)
        }
    if not (infos or observations):
        return b"", {}
    try:
        return dumps((infos, observations)), {}
    except BaseException:  # raised by pickling, since workers are not interrupted
        pass
    refused = {}
    for row in stepped:
        own = range(row * span, (row + 1) * span)
        error = _refusal((infos.get(row), [observations.get(index) for index in own]))
        if error is not None:
            refused[row] = error
            error.add_note("(its info or observation cannot be sent from its worker)")
            error.add_note(f"(in row {row} of a batch of {job.shape.rows})")
            infos.pop(row, None)
            for index in own:
                observations.pop(index, None)
    return dumps((infos, observations)), refused


def _refusal(value: Any) -> Exception | None:
    """Return the exception raised by pickling `value`, or ``None`` if it can be pickled."""
    try:
        dumps(value)
    except BaseException as error:
        return error if isinstance(error, Exception) else row_exit(error)
    return None


def _rows_of(layout: Layout, job: Job) -> Rows:
    """Return the batch of `job`; batches are cached by their shape and blocks.

    Without the cache, finding the arrays in their blocks would take most of the time before the
    first row.
    """
    key = job.shape, *job.blocks.values()
    if (rows := _placed.get(key)) is not None:
        return rows
    regions = {region: _blocks[number] for region, number in job.blocks.items()}
    rows = place(layout, job.shape, regions, job.actions)
    if job.actions is None and not rows.have_objects:
        if len(_placed) >= _KEPT_PLACES:
            _placed.clear()
        _placed[key] = rows
    return rows


def _attach(numbers: Sequence[int], fds: Sequence[int]) -> None:
    """Map the blocks `numbers` from the descriptors `fds`; keep none if one mapping fails.

    Number 0 is the pipe of tokens.
    """
    left = list(fds)
    if 0 in numbers:
        for tokens in _tokens:
            tokens.close()
        _tokens[:] = [Tokens(left.pop(0), left.pop(0))]
    numbers = [number for number in numbers if number]
    try:
        for number in numbers:
            _blocks[number] = attach(left.pop(0))
    except BaseException:
        for number in numbers:
            _blocks.pop(number, None)
        for fd in left:
            os.close(fd)
        raise


def progress_slot(slots: Memory, worker: int) -> NDArray[np.int64]:
    """Return the progress slot of one worker, ``(SLOT_WORDS,) int64``."""
    nbytes = 8 * SLOT_WORDS
    return slots[worker * nbytes : (worker + 1) * nbytes].view(np.int64)


def outside_cause(env: HostedEnv, inputs: Inputs) -> str:
    """Return what `RowStepper.outside_cause` says about rows in a worker."""
    return env.row_stepper.outside_cause(inputs)


def compare_with_caller(env: HostedEnv, expected: ShortEpisode) -> None:
    """Repeat the steps of the caller's environment, unless rows have another layout here.

    In that case, batches raise `StateMismatchError`.

    Raises
    ------
    DifferentWorkerError
        The results differ.
    """
    simulator, layout = env.row_stepper.simulator, env.row_stepper.layout
    if expected.start is not None and expected.signature == signature(layout):
        check(expected, play_rows(simulator, layout, expected.start))


def greet(env: HostedEnv) -> bool:
    """Make the environment, unless it exists already."""
    env.setup()
    env.row_stepper.hosted = True
    return True
