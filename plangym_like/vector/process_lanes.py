"""`ProcessLanes`: lanes in several processes, this one included."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from plangym_like.errors import ClosedError
from plangym_like.execution.known_ids import known_ids
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.remote_errors import is_portable
from plangym_like.snapshots.trial import known_trials
from plangym_like.states.rows import Row, StateFormat
from plangym_like.vector.hosted_lanes import (
    HostedLanes,
    Reply,
    Sources,
    host_lanes,
    lane_layout,
)
from plangym_like.vector.lanes import (
    Lanes,
    LaneStats,
    Options,
    Seeds,
    Step,
    Which,
    checked_reseeds,
    checked_states,
)
from plangym_like.vector.lanes_pool import Job, LanesPool, LanesWorker
from plangym_like.vector.tree import SharedArrays, take, write_rows

# How long a process polls for the next call before it sleeps, if there are enough cores.
_LINGER_SECONDS = 5e-3
# A process may take so long to make its environments, unless `timeout` is longer, or so many times
# as long as this process took. It may be importing modules on a busy machine.
_START_SECONDS, _START_FACTOR = 60.0, 10.0
_CLOSE_SECONDS = 3.0
_PRELOAD = ("plangym_like.vector.hosted_lanes",)


class ProcessLanes(Lanes):
    """Lanes in several processes; this process steps the first ones, other processes the rest.

    The lanes are split into parts of consecutive lanes, one for each process. Each part uses the
    fastest form of lanes that is available for it (see `lanes_from`). The results equal those of
    lanes in one process.

    **If an environment raises an exception**, all other parts are still stepped. In the part that
    contains the environment, lanes before it may have been stepped; lanes after it have not.
    **After Ctrl-C**, it is unknown which lanes have been stepped: reset them, or set their states.

    **If a process dies** or does not reply in time, it is replaced, and a warning is logged. The
    episodes of its lanes end with a step that returns the last observation of the lane, a reward of
    0, ``truncated``, and the info ``{"worker_died": True}``. The lanes begin new episodes when they
    are reset. The seed of a new environment is derived from the last seed that its lane was given,
    by `plangym_like.vector.lanes.seed_after_loss`. Calls that cannot be repeated, such as `call`,
    raise `WorkerDiedError`.

    In a new process, attributes that were set by `set_attr` are set again. Changes that `call` made
    outside an environment's state are lost.

    Parameters
    ----------
    sources : str, callable, or sequence of them
        An id or factory for all environments (see `lanes_from`), or one for each.
    num_lanes : int
        At least 2.
    n_workers : int
        The number of processes, including this one; at least 2. At most one per lane is used.
    timeout : float
        Seconds after which a process that does not reply is replaced.
    vectorise : bool
        See `lanes_from`.
    start_method : {"forkserver", "spawn", "fork"}
        See `plangym_like.processes.start_methods`.

    Attributes
    ----------
    envs : list
        The environments of the part in this process.
    local : Lanes
        The lanes of this process.
    pool : LanesPool
        The processes that host the other parts.

    Raises
    ------
    WorkerStartError
        Processes repeatedly die or hang before they are ready.
    Exception
        An error from making an environment.
    """

    # The `LaneArrays` of all lanes, with arrays of observations even if those are objects.
    _arrays: Any = None

    def __init__(
        self,
        sources: Sources,
        num_lanes: int,
        n_workers: int = 2,
        *,
        timeout: float = 60.0,
        vectorise: bool = True,
        start_method: str = "forkserver",
    ) -> None:
        self._closed, self._owner_pid = False, os.getpid()
        self._stats = LaneStats()
        parts = min(n_workers, num_lanes)
        bounds = [num_lanes * part // parts for part in range(parts + 1)]
        self._rows = slice(0, bounds[1])
        trials = [entry for entry in known_trials().entries if is_portable(entry)]
        linger = _LINGER_SECONDS if parts <= len(os.sched_getaffinity(0)) else 0.0
        workers: list[LanesWorker] = []
        begun = time.monotonic()
        with ExitStack() as undo:
            for part, (start, stop) in enumerate(pairwise(bounds[1:])):
                theirs = _sources_of(sources, start, stop)
                process = ExternalProcess(
                    partial(host_lanes, known_ids(), trials, theirs, start, stop, vectorise),
                    start_method=start_method,
                    preload=_PRELOAD,
                    name=f"lanes {start} to {stop - 1}",
                    linger=linger,
                )
                undo.callback(process.close, 0.0)
                workers.append(LanesWorker(process, part, start, stop))
            own = _sources_of(sources, 0, bounds[1])
            self._here = HostedLanes(own, 0, bounds[1], vectorise)
            self.local = self._here.lanes
            undo.callback(self._here.close)
            taken = time.monotonic() - begun
            self.pool = LanesPool(
                workers,
                timeout=timeout,
                start_timeout=max(timeout, _START_SECONDS, _START_FACTOR * taken),
                stats=self._stats,
            )
            self.pool.wait_ready()
            super().__init__(self.local.envs, num_lanes)
            self._read_spaces()
            self._share()
            undo.pop_all()

    def _read_spaces(self) -> None:
        replies = self._run_on(range(self.num_lanes), lambda *_: Job("describe"))
        self._spaces = [each for _, (spaces, _) in replies for each in spaces]
        self._formats = [each for _, (_, formats) in replies for each in formats]
        self.has_states = len(self._formats) == self.num_lanes

    @property
    def infos(self) -> list[dict[str, Any]]:
        return [*self.local.infos, *chain(*(worker.infos for worker in self.pool.workers))]

    def info_columns(self) -> dict[str, NDArray[Any]] | None:
        found = self.local.info_columns()
        for worker in self.pool.workers:
            theirs = worker.info_columns
            if not found or not theirs or list(found) != list(theirs):
                return None
            mine, found = found, {}
            for name, column in mine.items():
                other = theirs[name]
                if (column.dtype, column.shape[1:]) != (other.dtype, other.shape[1:]):
                    return None
                found[name] = np.concatenate([column, other])
        return found

    @property
    def stats(self) -> LaneStats:
        return self._stats

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self.pool.workers]

    @property
    def spaces(self) -> list[tuple[Space[Any], Space[Any]]]:
        return self._spaces

    # Jobs

    def _begin(self) -> None:
        """Raise `ClosedError` if the lanes are closed, or this is a fork of their process."""
        if self._closed:
            raise ClosedError("these lanes have been closed; make others")
        # Memory is shared with the owner, so another process must not write to it.
        if os.getpid() != self._owner_pid:
            raise ClosedError(
                "these lanes belong to the process that this one was forked from; make others here"
            )

    def _run_on(
        self, chosen: Sequence[int], job: Callable[[list[int], list[int]], Job]
    ) -> list[tuple[list[int], Any]]:
        """Run a job in every process that has any of the lanes `chosen`.

        Parameters
        ----------
        chosen : sequence of int
        job : callable
            ``job(positions, own)`` returns the job of one process. `positions` are the positions of
            its lanes in `chosen`, and `own` are their numbers within the process.

        Returns
        -------
        list of (list of int, object)
            For each process, this one first, the positions of its lanes in `chosen`, and its reply
            (``None`` if it has none of them).
        """
        self._begin()
        positions, jobs = [], []
        for start, stop in ((0, self._rows.stop), *((w.start, w.stop) for w in self.pool.workers)):
            theirs = [index for index, lane in enumerate(chosen) if start <= lane < stop]
            own = [chosen[index] - start for index in theirs]
            positions.append(theirs)
            jobs.append(job(theirs, own) if theirs else None)
        for worker, each in zip(self.pool.workers, jobs[1:], strict=True):
            if each is not None:
                self.pool.submit(worker, each)
        errors: list[Exception] = []
        replies: list[Any] = [None] * len(jobs)
        try:
            if jobs[0] is not None:
                replies[0] = self._here.run(*jobs[0])
        except Exception as error:
            errors.append(error)
        for number, worker in enumerate(self.pool.workers, 1):
            if jobs[number] is not None:
                replies[number], error_there = self.pool.collect(worker)
                errors += [] if error_there is None else [error_there]
        _raise_first(errors)
        return list(zip(positions, replies, strict=True))

    # Episodes

    def start(self, seeds: Seeds = None, options: Options = None) -> Any:
        """Reset all lanes and return their observations, a tree of arrays ``(n, ...)``.

        The processes write to these arrays: each later call overwrites them, even if other arrays
        are passed to it, into which the observations are then copied.
        """
        given: list[int | None] = list(seeds) if seeds else [None] * self.num_lanes
        for worker in self.pool.workers:
            worker.seeds = given[worker.rows]
        self._restart("start", range(self.num_lanes), given, options)
        return self._arrays.observations

    def _share(self) -> None:
        """Make the memory of all lanes, and attach the processes to it."""
        layout = lane_layout(self.observation_layout, self.action_layout, self.num_lanes)
        memory = SharedArrays(layout)
        self._arrays = memory.arrays
        if self._arrays.observations is None:
            self.pool.objects = self.new_observations()
            self._arrays = self._arrays._replace(observations=self.pool.objects)
        self._here.use(self._arrays)
        self.pool.share(memory)

    def reset(
        self, obs: Any, lanes: Which = None, *, seeds: Seeds = None, options: Options = None
    ) -> None:
        chosen = self._chosen(lanes)
        for worker in self.pool.workers:
            worker.keep_seeds(chosen, seeds)
        self._restart("reset", chosen, seeds, options)
        self._copy_observations(obs, lanes)

    def _restart(self, method: str, chosen: Sequence[int], seeds: Seeds, options: Options) -> None:
        """Start or reset the lanes `chosen` in their processes."""

        def job(positions: list[int], own: list[int]) -> Job:
            given = [each and [each[index] for index in positions] for each in (seeds, options)]
            return Job(method, (own, *given))

        replies = self._run_on(chosen, job)
        for worker, (positions, reply) in zip(self.pool.workers, replies[1:], strict=True):
            if positions:
                own = [chosen[index] - worker.start for index in positions]
                self._take(worker, own, Reply(*reply))

    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        raise NotImplementedError("the lanes of each part are reset by that part")

    @property
    def parts(self) -> list[range]:
        others = [range(worker.start, worker.stop) for worker in self.pool.workers]
        return [range(self._rows.stop), *others]

    def submit(self, step: Step) -> None:
        self._begin()
        for worker in self.pool.workers:
            own = None if step.lanes is None else worker.own(step.lanes)
            if own is None or own:
                ended = None if step.ended is None else step.ended[worker.rows]
                if ended is not None and not np.count_nonzero(ended):
                    ended = None  # the usual case, whose request is short
                actions = take(step.actions, worker.rows)
                job = Job("step", (own, actions, ended, step.finals is not None))
                self.pool.submit(worker, job)

    def is_done(self, step: Step) -> bool:
        if step.lanes is None or not len(step.lanes) or min(step.lanes) < self._rows.stop:
            return False
        concerned = (worker for worker in self.pool.workers if worker.own(step.lanes))
        return all(map(self.pool.is_over, concerned))

    def collect(self, step: Step) -> None:
        self._begin()
        lanes, out, finals = step.lanes, step.out, step.finals
        errors: list[Exception] = []
        mine = None if lanes is None else [int(each) for each in lanes if each < self._rows.stop]
        if mine is None or mine:
            ended = None if step.ended is None else step.ended[self._rows]
            try:
                # Lane i of this process is lane i of all, so `finals` can be filled directly.
                self._here.advance(mine, take(step.actions, self._rows), ended, finals)
            except Exception as error:
                errors.append(error)
        for worker in self.pool.workers:
            own = None if lanes is None else worker.own(lanes)
            if own is None or own:
                reply, error_there = self.pool.collect(worker)
                if error_there is not None:
                    errors.append(error_there)
                    continue
                reply = Reply(*reply)
                self._take(worker, own, reply)
                self._stats.lanes_ended += reply.num_lost
                for lane, final in (reply.finals or {}).items():
                    assert finals is not None
                    finals[worker.start + lane] = final
        arrays = self._arrays
        which: Any = ... if lanes is None else np.asarray(lanes, np.intp)
        out.rewards[which] = arrays.rewards[which]
        out.terminated[which] = arrays.terminated[which]
        out.truncated[which] = arrays.truncated[which]
        self._copy_observations(out.obs, lanes)
        if errors:
            _raise_first(errors)

    def _take(self, worker: LanesWorker, own: Sequence[int] | None, reply: Reply) -> None:
        """Take the infos and observations of the lanes `own` (``None``: all) of `worker`."""
        worker.take_infos(own, reply)
        if reply.observations is not None:
            rows: Any = worker.rows if own is None else np.add(own, worker.start)
            write_rows(self._arrays.observations, rows, reply.observations)

    def _copy_observations(self, obs: Any, lanes: Which) -> None:
        """Copy the observations of `lanes` to the tree `obs`, if it is not the one of `start`."""
        if obs is not self._arrays.observations:
            rows: Any = ... if lanes is None else np.asarray(lanes, np.intp)
            write_rows(obs, rows, take(self._arrays.observations, rows))

    def wait(self, seconds: float) -> None:
        self.pool.look(seconds)

    # The environments

    def expose(self) -> None:
        self.local.expose()

    def call(self, name: str, *args: Any, lanes: Which = None, **kwargs: Any) -> list[Any]:
        chosen = self._chosen(lanes)
        replies = self._run_on(chosen, lambda _, own: Job("call", (name, args, kwargs, own)))
        found: dict[int, Any] = {}
        for positions, values in replies:
            found.update(zip(positions, values or (), strict=True))
        return [found[index] for index in range(len(chosen))]

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        values = list(values)
        every = range(self.num_lanes)
        self._run_on(
            every,
            lambda positions, _: Job("set_attr", (name, [values[index] for index in positions])),
        )
        self.pool.attributes[name] = values

    def are_wrapped(self, wrapper_class: type) -> list[bool]:
        job = Job("are_wrapped", (wrapper_class,))
        found = self._run_on(range(self.num_lanes), lambda *_: job)
        return list(chain.from_iterable(reply for _, reply in found))

    # States

    @property
    def formats(self) -> list[StateFormat]:
        self._check_has_states()
        return self._formats

    def get_states(self, lanes: Which = None) -> Row:
        self._check_has_states()
        chosen = self._chosen(lanes)
        rows = self._new_rows(chosen)
        for positions, states in self._run_on(chosen, lambda _, own: Job("get_states", (own,))):
            if positions:
                rows[positions] = states
        return rows

    def set_states(self, states: Row, lanes: Which = None, seeds: Any = None) -> None:
        self._check_has_states()
        chosen = self._chosen(lanes)
        rows = checked_states(states, self.formats, chosen)
        numbers = checked_reseeds(seeds, len(chosen))

        def job(positions: list[int], own: list[int]) -> Job:
            own_seeds = None if numbers is None else [numbers[index] for index in positions]
            return Job("set_states", (rows if len(rows) == 1 else rows[positions], own, own_seeds))

        self._run_on(chosen, job)

    def close(self) -> None:
        """End the processes within about 3 seconds, and close the environments."""
        if self._closed:
            return
        self._closed = True
        for worker in self.pool.workers:
            worker.process.begin_close()
        try:
            self._here.close()
        finally:
            self.pool.close(_CLOSE_SECONDS)
            self._arrays = self.pool.objects = None
            for worker in self.pool.workers:
                worker.channel = worker.info_columns = None
            if self.pool.memory is not None:
                self.pool.memory.close()
            self.pool.memory = None


def _sources_of(sources: Sources, start: int, stop: int) -> Sources:
    """Return the ids or factories of the lanes ``start:stop``."""
    if isinstance(sources, str) or callable(sources):
        return sources
    return list(sources[start:stop])


def _raise_first(errors: Sequence[Exception]) -> None:
    """If there are exceptions, raise the first, with notes about the others."""
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"other lanes raised {other!r}")
        raise errors[0]
