"""`RayExecutor` and `RayRun`: step the rows of a batch on this machine and on others.

The workers of this machine and the actors of other nodes draw rows from the same pipe of tokens. An
actor draws a *chunk* of several tokens, about as many as all its processes would take. Like tokens,
chunks become smaller toward the end of the batch, so all machines are done at about the same time.
Stepping a row again gives the same result, so the rows of a lost actor are put back.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import SubmitOptions, select_rows, single_steps
from plangym_like.batch.layout import Layout
from plangym_like.batch.row_stepper import RowStepper
from plangym_like.cluster import ray_session
from plangym_like.cluster.actors import ActorHandle, ActorPool, Chunk
from plangym_like.cluster.node_actor import ChunkResult, write_recipe
from plangym_like.cluster.ray_session import RaySession, import_ray
from plangym_like.cluster.sites import ClusterOptions
from plangym_like.errors import WorkerDiedError, WorkerError
from plangym_like.execution.batch_run import HERE, BatchRun
from plangym_like.execution.process_executor import ProcessExecutor
from plangym_like.execution.process_options import ProcessOptions
from plangym_like.execution.row_faults import name_rows
from plangym_like.execution.schedule import CostModel, Range
from plangym_like.execution.shared_batch import SharedBatch
from plangym_like.execution.short_episode import ShortEpisode
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.remote_errors import unpack_exception

# How long to wait for workers on this machine before checking for results of actors, and vice
# versa.
_LOOK_SECONDS, _POLL_SECONDS = 2e-3, 0.05
# The number of chunks that an actor has at once: one that it steps, and the next one.
_DEPTH = 2
# The least and the most seconds that a chunk should take. A chunk costs 1 to 2 ms in addition to
# its rows (`benchmarks/ray_bench.py`); if chunks are short, a lost actor loses little work.
LEAST_SECONDS, _MOST_SECONDS = 4e-3, 1.0
_MOST_NBYTES = 16 << 20
# An actor's equal part of a batch, divided by this number, is the least size of a chunk (2 to 32
# take the same time if machines are equally fast).
_PIECES = 8
# A state that all rows share is sent with each chunk if it has fewer bytes. Otherwise it is put
# into the object store, from which each node fetches it once.
_PUT_NBYTES = 1 << 16


class RayExecutor(ProcessExecutor):
    """A process executor whose batches are also stepped by the actors of a Ray cluster.

    Parameters
    ----------
    session : RaySession
        The connection to Ray; `close` leaves it.
    actors : ActorPool
        The actors on other machines.
    workers, layout, stepper
        As in `ProcessExecutor`; `workers` may be empty.
    options
        ``step_timeout``, ``start_timeout`` and ``expected``, as in `ProcessExecutor`.
    """

    def __init__(
        self,
        session: RaySession,
        actors: ActorPool,
        workers: Sequence[ExternalProcess],
        layout: Layout,
        stepper: RowStepper | None = None,
        **options: Any,
    ) -> None:
        super().__init__(workers, layout, stepper, stats=actors.stats, **options)
        if not workers:
            self.costs = CostModel(LEAST_SECONDS)
        self._session = session
        self.actors = actors

    @property
    def n_workers(self) -> int:
        """How many processes step rows, on all machines."""
        return self.actors.local_workers + self.actors.workers

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until all requested workers and actors are ready.

        Raises
        ------
        TimeoutError
            They were not ready after `timeout` seconds.
        WorkerStartError
            This machine has no workers, and no actor could be started within two minutes.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        with self.lock:
            while True:
                self.ensure_open()
                self.pool.wait(_LOOK_SECONDS)
                self.pool.tend()
                self.actors.poll()
                waiting = sum(not worker.ready for worker in self.workers)
                waiting += sum(not handle.ready for handle in self.actors.handles)
                if self.n_workers and not waiting:
                    return
                if time.monotonic() > until:
                    raise TimeoutError(
                        f"{waiting} workers and actors were not ready after {timeout} s"
                    )

    @property
    def _num_helpers(self) -> int:
        return len(self.workers) + self.actors.workers

    def _run_of(self, batch: SharedBatch) -> BatchRun:
        self.actors.poll()
        # Without workers on this machine, only batches that are too cheap to send are stepped here.
        return RayRun(self, batch, self._stepper if self.actors.local_workers else None)

    def _wait(self, run: BatchRun, seconds: float) -> None:
        away = 0.0  # how long to wait for actors
        if any(handle.refs for handle in self.actors.handles):
            if any(worker.busy for worker in self.workers):
                seconds = min(seconds, _LOOK_SECONDS)
            else:
                seconds, away = 0.0, min(seconds, _POLL_SECONDS)
        super()._wait(run, seconds)
        self.actors.poll(away)

    def close(self) -> None:
        """End all workers and actors, within seconds, and leave the session."""
        if self._closed:
            return
        with contextlib.ExitStack() as rest:
            rest.callback(self._session.leave)
            rest.callback(self.actors.close)
            super().close()


class RayRun(BatchRun):
    """Steps one batch on the workers of a pool, in this process, and on actors.

    The actors of the executor draw chunks as soon as they are ready. The parameters are those of
    `BatchRun`.
    """

    def __init__(self, owner: RayExecutor, batch: SharedBatch, stepper: RowStepper | None) -> None:
        self._actors = owner.actors
        super().__init__(owner, batch, stepper)
        self._sent: list[Chunk] = []
        rows = batch.rows
        self._options = SubmitOptions(
            states=rows.next_states is not None,
            observations=rows.observations is not None,
            masked=batch.masked,
            audit=batch.audit,
        )
        # The state that all rows share, or a Ray reference to it; ``None`` until it is sent.
        self._shared: Any = None
        # The most rows of a chunk: those that fit into a message; fewer after an actor has died.
        self._fitting = _MOST_NBYTES * max(1, self.count) / max(1, batch.nbytes)
        self._most = math.inf

    # Chunks for actors

    def _deal(self, start: int, stop: int, later: float = 0.0) -> None:
        super()._deal(start, stop, later)
        self._send_chunks()

    @property
    def _processes(self) -> int:
        return super()._processes + self._actors.workers

    def advance(self) -> bool:
        """Read results and send more rows, without waiting; return whether the batch is over."""
        for chunk in [each for each in self._sent if each.outcome is not None]:
            self._sent.remove(chunk)
            self._read(chunk)
        self._send_chunks()
        return super().advance()

    def _send_chunks(self) -> None:
        """Send chunks to the ready actors that have room for them."""
        ready = [each for each in self._actors.handles if each.ready and len(each.chunks) < _DEPTH]
        rest = self._rows_not_begun() if ready else 0
        for chunks in range(_DEPTH):
            for handle in ready:
                if len(handle.chunks) == chunks and (ranges := self._draw(handle, rest)):
                    rest -= self._send(handle, Chunk(ranges))

    def _rows_not_begun(self) -> int:
        """Return about how many rows no process has begun."""
        begun = sum(stop - start for start, stop in self._taken_ranges())
        return max(0, int((self._marks == 0).sum()) - begun)

    def _taken_ranges(self) -> list[Range]:
        sent = [each for chunk in self._sent for each in chunk.ranges]
        return super()._taken_ranges() + sent

    def _draw(self, handle: ActorHandle, rest: int) -> list[Range]:
        """Return the ranges of the actor's next chunk; `rest` rows are left in all."""
        if self._faults.suspects and not handle.chunks:
            row = self._faults.suspects.popleft()
            return [(row, row + 1)]
        found, left = [], self._size(handle, rest)
        while left > 0 and self.num_tokens:
            token = self._pool.tokens.take_of(self._batch.key)
            if token is None:
                break
            found.append(token)
            left -= token[1] - token[0]
        return sorted(found)

    def _size(self, handle: ActorHandle, rest: int) -> int:
        """Return how many of the `rest` remaining rows the actor's next chunk should hold.

        Like a token, a chunk takes half of an equal part of the remaining time. If the actor still
        steps another chunk, the next one is half as large, so that a slow actor has few rows.
        """
        workers, chunks = handle.site.workers, len(handle.chunks)
        share = workers / self._processes
        if rest * share < 1 and (chunks or not rest):  # idle processes take the last rows
            return 0
        # If the actor steps all rows, it sends the results of one half while it steps the other.
        least = max(1.0, self.count * share / (_DEPTH if share == 1 else _PIECES))
        most = min(self._fitting, self._most)
        if seconds := self._owner.costs.seconds_per_row(self._steps):
            here = super()._processes
            if here and rest * seconds / here < LEAST_SECONDS:
                return 0
            least = max(least, LEAST_SECONDS * workers / seconds)
            most = min(most, max(1.0, _MOST_SECONDS * workers / seconds))
        size = max(rest * share / (2 * (1 + chunks)), least)
        if rest - size < least / 2:
            size = rest
        return max(1, int(min(size, most)))

    def _send(self, handle: ActorHandle, chunk: Chunk) -> int:
        """Send a chunk to an actor, and return the number of its rows."""
        self._sent.append(chunk)
        inputs, stats = select_rows(self._batch.rows.inputs, chunk.rows), self._actors.stats
        states, inputs.states = inputs.states, inputs.states[:0]
        arrays = [inputs.actions, inputs.dt, inputs.seeds]
        if self._shared is None:
            arrays.append(states)
            if len(self._batch.inputs.states) == 1:
                large = states.nbytes >= _PUT_NBYTES
                self._shared = import_ray().put(states) if large else states
        handle.send(chunk, inputs, states if self._shared is None else self._shared, self._options)
        stats.chunks += 1
        stats.rows_sent += inputs.count
        stats.bytes_sent += sum(part.nbytes for part in arrays if isinstance(part, np.ndarray))
        return inputs.count

    # Outcomes of chunks

    def _read(self, chunk: Chunk) -> None:
        outcome, rows = chunk.outcome, chunk.rows
        if isinstance(outcome, ChunkResult):
            self._store(chunk, outcome)
        elif isinstance(outcome, WorkerDiedError):
            self._blame(rows, outcome)
        elif isinstance(outcome, WorkerError):
            self._put_back(rows)
        else:
            self._faults.fail(int(rows[0]), cast(Exception, outcome))

    def _store(self, chunk: Chunk, result: ChunkResult) -> None:
        rows = chunk.rows
        if result.error is not None:
            error = unpack_exception(result.error)
            first = name_rows(error, rows, self.count)
            self._marks[rows[:first]] = HERE  # the actor has stepped them
            self._faults.fail(int(rows[first]), cast(Exception, error))
            return
        for index, packed in result.failed.items():
            error = unpack_exception(packed)
            name_rows(error, rows, self.count)
            self._faults.lose(int(rows[index]), cast(Exception, error))
        batch, stats = self._batch, self._actors.stats
        stats.bytes_received += batch.layout.put_result(batch.rows, rows, result.result)
        self._marks[rows] = HERE
        self._pool.policy.note_progress()
        self._most = max(self._most, 2 * len(rows))
        if len(rows) == 1:
            self._faults.note_survived(int(rows[0]))
        self._taken += sum(single_steps(batch.inputs, *each) for each in chunk.ranges)
        self._seconds += result.counts.get("seconds_on_workers", 0.0)
        if not self._owner.costs.seconds_per_row(self._steps):
            self._owner.costs.note(self._taken, self._steps, seconds=self._seconds)

    def _blame(self, rows: NDArray[np.intp], error: WorkerDiedError) -> None:
        """Put back rows in which an actor has died.

        It is not known which row is to blame, if any. So chunks become smaller, until the row that
        kills actors is alone in a chunk.
        """
        self._most = max(1.0, len(rows) / 2)
        try:
            self._pool.policy.note_death_without_progress(error)
        except WorkerDiedError as failure:
            self._faults.fail(int(rows[0]), failure)
        if len(rows) == 1:
            self._faults.note_death(int(rows[0]), error, alone=True, tried=())
        else:
            self._put_back(rows)

    def _fail(self, error: BaseException) -> bool:
        self._sent.clear()  # the outcomes of chunks are ignored
        return super()._fail(error)


class RayOptions:
    """Makes a `RayExecutor` whose actors host ``node_env(n_workers=...)``.

    Parameters
    ----------
    node_env : callable
        Returns the environment that steps rows on one node, in `n_workers` processes.
    name : str or callable
        The environment, as in `RayEnv`.
    local : ProcessOptions
        Makes the workers on this machine.
    address, object_store_memory
        See `RayEnv`.
    where
        The fields of `ClusterOptions`.

    Raises
    ------
    InputError
        An option is invalid.
    MissingExtraError
        Ray is not installed.
    """

    def __init__(
        self,
        node_env: Callable[..., Any],
        name: Any,
        local: ProcessOptions,
        *,
        address: str | None,
        object_store_memory: int | None,
        **where: Any,
    ) -> None:
        self._where = ClusterOptions(**where)
        self._where.check()
        self.n_workers, self.isolated = self._where.n_workers, local.isolated
        self._node_env, self._name, self._local = node_env, name, local
        self._session = (address, object_store_memory)
        import_ray()

    def make(self, make_stepper: Callable[[], RowStepper]) -> RayExecutor:
        """Connect to the cluster and start actors, without waiting until they are ready."""
        stepper = self._local.tried(make_stepper)
        expected = self._local.expected_of(stepper)
        recipe = partial(self._recipe, stepper.layout, expected)
        with contextlib.ExitStack() as undo:
            session = ray_session.join(*self._session)
            undo.callback(session.leave)
            actors = ActorPool(recipe, self._where, private=session.started)
            undo.callback(actors.close)
            make = partial(RayExecutor, session, actors)
            executor = self._local.start(make, stepper, actors.local_workers, expected)
            undo.pop_all()
            return executor

    def _recipe(self, layout: Layout, expected: ShortEpisode | None, n_workers: int) -> bytes:
        """Return the recipe for an actor with `n_workers` processes."""
        construct = partial(self._node_env, n_workers=n_workers)
        return write_recipe(construct, self._name, layout, expected)
