"""The child's side of a batch: run a range of rows where they lie in shared memory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.batches import Layout, Rows
from plangym_like.errors import StateMismatchError
from plangym_like.execution.placement import Memory, Shape, place, signature
from plangym_like.phases import PhaseClock
from plangym_like.plan_env import PlanEnv
from plangym_like.processes.messages import dumps
from plangym_like.processes.remote_errors import pack_exception
from plangym_like.processes.shared_memory import attach
from plangym_like.row_errors import row_exit

# One line of the control block belongs to each lane: (number of lanes, 8) int64.
CURSOR, LIMIT, DONE, REACH, LEFT = 0, 1, 2, 3, 4
CONTROL_WORDS = 8

_FINE_SECONDS, _COARSE_SECONDS = 4e-4, 12e-3
_KEPT_PLACES = 16

_blocks: dict[int, Memory] = {}
_placed: dict[tuple[Any, ...], Rows] = {}
_seconds_per_row = 0.0
_clock = PhaseClock()


class Job(NamedTuple):
    """Rows of a batch for one lane: from `start` to its limit, which never lies beyond `stop`.

    ``blocks`` names the block of each region; ``attached`` numbers the descriptors that came
    along, ``dropped`` the blocks to forget. ``careful`` steps one row at a time; ``masked`` goes on
    after a row that raises. ``actions`` are the range's actions where their space is no array.
    """

    lane: int
    control: int
    signature: int
    shape: Shape
    start: int
    stop: int
    blocks: Mapping[str, int]
    attached: Sequence[int]
    dropped: Sequence[int]
    careful: bool
    masked: bool
    actions: Sequence[Any] | None


@dataclass(slots=True)
class Report:
    """What a lane has to say of its rows beyond what stands in shared memory.

    ``phases`` are the seconds that a `PhaseClock` has counted since the last report, if any.
    ``objects`` are pickled infos and observations, by index, if there are any.
    """

    stop: int
    seconds: float
    phases: list[float]
    objects: bytes = b""
    errors: dict[int, bytes] = field(default_factory=dict)


def run_job(env: PlanEnv, job: Job, fds: Sequence[int] = ()) -> Report:
    """Step rows from ``job.start`` until the lane's limit, which the parent may move meanwhile.

    The lane writes which row it is in, up to where it is done, and up to where it may have written
    anything, so that its parent knows after any death which rows are left and which was running;
    and at last that it has left the rows and reads their limit no more.
    """
    global _seconds_per_row
    _attach(job.attached, fds)
    if job.dropped:
        _placed.clear()
    for number in job.dropped:
        _blocks.pop(number, None)
    layout = env.layout
    if signature(layout) != job.signature:
        raise StateMismatchError(
            "the worker's environment is not the caller's: its constructor gave another one, or it "
            "does something else in every process (it iterates a set of text, or draws from a "
            f"global generator). The worker's states mean {layout.format.meaning}, and its "
            f"observations are in {layout.observation_space}",
            f"{job.signature:016x}",
            layout.format.meaning,
        )
    rows = _rows_of(layout, job)
    control = control_line(_blocks[job.control], job.lane)
    rows.cursor = control[CURSOR : CURSOR + 1]
    errors: dict[int, Exception] = {}
    begun = time.perf_counter()
    at = job.start
    while (limit := min(job.stop, int(control[LIMIT]))) > at:
        stop = at + 1 if job.careful else at + portion(limit - at, _seconds_per_row)
        control[REACH] = stop
        rows.clock = _clock.sample(stop - at)
        started = time.perf_counter()
        if job.masked:
            errors |= env.run_rows_apart(rows, at, stop)
        else:
            env.run_rows(rows, at, stop)
        taken = (time.perf_counter() - started) / (stop - at)
        _seconds_per_row = faded_minimum(_seconds_per_row, taken)
        control[DONE] = at = stop
    control[LEFT] = 1
    report = Report(at, time.perf_counter() - begun, _clock.take())
    if rows.have_objects:
        report.objects, refused = _pack(rows, job, at)
        if refused and not job.masked:
            control[CURSOR] = min(refused)
            raise refused[min(refused)]
        errors |= refused
    report.errors = {index: pack_exception(error) for index, error in errors.items()}
    return report


def _pack(rows: Rows, job: Job, stop: int) -> tuple[bytes, dict[int, Exception]]:
    """Return those results that are objects, pickled, and the errors of rows that do not pickle."""
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
    except BaseException:  # workers are not interrupted, so pickling has raised this
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
    """Return why `value` cannot be pickled, or ``None`` if it can."""
    try:
        dumps(value)
    except BaseException as error:
        return error if isinstance(error, Exception) else row_exit(error)
    return None


def _rows_of(layout: Layout, job: Job) -> Rows:
    """Return the batch; where the last few of its shape lay in the same blocks, it is one of them.

    To find each array in its block takes longer than anything else that comes before the first row.
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
    """Map all these blocks, or none of them."""
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


def portion(remaining: int, seconds_per_row: float) -> int:
    """Return how many rows to step before looking up: fewer toward the end, so that lanes even out.

    >>> portion(1000, 1e-4), portion(30, 1e-4), portion(1000, 0.0)
    (120, 22, 1)
    """
    if seconds_per_row <= 0.0:
        return 1
    fine = max(1, int(_FINE_SECONDS / seconds_per_row))
    coarse = max(1, int(_COARSE_SECONDS / seconds_per_row))
    return min(remaining, max(fine, min(coarse, remaining * 3 // 4)))


def faded_minimum(best: float, measured: float) -> float:
    """Return the best of all measurements, older ones counting for less; 0 is none."""
    return min(measured, best * 1.05) if best else measured


def control_line(control: Memory, lane: int) -> NDArray[np.int64]:
    """Return the words of one lane, ``(CONTROL_WORDS,) int64``."""
    nbytes = 8 * CONTROL_WORDS
    return control[lane * nbytes : (lane + 1) * nbytes].view(np.int64)


def greet(env: PlanEnv) -> bool:
    """Answer as soon as the environment stands."""
    env.setup()
    return True
