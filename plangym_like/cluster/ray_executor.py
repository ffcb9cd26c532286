"""`RayExecutor`: steps the rows of a batch on this machine and on others."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import Any

from plangym_like.cluster.actor_pool import ActorPool
from plangym_like.cluster.ray_dispatcher import LEAST_SECONDS, RayDispatcher
from plangym_like.cluster.ray_session import RaySession
from plangym_like.cluster.ray_stats import RayStats
from plangym_like.execution.costs import CostModel
from plangym_like.execution.dispatcher import Dispatcher
from plangym_like.execution.process_executor import ProcessExecutor
from plangym_like.execution.shared_batch import SharedBatch
from plangym_like.layout import Layout
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.row_stepper import RowStepper

# How long to wait for workers on this machine before checking for results of actors, and vice
# versa (`benchmarks/constants.py` for the first).
_LOOK_SECONDS, _POLL_SECONDS = 2e-3, 0.05


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
            self._costs = CostModel(LEAST_SECONDS)
        self._session = session
        self.actors = actors

    @property
    def n_workers(self) -> int:
        """How many processes step rows, on all machines."""
        handles = self.actors.handles
        return self.actors.local_workers + sum(each.placement.workers for each in handles)

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
                self._tend()
                waiting = sum(not worker.ready for worker in self.workers)
                waiting += sum(not handle.ready for handle in self.actors.handles)
                if self.n_workers and not waiting:
                    return
                if time.monotonic() > until:
                    raise TimeoutError(
                        f"{waiting} workers and actors were not ready after {timeout} s"
                    )
                if not self.actors.local_workers:
                    self.actors.check_patience()
                self.pool.wait(_LOOK_SECONDS)
                self.actors.poll(_LOOK_SECONDS)

    @property
    def stats(self) -> RayStats:
        """Counters of all batches so far."""
        super().stats  # noqa: B018  it reads pending reports of workers
        return self.actors.stats

    @property
    def _num_helpers(self) -> int:
        return len(self.workers) + sum(each.placement.workers for each in self.actors.handles)

    def _dispatcher(self, batch: SharedBatch) -> Dispatcher:
        self.actors.survey()
        self.actors.stats.bytes_shared += batch.nbytes
        step_here = self._step_here(batch)
        return RayDispatcher(self.actors, self.pool, self._costs, batch, step_here)

    def _tend(self) -> None:
        super()._tend()
        self.actors.survey()
        self.actors.poll()

    def _wait(self, dispatcher: Dispatcher, seconds: float) -> None:
        if not self.actors.busy:
            super()._wait(dispatcher, seconds)
        elif any(worker.busy for worker in self.workers):
            super()._wait(dispatcher, min(seconds, _LOOK_SECONDS))
        else:
            self.actors.poll(min(seconds, _POLL_SECONDS))

    def close(self) -> None:
        """End all workers and actors, within seconds, and leave the session."""
        if self._closed:
            return
        with contextlib.ExitStack() as rest:
            rest.callback(self._session.leave)
            rest.callback(self.actors.close)
            super().close()
