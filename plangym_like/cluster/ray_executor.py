"""`RayExecutor`: steps the rows of a batch on this machine and on others."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from plangym_like.batch.layout import Layout
from plangym_like.batch.row_stepper import RowStepper
from plangym_like.cluster import ray_session
from plangym_like.cluster.actors import ActorPool
from plangym_like.cluster.node_env import write_recipe
from plangym_like.cluster.placement import check_resources
from plangym_like.cluster.ray_dispatcher import LEAST_SECONDS, RayDispatcher
from plangym_like.cluster.ray_session import RaySession
from plangym_like.errors import InputError
from plangym_like.execution.costs import CostModel
from plangym_like.execution.dispatcher import Dispatcher
from plangym_like.execution.process_executor import ProcessExecutor
from plangym_like.execution.process_options import ProcessOptions
from plangym_like.execution.shared_batch import SharedBatch
from plangym_like.execution.short_episode import ShortEpisode, episode_given
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.results import RayStats
from plangym_like.support.arguments import as_count

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
        ``n_workers``, ``resources``, ``placement``, ``runtime_env`` and ``cores_per_actor``; see
        `RayEnv`.

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
        for number in ("n_workers", "cores_per_actor"):
            if where[number] is not None:
                as_count(number, where[number])
        check_resources(where["resources"])
        placement = where["placement"]
        if isinstance(placement, str) and placement not in ("spread", "pack"):
            raise InputError(
                f"placement must be 'spread', 'pack' or a placement group, got {placement!r}"
            )
        self.n_workers: int | None = where["n_workers"]
        self.isolated = local.isolated
        self._node_env, self._name, self._local = node_env, name, local
        self._session = (address, object_store_memory)
        self._where = where
        self._expected: ShortEpisode | None = None
        ray_session.load()

    def prepare(self) -> None:
        """Start the fork server for the workers on this machine."""
        self._local.prepare()

    def trials(self) -> AbstractContextManager[None]:
        """Return the context of `ProcessOptions.trials`, for the workers on this machine."""
        return self._local.trials()

    def make(self, stepper: RowStepper) -> RayExecutor:
        """Connect to the cluster and start actors, without waiting until they are ready."""
        self._expected = self._local.expected_of(stepper)
        with episode_given(self._expected):
            return self._make(stepper)

    def _make(self, stepper: RowStepper) -> RayExecutor:
        session = ray_session.join(*self._session)
        try:
            actors = ActorPool(self._recipe, stepper.layout, private=session.started, **self._where)
            try:
                executor = partial(RayExecutor, session, actors)
                return self._local.make_as(executor, stepper, actors.local_workers)
            except BaseException:
                actors.close()
                raise
        except BaseException:
            session.leave()
            raise

    def _recipe(self, n_workers: int) -> bytes:
        """Return the recipe for an actor with `n_workers` processes."""
        return write_recipe(
            partial(self._node_env, n_workers=n_workers), self._name, self._expected
        )
