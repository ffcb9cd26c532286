"""`Job`: rows of a batch for one worker, and the function with which the worker steps them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from plangym_like.batches import Inputs, Rows
from plangym_like.errors import StateMismatchError
from plangym_like.execution.batch_costs import BatchCosts
from plangym_like.execution.costs import CostModel
from plangym_like.execution.placement import Memory, Shape, place, signature
from plangym_like.execution.short_episode import ShortEpisode, check, play_rows
from plangym_like.layout import Layout
from plangym_like.processes.messages import dumps
from plangym_like.processes.remote_errors import pack_exception
from plangym_like.processes.shared_memory import attach
from plangym_like.row_errors import row_exit
from plangym_like.row_stepper import RowStepper

# The indexes of the fields of a progress slot, and its size in int64 words; see `run_job`.
CURSOR, LIMIT, DONE, REACH, LEFT = 0, 1, 2, 3, 4
SLOT_WORDS = 8

# The number of batches whose arrays are cached; most programs use few shapes and blocks.
_KEPT_PLACES = 16

_blocks: dict[int, Memory] = {}
_placed: dict[tuple[Any, ...], Rows] = {}
_costs = CostModel()


class HostedEnv(Protocol):
    """The interface of the `PlanEnv` that a worker hosts."""

    @property
    def row_stepper(self) -> RowStepper:
        """The object that steps rows in the worker."""

    def setup(self) -> None:
        """Make the environment, unless it exists already."""


class Job(NamedTuple):
    """Rows of a batch for one worker: ``start:limit``; the worker's progress slot holds the limit.

    Attributes
    ----------
    worker : int
        The number of the worker's progress slot.
    slots : int
        The number of the block that holds all progress slots.
    signature : int
        The signature of the sender's layout.
    shape : Shape
        The shape of the batch.
    start, stop : int
        The worker steps at most the rows ``start:stop``; the limit in its progress slot may be
        lower than `stop`.
    blocks : mapping of str to int
        The number of each region's block.
    attached : sequence of int
        The numbers of blocks whose file descriptors are sent with the job.
    dropped : sequence of int
        The numbers of blocks that the worker no longer needs.
    careful : bool
        Whether to step one row at a time.
    masked : bool
        Whether to continue after a row that raises.
    audit : bool
        Whether the rows are stepped for an audit; see `RowStepper.run_rows`.
    actions : sequence or None
        The actions of the rows, if they are objects.
    """

    worker: int
    slots: int
    signature: int
    shape: Shape
    start: int
    stop: int
    blocks: Mapping[str, int]
    attached: Sequence[int]
    dropped: Sequence[int]
    careful: bool
    masked: bool
    audit: bool
    actions: Sequence[Any] | None


@dataclass(slots=True)
class Report:
    """A worker's report on its rows, in addition to the results in shared memory.

    Attributes
    ----------
    stop : int
        The index after the last row that is done.
    seconds : float
        The time that the rows took.
    objects : bytes
        The pickled infos and observations that are Python objects, by index; empty if none.
    errors : dict of int to bytes
        If rows are masked, the packed exceptions of failed rows, by row index.
    """

    stop: int
    seconds: float
    objects: bytes = b""
    errors: dict[int, bytes] = field(default_factory=dict)


def run_job(env: HostedEnv, job: Job, fds: Sequence[int] = ()) -> Report:
    """Step rows from ``job.start`` to the worker's limit, which the parent may change.

    The progress slot holds the row being stepped, the index after the last finished row, and the
    index after the last row that may have been written to. If the worker dies, these numbers tell
    the parent which rows are left and which row was being stepped. At the end, a flag in the slot
    says that all rows are done and that the limit will not be read again.
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
    slot = progress_slot(_blocks[job.slots], job.worker)
    rows.cursor = slot[CURSOR : CURSOR + 1]
    costs = BatchCosts(_costs, rows.inputs)
    errors: dict[int, Exception] = {}
    begun = time.perf_counter()
    at = job.start
    while (limit := min(job.stop, int(slot[LIMIT]))) > at:
        stop = at + 1 if job.careful else at + costs.portion(at, limit)
        slot[REACH] = stop
        started = time.perf_counter()
        errors |= stepper.run_rows(rows, at, stop, masked=job.masked, audit=job.audit) or {}
        costs.note_portion(at, stop, seconds=time.perf_counter() - started)
        slot[DONE] = at = stop
    costs.note_end()
    slot[LEFT] = 1
    report = Report(at, time.perf_counter() - begun)
    if rows.have_objects:
        report.objects, refused = _pack(rows, job, at)
        if refused and not job.masked:
            slot[CURSOR] = min(refused)
            raise refused[min(refused)]
        errors |= refused
    report.errors = {index: pack_exception(error) for index, error in errors.items()}
    return report


def _pack(rows: Rows, job: Job, stop: int) -> tuple[bytes, dict[int, Exception]]:
    """Pickle infos and observations; return the bytes, and the errors of unpicklable rows."""
    infos: dict[int, Any] = dict(rows.infos or {})
    observations: dict[int, Any] = {}
    span = max(1, job.shape.horizon)
    if isinstance(rows.observations, list):
        own = range(job.start * span, stop * span)
        observations = {index: rows.observations[index] for index in own}
    if not (infos or observations):
        return b"", {}
    try:
        return dumps((infos, observations)), {}
    except BaseException:  # raised by pickling, since workers are not interrupted
        pass
    refused = {}
    for row in range(job.start, stop):
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
    actions = None
    if job.actions is not None:
        actions = [None] * job.shape.rows
        actions[job.start : job.stop] = job.actions
    regions = {region: _blocks[number] for region, number in job.blocks.items()}
    rows = place(layout, job.shape, regions, actions)
    if actions is None and not rows.have_objects:
        if len(_placed) >= _KEPT_PLACES:
            _placed.clear()
        _placed[key] = rows
    return rows


def _attach(numbers: Sequence[int], fds: Sequence[int]) -> None:
    """Map the blocks `numbers` from the descriptors `fds`; keep none if one mapping fails."""
    left = list(fds)
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
    return True
