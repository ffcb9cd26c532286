"""`LaneParts`: lanes split into parts, one for each process, and jobs for these processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from plangym_like.errors import ClosedError, InputError
from plangym_like.execution.known_ids import known_ids
from plangym_like.execution.short_episode import ShortEpisode
from plangym_like.processes.child import check_can_start
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.remote_errors import is_portable
from plangym_like.snapshots.trial import known_trials
from plangym_like.support.arguments import as_count, check_seconds
from plangym_like.vector.hosted_lanes import HostedLanes, Sources, make_part, sources_of_part
from plangym_like.vector.lane_memory import LaneArrays
from plangym_like.vector.lane_results import LaneResults
from plangym_like.vector.lane_stats import LaneStats
from plangym_like.vector.lanes_pool import LanesPool
from plangym_like.vector.lanes_worker import Job, LanesWorker, Outcome
from plangym_like.vector.make_lanes import Sample

# How long a process polls for the next call before it sleeps, if there are enough cores
# (`benchmarks/constants.py`).
_LINGER_SECONDS = 5e-3
# A process may take so many times as long to make its environments as this process took, unless
# `timeout` is longer.
_START_FACTOR = 10.0
_CLOSE_SECONDS = 3.0
_PRELOAD = ("plangym_like.vector.hosted_lanes",)


class LaneParts:
    """Lanes split into parts of consecutive lanes; the first part is in this process.

    Parameters
    ----------
    sources, num_lanes, n_workers
    timeout, checkpoint_every, vectorise, start_method, preload, expected
        See `ProcessLanes`.
    stats : LaneStats

    Attributes
    ----------
    local : Lanes
        The part in this process.
    own : slice
        The numbers of the lanes in this process.
    pool : LanesPool
        The processes that host the other parts.
    results : LaneResults
    """

    def __init__(
        self,
        sources: Sources,
        num_lanes: int,
        n_workers: int,
        *,
        timeout: float,
        checkpoint_every: int | None,
        vectorise: bool,
        start_method: str,
        preload: Sequence[str],
        expected: tuple[Sample, ShortEpisode] | None,
        stats: LaneStats,
    ) -> None:
        _check_numbers(num_lanes, n_workers, timeout, checkpoint_every)
        check_can_start()
        self._closed, self._owner_pid = False, os.getpid()
        self.num_lanes = num_lanes
        self.results = LaneResults(num_lanes, stats)
        count = min(n_workers, num_lanes)
        bounds = [num_lanes * part // count for part in range(count + 1)]
        self.own = slice(0, bounds[1])
        linger = _LINGER_SECONDS if count <= len(os.sched_getaffinity(0)) else 0.0
        workers: list[LanesWorker] = []
        ids = known_ids()
        trials = [entry for entry in known_trials().entries if is_portable(entry)]
        begun = time.monotonic()
        try:
            for part, (start, stop) in enumerate(pairwise(bounds[1:])):
                own = sources_of_part(sources, start, stop)
                process = ExternalProcess(
                    partial(HostedLanes, own, start, stop, vectorise, ids, expected, trials),
                    start_method=start_method,
                    preload=(*_PRELOAD, *preload),
                    name=f"lanes {start} to {stop - 1}",
                    linger=linger,
                )
                workers.append(LanesWorker(process, part, start, stop))
            own = sources_of_part(sources, 0, bounds[1])
            self.local = make_part(own, 0, bounds[1], vectorise=vectorise)
            self.pool = LanesPool(
                workers,
                timeout=timeout,
                start_timeout=max(timeout, _START_FACTOR * (time.monotonic() - begun)),
                checkpoint_every=checkpoint_every,
                stats=stats,
            )
            self.pool.wait_ready()
        except BaseException:
            for worker in workers:
                worker.process.close(0.0)
            raise

    def begin(self) -> None:
        """Check that the lanes can be used, and record the episodes lost since the last call.

        Raises
        ------
        ClosedError
            The lanes are closed, or they are used in a fork of the process that made them.
        """
        if self._closed:
            raise ClosedError("these lanes have been closed; make others")
        # Memory is shared with the owner, so another process must not write to it.
        if os.getpid() != self._owner_pid:
            raise ClosedError(
                "these lanes belong to the process that this one was forked from; make others here"
            )
        for worker in self.pool.workers:
            # An interrupted call may not have recorded the episodes that were lost.
            self.results.note_loss(worker)

    def begin_step(self) -> LaneArrays:
        """Prepare for a step or reset, and return the shared arrays of all lanes.

        Raises
        ------
        InputError
            The lanes have not been started.
        """
        self.begin()
        if self.pool.memory is None:
            raise InputError("lanes must be started before they are stepped or reset: call start")
        arrays: LaneArrays = self.pool.memory.arrays
        return arrays

    def run_all(
        self, job: Callable[[LanesWorker], Job], here: Callable[[], None] = lambda: None
    ) -> list[Any]:
        """Run ``job(worker)`` in each worker, and meanwhile call `here`; return the replies."""
        self.begin()
        workers = self.pool.workers
        outcomes, failure = self.pool.run([(worker, job(worker)) for worker in workers], here)
        for worker in workers:
            self.results.note_loss(worker)
        raise_first(failure, outcomes)
        return [outcome.reply for outcome in outcomes]

    def run_on(
        self,
        chosen: Sequence[int],
        job: Callable[[list[int], list[int]], Job],
        here: Callable[[list[int], list[int]], Any],
        *,
        begins: bool = False,
    ) -> list[tuple[list[int], Any]]:
        """Run a job in every process that has any of the lanes `chosen`.

        Parameters
        ----------
        chosen : sequence of int
        job : callable
            ``job(places, own)`` returns the job for another process. `places` are the positions
            of its lanes in `chosen`, and `own` are their numbers within the process.
        here : callable
            ``here(places, own)`` is called for the lanes of this process, and returns the reply.
        begins : bool
            Whether the job starts new episodes or sets states.

        Returns
        -------
        list of (list of int, object)
            For each of these processes, the positions of its lanes in `chosen`, and its reply.
        """
        self.begin()
        parts = []
        for worker in self.pool.workers:
            places = places_of(chosen, worker.start, worker.stop)
            if places:
                own = [chosen[place] - worker.start for place in places]
                parts.append((places, worker, job(places, own)))
        mine = places_of(chosen, 0, self.own.stop)
        replies: list[tuple[list[int], Any]] = []

        def run_here() -> None:
            if mine:
                replies.append((mine, here(mine, [chosen[place] for place in mine])))

        outcomes, failure = self.pool.run([part[1:] for part in parts], run_here)
        for (places, worker, _), outcome in zip(parts, outcomes, strict=True):
            begun = [chosen[place] for place in places] if begins and not outcome.error else []
            self.results.note_loss(worker, begun)
            replies.append((places, outcome.reply))
        raise_first(failure, outcomes)
        return replies

    def close(self) -> None:
        """End the processes, and close the environments; safe to call more than once."""
        if self._closed:
            return
        self._closed = True
        for worker in self.pool.workers:
            worker.process.begin_close()
        try:
            self.local.close()
        finally:
            self.pool.close(_CLOSE_SECONDS)
            memory, self.pool.memory = self.pool.memory, None
            for worker in self.pool.workers:
                worker.bell = worker.columns = None
            if memory is not None:
                memory.close()


def count_lanes(sources: Sources, num_lanes: int | None) -> int:
    """Return the number of lanes to make; raise `InputError` if `num_lanes` is missing or wrong."""
    if isinstance(sources, str) or callable(sources):
        if num_lanes is None:
            raise InputError("num_lanes is missing; it is optional only for a list of factories")
        return num_lanes
    if num_lanes not in (None, len(sources)):
        raise InputError(f"num_lanes is {num_lanes}, but there are {len(sources)} factories")
    return len(sources)


def _check_numbers(
    num_lanes: int, n_workers: int, timeout: float, checkpoint_every: int | None
) -> None:
    if n_workers < 2 or num_lanes < 2:
        raise InputError(
            f"lanes in processes need num_lanes and n_workers of at least 2, got {num_lanes} and "
            f"{n_workers}; lanes_from makes lanes in this process alone"
        )
    check_replacing(timeout, checkpoint_every)


def check_replacing(timeout: Any, checkpoint_every: Any) -> None:
    """Raise `InputError` unless `timeout` > 0 and `checkpoint_every` is ``None`` or at least 1."""
    check_seconds("timeout", timeout)
    if checkpoint_every is not None:
        as_count("checkpoint_every", checkpoint_every)


def places_of(chosen: Sequence[int], start: int, stop: int) -> list[int]:
    """Return the positions in `chosen` that hold one of the lanes ``start:stop``."""
    return [place for place, lane in enumerate(chosen) if start <= lane < stop]


def raise_first(failure: Exception | None, outcomes: Sequence[Outcome]) -> None:
    """If there are exceptions, raise the first in the order of lanes; add notes about the others.

    `failure` is the exception from this process, whose lanes come first.
    """
    errors = [failure, *(outcome.error for outcome in outcomes)]
    raised = [error for error in errors if error is not None]
    if raised:
        for other in raised[1:]:
            raised[0].add_note(f"other lanes raised {other!r}")
        raise raised[0]
