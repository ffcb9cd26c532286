"""How one batch is dealt out to actors, and what happens when actors, nodes or rows fail.

Chunks are cut when an actor has room for one: large ones first, smaller ones toward the end, each
as large as the actor is fast, so that all are done at about the same time.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from plangym_like.batches import Layout, Rows
from plangym_like.cluster.chunk import Chunk, Harvest, moved
from plangym_like.cluster.ray_lane import DEPTH, RayLane
from plangym_like.cluster.ray_session import load
from plangym_like.errors import PoisonInputError
from plangym_like.execution.lane import faded_minimum, portion
from plangym_like.processes.remote_errors import unpack_exception

if TYPE_CHECKING:
    from plangym_like.cluster.ray_fleet import RayFleet

logger = logging.getLogger("plangym_like")

# Steps rows in this process; returns what each raised that failed, if rows are masked.
StepHere = Callable[[int, int], "dict[int, Exception] | None"]

# A chunk costs some 0.5 to 1 ms beyond its rows, so it should take well more than that.
_LEAST_SECONDS = 4e-3
_MOST_SECONDS = 1.0
_MOST_NBYTES = 16 << 20
_LAST_PIECES = 8
_DEPTH_UNATTENDED = 6
_LOOK_SECONDS = 0.05
# Stepping here while no actor stands: how long before looking whether one does.
_HERE_SECONDS = 0.02
_DEATHS_ALONE = 3
_BACKUP_SECONDS = 1.0
_BACKUP_FACTOR = 4.0


class RaySchedule:
    """One batch on its way.

    Parameters
    ----------
    fleet : RayFleet
        Owns actors and statistics.
    layout : Layout
        What the batch looks like.
    rows : Rows
        The batch in this process's memory.
    start : int
        The first row that is still to be stepped.
    send : callable
        ``send(lane, chunk)`` hands a chunk to an actor.
    step_here : callable or None
        ``step_here(start, stop)`` steps rows in this process and returns what masked ones raised;
        ``None``: never do that.
    errors : dict or None
        Takes what rows raise that are masked; ``None``: the lowest that fails is raised.
    """

    def __init__(
        self,
        fleet: RayFleet,
        layout: Layout,
        rows: Rows,
        start: int,
        send: Callable[[RayLane, Chunk], None],
        step_here: StepHere | None,
        errors: dict[int, Exception] | None,
    ) -> None:
        self._fleet = fleet
        self._layout = layout
        self._rows = rows
        self._send = send
        self._step_here = step_here
        self._pending: deque[Chunk] = deque([Chunk(start, rows.inputs.count)])
        self._open: set[Chunk] = set()
        self._errors = errors
        self._failure: tuple[int, BaseException] | None = None
        self._row_nbytes = _row_nbytes(rows)
        self._seconds_here = 0.0

    def launch(self, *, here: bool) -> None:
        """Give every actor that stands its first chunks.

        `here`: whether more of them will be dealt out at once, as actors get done. Otherwise they
        get most of the batch now.
        """
        self._deal(DEPTH if here else _DEPTH_UNATTENDED)

    def finish(self, until: float = math.inf) -> bool:
        """Bring the batch to its end; return whether that was done by the time `until`.

        Raises
        ------
        Exception
            What the lowest row that failed raised; rows above it may not have been stepped.
        """
        while True:
            self._deal()
            if not self._pending and not self._open:
                break
            left = until - time.monotonic()
            worked = left > 0 and self._step_own()
            for lane, ref in self._fleet.wait(
                0.0 if worked else max(0.0, min(left, _LOOK_SECONDS))
            ):
                self._hear(lane, ref)
            self._fleet.survey()
            if left <= 0 and (self._pending or self._open):
                self._deal()
                return False
            if not worked:
                self._fleet.ensure_hope()
        if self._failure is not None:
            raise self._failure[1]
        return True

    # Dealing out

    def _deal(self, depths: int = DEPTH) -> None:
        if self._pending:
            shares = self._shares()
            for depth in range(depths):
                for lane, part in shares.items():
                    if not self._pending:
                        break
                    if len(lane.tasks) == depth and not _has_suspect(lane):
                        self._deal_to(lane, part, alone=len(shares) == 1)
        if not self._pending and self._open and self._layout.exact:
            self._back_up()

    def _shares(self) -> dict[RayLane, float]:
        """Return which part of the work each actor that stands should get."""
        lanes = [lane for lane in self._fleet.lanes if lane.ready]
        if all(lane.seconds_per_row for lane in lanes):
            weights = [lane.speed for lane in lanes]
        else:
            weights = [float(lane.place.lanes) for lane in lanes]
        total = sum(weights)
        return {lane: weight / total for lane, weight in zip(lanes, weights, strict=True)}

    def _deal_to(self, lane: RayLane, part: float, *, alone: bool) -> None:
        chunk = self._pending[0]
        if chunk.suspect:
            if lane.tasks:
                return
            self._pending.popleft()
        else:
            size = self._size(lane, part, alone)
            if size < len(chunk):
                self._pending[0] = Chunk(chunk.start + size, chunk.stop)
                chunk = Chunk(chunk.start, chunk.start + size)
            else:
                self._pending.popleft()
        self._open.add(chunk)
        self._send(lane, chunk)

    def _size(self, lane: RayLane, part: float, alone: bool) -> int:
        """Return how many rows the lane's next chunk should have."""
        rest = sum(map(len, self._pending))
        guided = -(-int(rest * part) // DEPTH)
        # What is left at the end is dealt out finely only if there are several to deal it to; and
        # with one, pieces only serve to send the first results while the last are stepped.
        pieces = _LAST_PIECES if not alone else 1 if lane.near else DEPTH
        least = self._rows.inputs.count * part / pieces
        most = _MOST_NBYTES / self._row_nbytes
        if lane.seconds_per_row:
            least = max(least, _LEAST_SECONDS / lane.seconds_per_row)
            most = min(most, max(least, _MOST_SECONDS / lane.seconds_per_row))
        size = max(guided, int(least))
        if rest - size < least / 2:
            size = rest
        return max(1, min(size, int(most)))

    def _back_up(self) -> None:
        """Give what takes far longer than it should to a second actor that has nothing to do.

        Its node may be lost without anybody knowing yet. Rows are pure, so whichever copy comes
        first is right.
        """
        now = time.monotonic()
        idle = [lane for lane in self._fleet.lanes if lane.ready and not lane.tasks]
        if not idle:
            return
        for lane in self._fleet.lanes:
            for owner, chunk in list(lane.tasks.values()):
                patience = _BACKUP_FACTOR * lane.seconds_per_row * len(chunk) * DEPTH
                late = now - chunk.sent_at > max(_BACKUP_SECONDS, patience)
                fresh = owner is self and not chunk.done and not chunk.suspect
                if idle and late and fresh and lane.seconds_per_row and chunk.copies == 1:
                    self._send(idle.pop(), chunk)
                    self._fleet.stats.backups += 1

    def _step_own(self) -> bool:
        """Step some rows here while no actor stands; return whether there was anything to do."""
        if self._step_here is None or not self._pending:
            return False
        if self._fleet.stands:
            return False
        until = time.perf_counter() + _HERE_SECONDS
        while self._pending and (now := time.perf_counter()) < until:
            chunk = self._pending[0]
            stop = chunk.start + portion(len(chunk), self._seconds_here)
            try:
                raised = self._step_here(chunk.start, stop)
            except Exception as error:
                self._fail(int(self._rows.cursor[0]), error)
                break
            if self._errors is not None and raised:
                self._errors |= raised
            taken = (time.perf_counter() - now) / (stop - chunk.start)
            self._seconds_here = faded_minimum(self._seconds_here, taken)
            self._pending.popleft()
            if stop < chunk.stop:
                self._pending.appendleft(Chunk(stop, chunk.stop, chunk.suspect))
        return True

    # Hearing from actors

    def _hear(self, lane: RayLane, ref: Any) -> None:
        if ref not in lane.tasks:  # a greeting, or the lane has been lost meanwhile
            self._fleet.arrive(lane)
            return
        ray = load()
        owner, chunk = lane.tasks.pop(ref)
        chunk.copies -= 1
        try:
            harvest = lane.harvest(ref)
        except ray.exceptions.ObjectLostError as error:
            # The actor lives, but what it had to say was lost on the way.
            logger.warning("rows %d to %d were lost on their way: %s", *chunk.range, error)
            self._take_back([(owner, chunk)])
        except ray.exceptions.RayTaskError as error:
            if owner is self:
                self._fail(chunk.start, error)
                self._open.discard(chunk)
        except (ray.exceptions.RayError, EOFError) as error:
            tasks = [(owner, chunk), *self._fleet.lose(lane, error)]
            self._take_back(tasks, suspect=self._fleet.is_alive(lane.place.node))
        else:
            lane.fetch(ref, harvest, self._layout)
            self._fleet.note(lane, chunk, harvest)
            if owner is self and not chunk.done:
                self._store(chunk, harvest, near=lane.near)

    def _store(self, chunk: Chunk, harvest: Harvest, *, near: bool) -> None:
        chunk.done = True
        self._open.discard(chunk)
        start, count = chunk.start, self._rows.inputs.count
        if harvest.error is not None:
            error = unpack_exception(harvest.error)
            self._fail(start, moved(error, start, count, of_row=not harvest.verdicts))
            return
        if self._errors is not None:
            for index, packed in harvest.failed.items():
                of_row = index not in harvest.verdicts
                error = moved(unpack_exception(packed), start, count, of_row=of_row)
                self._errors[start + index] = cast(Exception, error)
        nbytes = harvest.put(self._layout, self._rows, chunk.start)
        if not near:
            self._fleet.stats.bytes_received += nbytes

    def _take_back(self, tasks: list[tuple[Any, Chunk]], *, suspect: bool = False) -> None:
        """Deal chunks out again; the first is what their actor was in when it died, if it did."""
        for owner, chunk in tasks:
            if owner is self and not chunk.done and not chunk.copies:
                self._open.discard(chunk)
                if self._failure is None or chunk.start < self._failure[0]:
                    self._again(chunk, suspect)
            suspect = False

    def _again(self, chunk: Chunk, suspect: bool) -> None:
        self._fleet.stats.rows_retried += len(chunk)
        if not suspect:
            self._pending.append(chunk)
        elif len(chunk) > 1:
            middle = (chunk.start + chunk.stop) // 2
            self._pending.append(Chunk(chunk.start, middle, suspect=True))
            self._pending.append(Chunk(middle, chunk.stop, suspect=True))
        else:
            chunk.deaths += chunk.suspect
            chunk.suspect = True
            if chunk.deaths < _DEATHS_ALONE:
                self._pending.append(chunk)
            elif self._errors is not None:
                self._errors[chunk.start] = _poisoned(chunk.start)
            else:
                self._fail(chunk.start, _poisoned(chunk.start))

    # Failing

    def _fail(self, row: int, error: BaseException) -> None:
        """Note the failure of a chunk that starts at `row`; nothing above need be stepped now."""
        if self._failure is None or row < self._failure[0]:
            self._failure = (row, error)
        last = self._failure[0]
        below = [chunk for chunk in self._pending if chunk.start < last]
        for chunk in below:
            chunk.stop = min(chunk.stop, last)
        self._pending = deque(below)
        self._open = {chunk for chunk in self._open if chunk.start < last}


def _has_suspect(lane: RayLane) -> bool:
    return any(chunk.suspect for _, chunk in lane.tasks.values())


def _row_nbytes(rows: Rows) -> int:
    """Return roughly how many bytes of results a row has."""
    inputs = rows.inputs
    nbytes = 64 + (0 if rows.next_states is None else rows.next_states.shape[1])
    observations = rows.observations
    if isinstance(observations, list):
        return nbytes + 256 * max(1, inputs.horizon)
    stack = [observations]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            stack += part.values()
        elif isinstance(part, tuple):
            stack += part
        elif part is not None:
            nbytes += part.nbytes // max(1, inputs.count)
    return nbytes


def _poisoned(row: int) -> PoisonInputError:
    return PoisonInputError(
        f"row {row} killed {_DEATHS_ALONE} fresh actors that stepped nothing else, although rows "
        "never run in an actor's own process: it may need more memory than its node has; the "
        "cluster is usable, leave that row out",
        row,
        None,
    )
