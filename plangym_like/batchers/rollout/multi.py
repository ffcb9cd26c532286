"""`multi.rollout`: rollouts collected by many workers."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from plangym_like.batchers.randomness import seed_groups
from plangym_like.batchers.rollout.actor import BaseActorModule, check_actor
from plangym_like.batchers.rollout.collector import (
    RolloutIterator,
    RolloutPlan,
    RolloutWorker,
)
from plangym_like.batchers.rollout.fragment import Fragment, FragmentOptions
from plangym_like.batchers.workers.group import Job, Workers
from plangym_like.batchers.workers.remote import start_workers
from plangym_like.errors import InputError
from plangym_like.processes.child import interrupts_deferred
from plangym_like.support.arguments import as_count
from plangym_like.vector.make_lanes import EnvSource
from plangym_like.vector.start_states import StartStates


class PooledRollout(RolloutIterator):
    """Yields fragments from workers; see `plangym_like.batchers.rollout.multi.rollout`."""

    def __init__(
        self,
        actor: BaseActorModule,
        plan: RolloutPlan,
        workers: Workers,
        *,
        device: torch.device | str | None,
        pinned: bool,
        n_buffers: int,
        n_per_batch: int,
        ordered: bool,
        max_lag: int | None,
    ) -> None:
        super().__init__(actor, plan.options, device, pinned=pinned)
        self._n_actors, self._n_per_batch = len(plan.seeds), n_per_batch
        self._n_buffers = n_buffers
        # With `max_lag`, parts are taken in order: one that was overtaken could become too old.
        self._ordered = ordered or max_lag is not None
        self._max_lag = max_lag
        self._workers = start_workers(
            partial(RolloutWorker, plan),
            self._n_actors,
            workers,
            name="rollout",
            preload=("plangym_like.batchers.rollout.collector",),
        )
        self._workers.publish(self._weights.tree)
        # Parts of the next fragment; a Ctrl-C while waiting for the rest loses nothing.
        self._gathered: list[Job] = []
        # Jobs that collect parts, in the order of submission.
        self._pending: deque[Job] = deque()
        self._num_dispatched = [0] * self._n_actors

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return self._workers.pids

    def _next(self) -> Fragment:
        # Otherwise, weights that are known to have changed might never be published.
        with interrupts_deferred():
            if self._weights.update():
                self._workers.publish(self._weights.tree)
        self.stats.version = self._weights.version
        start = time.perf_counter()
        # A Ctrl-C may interrupt the wait for jobs or the copying of a fragment; the next call does
        # this work again. Elsewhere, a Ctrl-C is deferred, because it could lose a part.
        jobs = self._gathered
        while len(jobs) < self._n_per_batch:
            with interrupts_deferred():
                self._dispatch(wanted=self._n_per_batch - len(jobs))
            self._gather()
        self.stats.waited += time.perf_counter() - start
        fragment = self._assemble([job.result for job in jobs])
        with interrupts_deferred():
            self._gathered = []
            for job in jobs:
                self._workers.release(job)
        return fragment

    def _dispatch(self, wanted: int) -> None:
        """Let actors collect as many parts as there are buffers, and as `max_lag` allows.

        `wanted` is the number of parts that the next fragment still needs.
        """
        most = self._n_buffers - len(self._gathered)
        if self._max_lag is not None:
            most = min(most, wanted + self._max_lag * self._n_per_batch)
        while len(self._pending) < most:
            busy = Counter(job.group for job in self._pending if not self._ordered)
            group = min(
                range(self._n_actors),
                key=lambda group: (busy[group], self._num_dispatched[group]),
            )
            self._pending.append(self._workers.submit(group, "collect"))
            self._num_dispatched[group] += 1

    def _gather(self) -> None:
        """Wait for the next part."""
        wanted = self._pending[0] if self._ordered else None
        self._workers.wait_until_done(wanted)
        with interrupts_deferred():
            job = self._workers.wait(0.0, wanted)
            if job is not None:
                self._pending.remove(job)
                self._gathered.append(job)

    def _close(self, timeout: float) -> None:
        self._workers.close(timeout)


def rollout(
    factory: EnvSource,
    actor: BaseActorModule,
    n_steps: int,
    n_actors: int = 8,
    n_per_actor: int = 2,
    n_buffers: int = 16,
    n_per_batch: int = 4,
    *,
    sticky: bool = False,
    pinned: bool = False,
    close: bool = True,
    device: torch.device | str | None = None,
    start_method: str | None = None,
    workers: Workers | int | None = None,
    seed: int | Sequence[int] | None = None,
    states: Any = None,
    ordered: bool = False,
    max_lag: int | None = None,
    keep_final: bool = True,
    infos: bool = True,
) -> PooledRollout:
    """Collect fragments in worker processes while the caller learns from earlier ones.

    There are `n_actors` copies of the actor, each with `n_per_actor` lanes, hosted by
    `workers`. The copies fill `n_buffers` buffers in shared memory. Each fragment consists of the
    `n_per_batch` buffers that were ready first, with their lanes side by side. A buffer
    is filled with the weights that the actor had when it was requested; ``next`` requests buffers
    as soon as they are free and `max_lag` allows it.

    Parameters
    ----------
    factory : callable or str
        ``factory()`` returns a new Gymnasium environment or `PlanEnv`. It is sent to the workers;
        lambdas and closures are fine. An id means ``plangym_like.make(id,
        remove_time_limit=False)``.
    actor : BaseActorModule
        The actor to copy. The original is never called.
    n_steps : int
        The number of steps in a fragment, T.
    n_actors, n_per_actor : int
        The number of copies of the actor, and the number of lanes of each copy.
    n_buffers : int
        The number of buffers, at least `n_per_batch`. With fewer buffers than actors, some actors
        are always idle.
    n_per_batch : int
        Buffers joined into one fragment; B is ``n_per_batch * n_per_actor``.
    sticky : bool
        When an episode ends, freeze its lane for the rest of the fragment. This is meant for
        cudnn's fast recurrent layers, whose state cannot be reset inside a sequence.
    pinned : bool
        Deliver fragments in page-locked memory. Fragments for a GPU are always copied through it.
    close : bool
        Whether to close the environments at the end; some environments raise errors on closing.
    device : torch.device, optional
        Where fragments are delivered. The actors act on the CPU.
    start_method : str, optional
        Another way to give ``Workers(start_method=...)``.
    workers : Workers or int, optional
        What hosts the copies of the actor, or the number of processes; by default one per core, and
        at most one per actor. 0 collects in this process, inside ``next``. Equal seeds give equal
        fragments with all of them.
    seed : int or sequence of int, optional
        Seeds the environments and the actors. Equal seeds give equal fragments, for any
        number of workers, if `ordered` is true or `max_lag` is given.
    states : tuple, optional
        The states that the first episodes begin in, as a tuple ``(rows, obs)`` of state rows, uint8
        ``(n_actors * n_per_actor, state_nbytes)``, and their observations. Later episodes begin
        with a reset.
    ordered : bool
        Yield the actors' fragments in the order of the actors, not in the order of completion.
    max_lag : int, optional
        How many times the actor's weights may change between the collection of a fragment and the
        ``next`` that returns it. 0 collects only while the caller waits. Fragments are then yielded
        in the order of the actors.
    keep_final : bool
        Keep the final observations of episodes; this takes as much memory as the observations.
    infos : bool
        Keep the numbers in the environments' infos.

    Returns
    -------
    iterator of Fragment
        Also a context manager. ``next`` raises the exception of a worker with its own type, the
        remote traceback as its cause, and a note that names the worker. It raises `WorkerDiedError`
        if a worker died and `WorkerTimeoutError` if one hung.

    Raises
    ------
    InputError
        An argument is invalid, or two arguments contradict each other.

    Examples
    --------
    >>> class Left(BaseActorModule):
    ...     def forward(self, obs, act=None, rew=None, fin=None, *, hx=None):
    ...         return torch.zeros(obs.shape[:2], dtype=torch.int64), (), {}
    >>> sizes = {"n_actors": 4, "n_per_actor": 3, "n_buffers": 4, "n_per_batch": 2}
    >>> with rollout("CartPole-v1", Left(), n_steps=5, **sizes, workers=0) as fragments:
    ...     next(fragments).state.rew.shape  # two of the actors, with three lanes each
    torch.Size([5, 6])
    """
    check_actor(actor)
    as_count("n_steps", n_steps)
    as_count("n_actors", n_actors)
    as_count("n_per_actor", n_per_actor)
    as_count("n_per_batch", n_per_batch)
    as_count("n_buffers", n_buffers)
    if n_buffers < n_per_batch:
        raise InputError(
            f"a batch is made of n_per_batch={n_per_batch} buffers, but there are only "
            f"n_buffers={n_buffers}"
        )
    if max_lag is not None:
        as_count("max_lag", max_lag, 0)
    starts = StartStates.of(states)
    if starts is not None:
        starts.check(n_actors * n_per_actor)
    where = Workers.of(workers)
    if start_method is not None:
        where = replace(where, start_method=start_method)
    options = FragmentOptions(n_steps, sticky=sticky, keep_final=keep_final, infos=infos)
    seeds = seed_groups(seed, [n_per_actor] * n_actors)
    return PooledRollout(
        actor,
        RolloutPlan(
            factory, deepcopy(actor).cpu(), options, n_per_actor, seeds, starts, close=close
        ),
        where,
        device=device,
        pinned=pinned,
        n_buffers=n_buffers,
        n_per_batch=n_per_batch,
        ordered=ordered,
        max_lag=max_lag,
    )
