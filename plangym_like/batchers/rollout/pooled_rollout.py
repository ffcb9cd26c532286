"""`PooledRollout`: the iterator that `single.rollout` and `multi.rollout` return."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import Any

from plangym_like.batchers.engine.backend import Backend
from plangym_like.batchers.engine.shared_actor import SharedActor
from plangym_like.batchers.engine.worker_group import Job, WorkerGroup
from plangym_like.batchers.rollout.actor_module import BaseActorModule
from plangym_like.batchers.rollout.delivery import Delivery
from plangym_like.batchers.rollout.fragment import Fragment
from plangym_like.batchers.rollout.rollout_iterator import RolloutIterator
from plangym_like.batchers.rollout.rollout_worker import ACTOR, BUFFERS, RolloutPlan, RolloutWorker
from plangym_like.processes.child import interrupts_deferred
from plangym_like.vector.make_lanes import sample_of


class PooledRollout(RolloutIterator):
    """Yields fragments from workers; see `plangym_like.batchers.rollout.multi.rollout`."""

    def __init__(
        self,
        actor: BaseActorModule,
        plan: RolloutPlan,
        delivery: Delivery,
        backend: Backend,
        *,
        n_buffers: int,
        n_per_batch: int,
        timeout: float,
        n_workers: int | None,
        ordered: bool,
        max_lag: int | None,
    ) -> None:
        super().__init__()
        self._n_actors, self._n_per_batch = len(plan.seeds), n_per_batch
        self._n_buffers = n_buffers
        self._ordered, self._max_lag = ordered, max_lag
        self._delivery = delivery
        self._actor = SharedActor(actor)
        self._workers = WorkerGroup(
            partial(RolloutWorker, plan),
            self._n_actors,
            num_workers=n_workers,
            backend=backend,
            timeout=timeout,
            name="rollout",
            preload=("plangym_like.batchers.rollout.rollout_worker",),
            sample=sample_of(plan.factory),
        )
        self._workers.share(ACTOR, self._actor)
        self._begun = self._workers.submit(0, "describe")
        for group in range(1, self._n_actors):
            self._workers.submit(group, "describe")
        self._buffers: Any = None
        self._free: deque[int] = deque()
        self._yielded: list[int] = []
        # Parts of the next fragment; a Ctrl-C while waiting for the rest loses nothing.
        self._gathered: list[Job] = []
        self._num_dispatched = [0] * self._n_actors
        self._num_busy = [0] * self._n_actors
        self._turn = 0
        self._ready: dict[tuple[int, int], Job] = {}

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return self._workers.pids

    def _next(self) -> Fragment:
        self._publish()
        start = time.perf_counter()
        if self._buffers is None:
            self._begin()
        # A Ctrl-C may interrupt the wait for jobs or the copying of a fragment; the next call does
        # this work again. Elsewhere, a Ctrl-C is deferred, because it could lose a buffer or give
        # one buffer to two actors.
        jobs = self._gathered
        while len(jobs) < self._n_per_batch:
            with interrupts_deferred():
                self._free.extend(self._yielded)
                self._yielded.clear()
                is_there = self._take_ready()
                self._dispatch(wanted=self._n_per_batch - len(jobs))
            if not is_there:
                self._gather()
        self.stats.waited += time.perf_counter() - start
        buffers = [job.args[0] for job in jobs]
        records = [self._buffers[buffer] for buffer in buffers]
        fragment = self._delivery.deliver(records, [job.result for job in jobs])
        # In one assignment, so that no interrupt comes in between.
        self._yielded, self._gathered = buffers, []
        return fragment

    def _publish(self) -> None:
        version = self._actor.publish()
        if version != self.stats.version:
            self.stats.version = version
            self._workers.mark_changed(ACTOR)

    def _begin(self) -> None:
        """Wait until the layout of a fragment is known, and make the buffers."""
        self._workers.wait_until_done(self._begun)
        with interrupts_deferred():
            self._workers.wait(0.0, self._begun)
            self._free = deque(range(self._n_buffers))
            self._buffers = self._workers.make_buffers(BUFFERS, self._begun.result, self._n_buffers)

    def _dispatch(self, wanted: int) -> None:
        """Let actors fill the free buffers, as far ahead as `max_lag` allows.

        `wanted` is the number of buffers that the next fragment still needs.
        """
        most = self._n_buffers
        if self._max_lag is not None:
            most = min(most, wanted + self._max_lag * self._n_per_batch)
        while self._free and sum(self._num_busy) + len(self._ready) < most:
            if self._ordered:
                group = sum(self._num_dispatched) % self._n_actors
            else:
                group = min(
                    range(self._n_actors),
                    key=lambda group: (self._num_busy[group], self._num_dispatched[group]),
                )
            self._workers.submit(group, "collect", self._free.popleft())
            self._num_dispatched[group] += 1
            self._num_busy[group] += 1

    def _gather(self) -> None:
        """Wait until a job is done; if it has filled a buffer, note that the buffer is ready."""
        self._workers.wait_until_done()
        with interrupts_deferred():
            job = self._workers.wait(0.0)
            if job is None or job.method != "collect":
                return
            self._num_busy[job.group] -= 1
            done = self._num_dispatched[job.group] - self._num_busy[job.group] - 1
            self._ready[done, job.group] = job

    def _take_ready(self) -> bool:
        """Take the next filled buffer if one is ready, and return whether one was.

        A buffer that was filled with weights that are too old is discarded instead.
        """
        if not self._ready:
            return False
        turn = next(iter(self._ready))
        if self._ordered:
            turn = divmod(self._turn, self._n_actors)
            if turn not in self._ready:
                return False
            self._turn += 1
        job = self._ready.pop(turn)
        if self._is_too_old(job):
            self.stats.discarded += 1
            self._free.append(job.args[0])
        else:
            self._gathered.append(job)
        return True

    def _is_too_old(self, job: Job) -> bool:
        if self._max_lag is None:
            return False
        version = int(self._buffers[job.args[0]]["version"][0, 0])
        return self.stats.version - version > self._max_lag

    def _close(self) -> None:
        self._workers.close()
        self._actor.close()
