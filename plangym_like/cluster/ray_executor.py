"""`RayExecutor` and `RayRun`: step the rows of a batch on this machine and on others.

The workers of this machine and the actors of other nodes draw rows from the same pipe of tokens. An
actor draws a *chunk* of several tokens. Like tokens, chunks become smaller toward the end of the
batch. Stepping a row again gives the same result, so the rows of a lost actor are put back.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from plangym_like.batch.arrays import SubmitOptions, select_rows, single_steps
from plangym_like.batch.layout import Layout
from plangym_like.batch.row_stepper import RowStepper
from plangym_like.cluster import ray_session
from plangym_like.cluster.actors import ActorHandle, ActorPool, Chunk
from plangym_like.cluster.node_actor import ChunkResult, write_recipe
from plangym_like.cluster.ray_session import RaySession, import_ray
from plangym_like.cluster.sites import ClusterOptions
from plangym_like.errors import WorkerDiedError
from plangym_like.execution.batch_run import HERE, BatchRun
from plangym_like.execution.process_executor import CostModel, ProcessExecutor
from plangym_like.execution.process_options import ProcessOptions
from plangym_like.execution.row_faults import rename_row
from plangym_like.execution.shared_batch import Range, SharedBatch
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.remote_errors import unpack_exception

# How long to wait for workers on this machine before checking for results of actors, and vice
# versa.
_LOOK_SECONDS, _POLL_SECONDS = 2e-3, 0.05
# The number of chunks that an actor has at once: one that it steps, and the next one.
_DEPTH = 2
# The least seconds that a token should take. A chunk costs 1 to 2 ms in addition to its rows
# (`benchmarks/ray_bench.py`).
LEAST_SECONDS = 4e-3
# The most bytes of a chunk.
_MOST_NBYTES = 16 << 20


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
        ``step_timeout`` and ``start_timeout``, as in `ProcessExecutor`.
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

    _fine_seconds = LEAST_SECONDS

    def __init__(self, owner: RayExecutor, batch: SharedBatch, stepper: RowStepper | None) -> None:
        self._actors = owner.actors
        super().__init__(owner, batch, stepper)
        self._sent: list[Chunk] = []
        rows = batch.rows
        self._options = SubmitOptions(
            states=rows.next_states is not None,
            observations=rows.observations is not None,
            masked=True,  # one row that fails leaves the others of its chunk as they are
            audit=batch.audit,
        )
        # Ray's reference to the state that all rows share; ``None`` until it is sent.
        self._shared: Any = None
        self._most_rows = _MOST_NBYTES * max(1, self.count) / max(1, batch.nbytes)

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
        ready = [each for each in self._actors.handles if each.ready]
        for chunks in range(_DEPTH):
            for handle in ready:
                if len(handle.chunks) == chunks and (ranges := self._draw(handle)):
                    self._send(handle, Chunk(ranges))

    def _taken_ranges(self) -> list[Range]:
        sent = [each for chunk in self._sent for each in chunk.ranges]
        return super()._taken_ranges() + sent

    def _draw(self, handle: ActorHandle) -> list[Range]:
        """Return the ranges of the actor's next chunk.

        It takes half of an equal part of the tokens, but at least one for each of its processes.
        """
        found: list[Range] = []
        left, workers = self._most_rows, handle.site.workers
        tokens = self.num_tokens + len(self._waiting)
        # Processes that have nothing to do take the last tokens.
        if handle.chunks and tokens <= self._processes:
            return []
        wanted = max(workers, tokens * workers // (2 * self._processes))
        while len(found) < wanted and left > 0:
            if self._waiting and not self.num_tokens:
                self._put(())
            token = self._pool.tokens.take_of(self._batch.key) if self.num_tokens else None
            if token is None:
                break
            found.append(token)
            left -= token[1] - token[0]
        return sorted(found)

    def _send(self, handle: ActorHandle, chunk: Chunk) -> None:
        self._sent.append(chunk)
        inputs, stats = select_rows(self._batch.rows.inputs, chunk.rows), self._actors.stats
        states, inputs.states = inputs.states, inputs.states[:0]
        arrays = [inputs.actions, inputs.dt, inputs.seeds]
        if self._shared is None:
            arrays.append(states)
            if len(self._batch.inputs.states) == 1:
                self._shared = import_ray().put(states)
        handle.send(chunk, inputs, states if self._shared is None else self._shared, self._options)
        stats.chunks += 1
        stats.rows_sent += inputs.count
        stats.bytes_sent += sum(part.nbytes for part in arrays if isinstance(part, np.ndarray))

    # Outcomes of chunks

    def _read(self, chunk: Chunk) -> None:
        outcome, rows = chunk.outcome, chunk.rows
        if isinstance(outcome, ChunkResult):
            self._store(chunk, outcome)
        elif isinstance(outcome, WorkerDiedError):
            # No row is to blame: rows run in other processes of the node.
            self._put_back(rows)
            self._pool.policy.note_death_without_progress(outcome)
        else:
            self._faults.fail(int(rows[0]), cast(Exception, outcome))

    def _store(self, chunk: Chunk, result: ChunkResult) -> None:
        rows = chunk.rows
        if result.error is not None:
            self._faults.fail(int(rows[0]), cast(Exception, unpack_exception(result.error)))
            return
        for index, packed in result.failed.items():
            error, row = unpack_exception(packed), int(rows[index])
            rename_row(error, index, row, self.count)
            self._faults.lose(row, cast(Exception, error))
        batch, stats = self._batch, self._actors.stats
        stats.bytes_received += batch.layout.put_result(batch.rows, rows, result.result)
        self._marks[rows] = HERE
        self._pool.policy.note_progress()
        self._taken += sum(single_steps(batch.inputs, *each) for each in chunk.ranges)
        self._seconds += result.counts.get("seconds_on_workers", 0.0)
        if not self._owner.costs.seconds_per_row(self._steps):
            self._owner.costs.note(self._taken, self._steps, seconds=self._seconds)

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
        self._local.warm_up()
        stepper = make_stepper()
        recipe = partial(self._recipe, stepper.layout)
        with contextlib.ExitStack() as undo:
            session = ray_session.join(*self._session)
            undo.callback(session.leave)
            actors = ActorPool(recipe, self._where, private=session.started)
            undo.callback(actors.close)
            make = partial(RayExecutor, session, actors)
            executor = self._local.start(make, stepper, actors.local_workers)
            undo.pop_all()
            return executor

    def _recipe(self, layout: Layout, n_workers: int) -> bytes:
        """Return the recipe for an actor with `n_workers` processes."""
        construct = partial(self._node_env, n_workers=n_workers)
        return write_recipe(construct, self._name, layout)
