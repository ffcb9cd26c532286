"""`ProcessLanes`: lanes in several processes, this one included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from plangym_like.errors import InputError, WorkerDiedError
from plangym_like.lanes.hosted_lanes import Sources, Traits, traits_of
from plangym_like.lanes.lane_memory import LaneForm, LaneMemory
from plangym_like.lanes.lane_parts import LaneParts, count_lanes, places_of, raise_first
from plangym_like.lanes.lane_stats import LaneStats
from plangym_like.lanes.lanes import Flags, Lanes, Which
from plangym_like.lanes.lanes_worker import Job, LanesWorker
from plangym_like.lanes.row_copies import copy_rows, put_batch, write_rows
from plangym_like.lanes.step_call import StepCall
from plangym_like.lanes.tree import take, zeros
from plangym_like.states import Row


class ProcessLanes(Lanes):
    """Lanes in several processes; this one steps the first of them while the others step theirs.

    The lanes are split into parts of neighbours, one for each process, and each part is in the
    fastest form that it has there. The results are those of lanes in one process.

    **After an exception** of an environment, every other part has done its step; the lanes of the
    part that raised have been stepped up to the one that raised. **After Ctrl-C**, it is unknown
    which lanes have been stepped: reset them, or set their states.

    **If a process dies** or does not reply in time, it is replaced, and a warning is logged. Its
    lanes then end their episodes: their step returns the last observation again, a reward of 0,
    ``truncated``, and the info ``{"worker_died": True}``. They begin new episodes when they are
    reset. A new environment is seeded by `plangym_like.lanes.seeding.seed_after_loss`, from the
    last seed that its lane was given. With `checkpoint_every`, lanes that have states go on from
    where they were instead, and nothing shows but the warning. What cannot be repeated, such as
    `call`, then raises `WorkerDiedError` if lanes cannot be restored.

    In a new process, attributes that `set_attr` has set are set again; what `call` has changed
    outside of an environment's state is not repeated.

    Parameters
    ----------
    sources : str, callable, or sequence of them
        What makes the environments (see `lanes_from`), or what makes each of them.
    num_lanes : int, optional
        n; not needed for a sequence.
    n_workers : int
        Processes, this one included; at least 2, and no more are used than there are lanes.
    timeout : float
        Seconds after which a process that does not reply is replaced.
    checkpoint_every : int, optional
        After how many calls the state rows of all lanes are copied, so that lanes can be restored.
    vectorise : bool
        See `lanes_from`.
    start_method : {"forkserver", "spawn", "fork"}
        See `plangym_like.processes.start_methods`.
    preload : sequence of str
        Modules that the environments need, which are then imported only once.

    Attributes
    ----------
    envs : list
        The environments of the part in this process.

    Raises
    ------
    InputError
        A number is out of range, or the environments of the parts are not of one kind.
    WorkerStartError
        Processes die again and again before they are ready.
    Exception
        What making an environment raised.
    """

    def __init__(
        self,
        sources: Sources,
        num_lanes: int | None = None,
        n_workers: int = 2,
        *,
        timeout: float = 60.0,
        checkpoint_every: int | None = None,
        vectorise: bool = True,
        start_method: str = "forkserver",
        preload: Sequence[str] = (),
    ) -> None:
        self._stats = LaneStats()
        self._parts = LaneParts(
            sources,
            count_lanes(sources, num_lanes),
            n_workers,
            timeout=timeout,
            checkpoint_every=checkpoint_every,
            vectorise=vectorise,
            start_method=start_method,
            preload=preload,
            stats=self._stats,
        )
        self._pool, self._results = self._parts.pool, self._parts.results
        self._lent: Any = None
        self._keeps_jobs = checkpoint_every is not None
        try:
            super().__init__(self._parts.local.envs, self._parts.num_lanes)
            self._spaces = super().spaces
            for spaces in self._parts.run_all(lambda worker: Job("spaces", ())):
                self._spaces += spaces
            self._note_traits()
            if self._keeps_jobs:
                self._check_has_states()
        except BaseException:
            self.close()
            raise

    def _note_traits(self) -> None:
        others: list[Traits] = self._parts.run_all(lambda worker: Job("traits", ()))
        traits = [traits_of(self._parts.local), *others]
        self._steps_have_infos = self.step_infos = any(each.step_infos for each in traits)
        self.steps_ended = all(each.steps_ended for each in traits)
        self.has_states = all(each.has_states for each in traits)

    @property
    def infos(self) -> list[dict[str, Any]]:
        return self._results.infos

    def info_columns(self) -> dict[str, NDArray[Any]] | None:
        return self._results.info_columns()

    @property
    def stats(self) -> LaneStats:
        return self._stats

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._pool.workers]

    @property
    def spaces(self) -> list[tuple[Space[Any], Space[Any]]]:
        return self._spaces

    # Episodes

    def start(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> Any:
        self._parts.begin()
        self._parts.local.takes_objects = self.takes_objects
        found: list[Any] = []

        def job(worker: LanesWorker) -> Job:
            rows = worker.rows
            worker.seeds = list(seeds[rows]) if seeds else [None] * worker.num_lanes
            return Job("start", (self.takes_objects, worker.seeds, options and options[rows]))

        def here() -> None:
            rows = self._parts.own
            found.append(self._parts.local.start(seeds and seeds[rows], options and options[rows]))

        replies = self._parts.run_all(job, here)
        self._results.note_begun(range(self.num_lanes))
        self.observation_layout = layout = self._parts.local.observation_layout
        for theirs, _, _ in replies:
            if theirs != layout:
                raise InputError(f"the observations of lanes differ: {layout} and {theirs}")
        memory = self._pool.memory or self._new_memory()
        for worker, (_, rows, infos) in zip(self._pool.workers, replies, strict=True):
            if rows is not None:
                write_rows(memory.arrays.recent[worker.slot], worker.rows, rows)
            self.infos[worker.rows] = infos
        if self._pool.memory is None:
            self._pool.share(memory)
        obs = self.new_observations()
        self.infos[self._parts.own] = self._parts.local.infos
        write_rows(obs, self._parts.own, found[0])
        for worker in self._pool.workers:
            copy_rows(obs, memory.arrays.recent[worker.slot], worker.rows)
        return obs

    def new_observations(self) -> Any:
        """Return a tree of arrays ``(n, ...)`` for observations.

        The first ones, which `start` returns, lie in memory that all processes write to. Others
        are ordinary memory, to which every call copies.
        """
        if self._lent is None and self._pool.memory is not None:
            self._lent = self._pool.memory.arrays.observations
            return self._lent
        return zeros(self.observation_layout, (self.num_lanes,))

    def reset(
        self,
        obs: Any,
        lanes: Which = None,
        *,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> None:
        arrays = self._parts.begin_step()
        chosen = self._chosen(lanes)

        def part(start: int, stop: int) -> tuple[Any, Any, Any]:
            places = places_of(chosen, start, stop)
            return (
                None if lanes is None else [chosen[place] - start for place in places],
                seeds and [seeds[place] for place in places],
                options and [options[place] for place in places],
            )

        jobs = []
        for worker in self._pool.workers:
            own, own_seeds, _ = args = part(worker.start, worker.stop)
            if own is None or own:
                worker.keep_seeds(own, own_seeds)
                jobs.append((worker, Job("reset", args)))
        mine, my_seeds, my_options = part(0, self._parts.own.stop)

        def here() -> None:
            if mine is None or mine:
                rows = take(obs, self._parts.own)
                self._parts.local.reset(rows, mine, seeds=my_seeds, options=my_options)

        in_place = self._is_in_place(obs)
        outcomes, failure = self._pool.run(jobs, here, publish=in_place)
        for lane in range(self._parts.own.stop) if mine is None else mine:
            self.infos[lane] = self._parts.local.infos[lane]
        for (worker, job), outcome in zip(jobs, outcomes, strict=True):
            own = job.args[0]
            numbers = worker.numbers(own)
            if outcome.error is None:
                self._results.take_observations(
                    worker, own, outcome.reply, arrays, obs, in_place=in_place
                )
                self._results.take_infos(worker, numbers, outcome.reply)
                self._results.note_begun(numbers)
            self._results.note_loss(worker, () if outcome.error else numbers)
        raise_first(failure, outcomes)
        self._results.note_begun(chosen)

    def step(
        self,
        actions: Any,
        obs: Any,
        rewards: NDArray[Any],
        terminated: Flags,
        truncated: Flags,
        lanes: Which = None,
    ) -> None:
        which = None if lanes is None else self._chosen(lanes)
        self._step(StepCall("step", actions, obs, rewards, terminated, truncated, which))

    def step_next(
        self,
        actions: Any,
        obs: Any,
        rewards: NDArray[Any],
        terminated: Flags,
        truncated: Flags,
        ended: Flags,
    ) -> None:
        flags = terminated, truncated
        self._step(StepCall("step_next", actions, obs, rewards, *flags, ended=ended))

    def step_same(
        self,
        actions: Any,
        obs: Any,
        rewards: NDArray[Any],
        terminated: Flags,
        truncated: Flags,
    ) -> dict[int, tuple[Any, dict[str, Any]]]:
        return self._step(StepCall("step_same", actions, obs, rewards, terminated, truncated))

    def _step(self, call: StepCall) -> dict[int, tuple[Any, dict[str, Any]]]:
        arrays, results = self._parts.begin_step(), self._results
        results.begin_step(call)
        lost_before = list(results.lost)
        shared = put_batch(arrays.actions, call.actions)
        if call.ended is not None:
            arrays.ended[...] = call.ended
        jobs = [
            (worker, call.job(worker, shared=shared, kept=self._keeps_jobs))
            for worker in self._pool.workers
            if worker.own(call.lanes) != []
        ]
        finals: dict[int, Any] = {}

        def here() -> None:
            mine, informed = call.run_here(self._parts.local)
            finals.update(mine)
            results.take_local(self._parts.local, informed)

        in_place = self._is_in_place(call.obs)
        outcomes, failure = self._pool.run(jobs, here, publish=in_place)
        for (worker, _), outcome in zip(jobs, outcomes, strict=True):
            results.take_step(
                *(worker, outcome, call, arrays, finals),
                in_place=in_place,
                step_infos=self._steps_have_infos,
            )
        raise_first(failure, outcomes)
        self.step_infos = self._steps_have_infos
        if results.lost:
            reported = results.report_lost(call, finals)
            if reported and not self.step_infos:
                # The infos of this step are to be looked at, although steps have none otherwise.
                self.step_infos = True
                results.keep_infos({*reported, *call.reset_lanes(slice(None), finals)})
            if call.method == "step_same" and (again := set(reported) & set(lost_before)):
                self.reset(call.obs, sorted(again))
        results.note_ends(call)
        return finals

    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        raise NotImplementedError("the lanes of each part are reset by that part")

    # The environments

    def call(self, name: str, *args: Any, lanes: Which = None, **kwargs: Any) -> list[Any]:
        chosen = self._chosen(lanes)
        replies = self._parts.run_on(
            chosen,
            lambda _, own: Job("call", (name, args, kwargs, own)),
            lambda _, own: self._parts.local.call(name, *args, lanes=own, **kwargs),
        )
        found: dict[int, Any] = {}
        for places, values in replies:
            found.update(zip(places, values, strict=True))
        return [found[place] for place in range(len(chosen))]

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        values = list(values)
        self._parts.run_all(
            lambda worker: Job("set_attr", (name, values[worker.rows])),
            lambda: self._parts.local.set_attr(name, values[self._parts.own]),
        )
        self._pool.attributes[name] = values

    def refreshed(self) -> Lanes:
        self._parts.local = self._parts.local.refreshed()
        self._note_traits()
        return self

    # States

    def get_states(self, lanes: Which = None, *, out: Row | None = None) -> Row:
        self._check_has_states()
        chosen = self._chosen(lanes)
        rows = np.empty((len(chosen), self.state_nbytes), np.uint8) if out is None else out
        replies = self._parts.run_on(
            chosen,
            lambda _, own: Job("get_states", (own,)),
            lambda _, own: self._parts.local.get_states(own),
        )
        lost = self._results.without_state(chosen)
        if lost:
            raise WorkerDiedError(
                f"the states of lanes {lost} were lost with their process; step or reset these "
                "lanes first"
            )
        for places, states in replies:
            rows[places] = states
        return rows

    def set_states(self, states: Row, lanes: Which = None) -> None:
        self._check_has_states()
        chosen = self._chosen(lanes)
        rows: Row = self.envs[0].layout.format.check(states)
        if len(rows) not in (1, len(chosen)):
            raise InputError(f"{len(rows)} states were given for {len(chosen)} lanes")

        def own_rows(places: list[int]) -> Row:
            return rows if len(rows) == 1 else rows[places]

        self._parts.run_on(
            chosen,
            lambda places, own: Job("set_states", (own_rows(places), own)),
            lambda places, own: self._parts.local.set_states(own_rows(places), own),
            begins=True,
        )
        self._results.note_begun(chosen)

    def close(self) -> None:
        """End the processes, within some 3 seconds, and close the environments."""
        self._lent = None
        self._parts.close()

    def _new_memory(self) -> LaneMemory:
        nbytes = self.state_nbytes if self._keeps_jobs else 0
        layouts = self.action_layout, self.observation_layout
        return LaneMemory(LaneForm(*layouts, self.num_lanes, nbytes, self.takes_objects))

    def _is_in_place(self, obs: Any) -> bool:
        memory = self._pool.memory
        return obs is self._lent and memory is not None and memory.form.shares_observations
