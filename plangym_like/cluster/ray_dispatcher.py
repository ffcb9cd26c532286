"""`RayDispatcher`: distributes the rows of one batch to this machine and to remote actors.

An actor is sent *chunks*: ranges of rows that no process has begun. Chunks become smaller
toward the end of the batch, and faster actors get larger ones, so all machines are done at about
the same time. Stepping a row again gives the same result, so the chunks of a lost actor are
requeued.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import cast

from plangym_like.batch.arrays import single_steps
from plangym_like.cluster.actors import ActorHandle, ActorPool
from plangym_like.cluster.chunks import Chunk, ChunkResult, ChunkSender, counted_from_batch
from plangym_like.errors import PoisonInputError
from plangym_like.execution.costs import CostModel
from plangym_like.execution.dispatcher import HERE, Dispatcher, StepHere
from plangym_like.execution.row_pool import RowPool
from plangym_like.execution.row_worker import RowWorker
from plangym_like.execution.shared_batch import SharedBatch
from plangym_like.execution.tokens import Range
from plangym_like.processes.remote_errors import unpack_exception

# The number of chunks that an actor has at once: one that it steps, and the next one.
_DEPTH = 2
# The same for a batch that the caller does not wait for yet, so that most of it is sent.
_DEPTH_UNATTENDED = 6
# The least and the most seconds that a chunk should take. A chunk costs 1 to 2 ms in addition to
# its rows (`benchmarks/ray_bench.py`); if chunks are short, a lost actor loses little work.
LEAST_SECONDS, _MOST_SECONDS = 4e-3, 1.0
_MOST_NBYTES = 16 << 20
# The number of pieces that an actor's share is split into, so that faster machines can take some
# (2 to 32 take the same time if machines are equally fast, `benchmarks/constants.py`).
_PIECES = 8
# A row is to blame after this many actors have died while it was their only row.
_DEATHS_ALONE = 3
# A chunk is late after this multiple of its expected time, and at least this many seconds.
_LATE_FACTOR, _LATE_SECONDS = 4.0, 1.0


class RayDispatcher(Dispatcher):
    """Steps one batch on the workers of a pool, in this process, and on actors.

    Parameters
    ----------
    actors : ActorPool
        The actors; while no actor is ready, all rows are stepped on this machine.
    pool, costs, batch, step_here
        As in `Dispatcher`. If this machine has no workers, `step_here` steps batches that are too
        cheap to send, and all batches while no actor is ready.
    """

    def __init__(
        self,
        actors: ActorPool,
        pool: RowPool,
        costs: CostModel,
        batch: SharedBatch,
        step_here: StepHere | None,
    ) -> None:
        super().__init__(pool, costs, batch, step_here)
        self._actors = actors
        self._sender = ChunkSender(batch.layout, batch.rows, actors.stats, masked=batch.masked)
        self._sent: set[Chunk] = set()
        self._suspects: deque[Chunk] = deque()
        # Seconds per row in a worker; 0 if not known.
        self._seconds_per_row = 0.0
        self._most_rows = _MOST_NBYTES / max(1.0, batch.nbytes / max(1, self.count))

    # Sending chunks

    def launch(self, *, here: bool) -> None:
        """Send the first rows to every actor and worker that is ready; see `Dispatcher.launch`."""
        super().launch(here=here)
        # If the caller does not wait for the batch yet, no more rows are sent until it does.
        self._send_chunks(_DEPTH if here else _DEPTH_UNATTENDED)

    def _begin(self, workers: Sequence[RowWorker], *, more: bool) -> None:
        self._send_chunks(1)  # actors first: rows take longer to get there
        super()._begin(workers, more=more)

    @property
    def _processes(self) -> int:
        handles = self._actors.handles
        return super()._processes + sum(each.placement.workers for each in handles)

    def advance(self, *, here: bool) -> bool:
        """Send more rows, without waiting; return whether the batch is over."""
        self._send_chunks(_DEPTH)
        over = super().advance(here=here and self._steps_here)
        if not (self._pool.workers or self._step_here):
            self._actors.check_patience()
        return over and not (self._sent or self._suspects)

    def step_own(self) -> bool:
        """Step rows in this process, if it steps any; see `Dispatcher.step_own`."""
        return self._steps_here and super().step_own()

    @property
    def steps_next(self) -> bool:
        """Whether `step_own` would step rows now."""
        return super().steps_next and self._steps_here

    @property
    def _steps_here(self) -> bool:
        """Whether this process steps rows.

        If this machine has no workers, this process steps rows only while no actor is ready, or if
        the remaining rows are too cheap to send.
        """
        if self._actors.local_workers or not self._actors.any_ready:
            return True
        return self._seconds_here() < LEAST_SECONDS

    def _seconds_here(self) -> float:
        """Return how many seconds this machine would need for all rows that have not been begun."""
        if not (self._seconds_per_row and (self._pool.workers or self._step_here)):
            return math.inf
        workers = max(1, self._actors.local_workers)
        return self._rows_not_begun() * self._seconds_per_row / workers

    def _send_chunks(self, depth: int) -> None:
        """Send chunks to the ready actors that have fewer than `depth` chunks."""
        if not (self._actors.handles or self._suspects):
            return
        if (failed := self._faults.lowest) is not None:
            for chunk in [each for each in self._sent if each.start >= failed]:
                self._forget(chunk)
            self._suspects = deque(each for each in self._suspects if each.start < failed)
        shares = self._shares()
        if not shares and (self._pool.workers or self._step_here):
            for chunk in self._suspects:
                self._deal(chunk.start, chunk.stop)
            self._suspects.clear()
        for tasks in range(depth):
            for handle, share in shares.items():
                if len(handle.tasks) == tasks and not handle.has_suspect:
                    self._deal_to(handle, share)
        if self._sent:
            self._deal_late_again(list(shares))

    def _shares(self) -> dict[ActorHandle, float]:
        """Return the fraction of the remaining rows that each ready actor should step.

        Until an actor has been measured, its workers are assumed to be as fast as other workers.
        """
        ready = [handle for handle in self._actors.handles if handle.ready]
        each = [handle.seconds_per_row(self._steps) * handle.placement.workers for handle in ready]
        self._seconds_per_row = self._costs.seconds_per_row(self._steps)
        if not self._seconds_per_row and (measured := [seconds for seconds in each if seconds]):
            self._seconds_per_row = sum(measured) / len(measured)
        usual = self._seconds_per_row or 1.0
        speeds = {h: h.placement.workers / (s or usual) for h, s in zip(ready, each, strict=True)}
        total = sum(speeds.values()) + self._actors.local_workers / usual
        return {handle: speed / total for handle, speed in speeds.items()}

    def _deal_to(self, handle: ActorHandle, share: float) -> None:
        if self._suspects and not handle.tasks:
            chunk = self._suspects.popleft()
        else:
            rest = self._rows_not_begun()
            # An actor that still has rows leaves the last rows to idle processes.
            if rest * share < 1.0 and (handle.tasks or not rest):
                return
            if self._seconds_here() < LEAST_SECONDS:
                return
            found = self._take(self._size(handle, share, rest))
            if found is None:
                return
            chunk = Chunk(*found)
        chunk.owner = self
        self._sent.add(chunk)
        handle.send(chunk, *self._sender.request(chunk))

    def _size(self, handle: ActorHandle, share: float, rest: int) -> int:
        """Return how many of the `rest` remaining rows the actor's next chunk should hold."""
        # An actor that steps all rows gets them in at least two chunks, so that it can send the
        # results of one while it steps the next.
        least = self.count * share / (_DEPTH if share == 1.0 else _PIECES)
        most = self._most_rows
        if seconds_per_row := handle.seconds_per_row(self._steps):
            least = max(least, LEAST_SECONDS / seconds_per_row)
            most = min(most, max(least, _MOST_SECONDS / seconds_per_row))
        size = max(rest * share / _DEPTH, least)
        if rest - size < least / 2:
            size = rest
        return max(1, int(min(size, most)))

    def _rows_not_begun(self) -> int:
        """Return about how many rows no process has begun."""
        begun = sum(len(chunk) for chunk in self._sent)
        for worker in self._held():
            start, stop = worker.range
            begun += stop - start
        return max(0, int((self._marks == 0).sum()) - begun)

    def _take(self, most: int) -> Range | None:
        """Take a range of at most `most` rows that no process has begun; return it, or ``None``."""
        tokens, number = self._pool.tokens, self._batch.number
        if not self.num_tokens:
            return None
        start = stop = -1
        while start < 0 or stop - start < most:
            found = tokens.take_of(number)
            if found is None:
                break
            if start >= 0 and found[0] != stop:
                self._put([found])
                break
            start, stop = found[0] if start < 0 else start, found[1]
        if start < 0:
            return None
        if stop - start > most:
            self._put([(start + most, stop)])
        return start, min(stop, start + most)

    def _elsewhere(self) -> list[Range]:
        chunks = (*self._sent, *self._suspects)
        return [*super()._elsewhere(), *((chunk.start, chunk.stop) for chunk in chunks)]

    def _deal_late_again(self, ready: list[ActorHandle]) -> None:
        """Requeue the rows of a late chunk if a process is idle.

        The chunk's node may be lost, even if Ray has not noticed it yet. If the result arrives
        after all, it is ignored.
        """
        if self._rows_not_begun() or self._suspects:
            return
        here = self._actors.local_workers and self._step_here is not None
        idle = here or any(worker.free for worker in self._pool.workers)
        if not idle and all(handle.tasks for handle in ready):
            return
        now = time.monotonic()
        for handle in ready:
            for chunk in handle.tasks.values():
                steps = single_steps(self._batch.inputs, chunk.start, chunk.stop)
                usual = handle.seconds_per_row(steps) * _DEPTH
                late = now - chunk.sent_at > max(_LATE_SECONDS, _LATE_FACTOR * usual)
                if usual and late and chunk.owner is self and not chunk.suspect:
                    self.requeue(chunk)
                    self._actors.stats.backups += 1
                    return

    # Answers of actors

    def store(self, chunk: Chunk, result: ChunkResult) -> None:
        """Write the result that an actor returned for `chunk` into the batch."""
        start = chunk.start
        if result.error is not None:
            error = unpack_exception(result.error)
            of_row = not result.pool_errors
            self.fail(chunk, counted_from_batch(error, start, self.count, of_row=of_row))
            return
        for index, packed in result.failed.items():
            of_row = index not in result.pool_errors
            error = counted_from_batch(unpack_exception(packed), start, self.count, of_row=of_row)
            self._faults.lose(start + index, cast(Exception, error))
        nbytes = result.put(self._batch.layout, self._batch.rows, start)
        self._marks[start : chunk.stop] = HERE
        self._actors.stats.bytes_received += nbytes
        self._forget(chunk)

    def fail(self, chunk: Chunk, error: BaseException) -> None:
        """Let the batch fail with `error` at the first row of `chunk`."""
        self._forget(chunk)
        self._faults.fail(chunk.start, cast(Exception, error))

    def requeue(self, chunk: Chunk, *, suspect: bool = False) -> None:
        """Requeue a chunk; `suspect` means that an actor died while it was stepping the chunk.

        It is not known which row killed the actor, so a suspect chunk is halved each time, until it
        has only one row.
        """
        self._forget(chunk)
        self._actors.stats.rows_retried += len(chunk)
        start, stop = chunk.start, chunk.stop
        if not suspect:
            self._deal(start, stop)
        elif len(chunk) > 1:
            middle = (start + stop) // 2
            self._suspects.append(Chunk(start, middle, suspect=True))
            self._suspects.append(Chunk(middle, stop, suspect=True))
        elif (deaths := chunk.deaths + chunk.suspect) < _DEATHS_ALONE:
            self._suspects.append(Chunk(start, stop, suspect=True, deaths=deaths))
        else:
            self._faults.lose(start, _poisoned(start))

    def _forget(self, chunk: Chunk) -> None:
        """Ignore any later result of this chunk."""
        chunk.owner = None
        self._sent.discard(chunk)

    def abandon(self) -> None:
        """Stop stepping the rows; later results of actors are ignored."""
        for chunk in tuple(self._sent):
            self._forget(chunk)
        super().abandon()


def _poisoned(row: int) -> PoisonInputError:
    return PoisonInputError(
        f"row {row} killed {_DEATHS_ALONE} new actors that stepped nothing else, although rows "
        "never run in an actor's own process: the row may need more memory than a node has; the "
        "cluster can still be used without that row",
        row,
        None,
    )
