"""`ProcessLanes`: lanes in several processes, this one included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium.spaces import Space
from numpy.typing import NDArray

from plangym_like.errors import InputError, WorkerDiedError
from plangym_like.execution.short_episode import ShortEpisode
from plangym_like.states.rows import Row, StateFormat
from plangym_like.vector.hosted_lanes import Sources, Traits, formats_of, traits_of
from plangym_like.vector.lane_memory import LaneForm, LaneMemory
from plangym_like.vector.lane_parts import LaneParts, count_lanes, places_of, raise_first
from plangym_like.vector.lane_stats import LaneStats
from plangym_like.vector.lanes import Lanes, Options, Seeds, Which, checked_reseeds, checked_states
from plangym_like.vector.lanes_worker import Job, LanesWorker
from plangym_like.vector.make_lanes import Sample
from plangym_like.vector.step_arrays import Flags, StepArrays
from plangym_like.vector.step_call import StepCall
from plangym_like.vector.step_runner import StepRunner
from plangym_like.vector.tree import copy_rows, take, write_rows, zeros


class ProcessLanes(Lanes):
    """Lanes in several processes; this process steps the first ones, other processes the rest.

    The lanes are split into parts of consecutive lanes, one for each process. Each part uses the
    fastest form of lanes that is available for it (see `lanes_from`). The results equal those of
    lanes in one process.

    **If an environment raises an exception**, all other parts are still stepped. In the part that
    contains the environment, lanes before it may have been stepped; lanes after it have not.
    **After Ctrl-C**, it is unknown which lanes have been stepped: reset them, or set their states.

    **If a process dies** or does not reply in time, it is replaced, and a warning is logged. The
    episodes of its lanes end with a step that returns the last observation again, a reward of 0,
    ``truncated``, and the info ``{"worker_died": True}``. The lanes begin new episodes when they
    are reset. The seed of a new environment is derived from the last seed that its lane was given,
    by `plangym_like.vector.lanes.seed_after_loss`. If `checkpoint_every` is given, episodes do
    not end but continue where they were; only the warning and `stats` show that a process died. If
    lanes cannot be restored, calls that cannot be repeated, such as `call`, raise
    `WorkerDiedError`.

    In a new process, attributes that were set by `set_attr` are set again. Changes that `call` made
    outside an environment's state are lost.

    Parameters
    ----------
    sources : str, callable, or sequence of them
        An id or factory for all environments (see `lanes_from`), or one for each.
    num_lanes : int, optional
        n; not needed if `sources` is a sequence.
    n_workers : int
        The number of processes, including this one; at least 2. At most one per lane is used.
    timeout : float
        Seconds after which a process that does not reply is replaced.
    checkpoint_every : int, optional
        The number of calls after which the state rows of all lanes are copied, so that lanes can be
        restored.
    vectorise : bool
        See `lanes_from`.
    start_method : {"forkserver", "spawn", "fork"}
        See `plangym_like.processes.start_methods`.
    preload : sequence of str
        Modules that the environments need; the fork server imports them once for all processes.
    expected : (Sample, ShortEpisode), optional
        A function that makes one of the environments, and the results of its short episode in this
        process (see `plangym_like.vector.make_lanes`). Each other process has to repeat it.

    Attributes
    ----------
    envs : list
        The environments of the part in this process.
    parts : LaneParts
    runner : StepRunner

    Raises
    ------
    InputError
        A number is out of range, or `num_lanes` is not the length of `sources`.
    SnapshotError
        `checkpoint_every` is given, but the lanes have no state rows.
    WorkerStartError
        Processes repeatedly die or hang before they are ready.
    DifferentWorkerError
        The environments give other results in another process than in this one.
    Exception
        An error from making an environment.
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
        expected: tuple[Sample, ShortEpisode] | None = None,
    ) -> None:
        self._stats = LaneStats()
        self.parts = LaneParts(
            sources,
            count_lanes(sources, num_lanes),
            n_workers,
            timeout=timeout,
            checkpoint_every=checkpoint_every,
            vectorise=vectorise,
            start_method=start_method,
            preload=preload,
            expected=expected,
            stats=self._stats,
        )
        self._results = self.parts.results
        self._lent: Any = None
        self._formats: list[StateFormat] | None = None
        self._keeps_jobs = checkpoint_every is not None
        self.runner = StepRunner(self.parts, keeps_jobs=self._keeps_jobs)
        try:
            super().__init__(self.parts.local.envs, self.parts.num_lanes)
            self._spaces = super().spaces
            for spaces in self.parts.run_all(lambda worker: Job("spaces", ())):
                self._spaces += spaces
            self._note_traits()
            if self._keeps_jobs:
                self._check_has_states()
        except BaseException:
            self.close()
            raise

    def _note_traits(self) -> None:
        others: list[Traits] = self.parts.run_all(lambda worker: Job("traits", ()))
        traits = [traits_of(self.parts.local), *others]
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
        return [worker.process.pid for worker in self.parts.pool.workers]

    @property
    def spaces(self) -> list[tuple[Space[Any], Space[Any]]]:
        return self._spaces

    # Episodes

    def start(self, seeds: Seeds = None, options: Options = None) -> Any:
        self.parts.begin()
        found: list[Any] = []

        def job(worker: LanesWorker) -> Job:
            rows = worker.rows
            worker.seeds = list(seeds[rows]) if seeds else [None] * worker.num_lanes
            return Job("start", (worker.seeds, options and options[rows]))

        def here() -> None:
            rows = self.parts.own
            found.append(self.parts.local.start(seeds and seeds[rows], options and options[rows]))

        replies = self.parts.run_all(job, here)
        self._results.note_begun(range(self.num_lanes))
        self.observation_layout = layout = self.parts.local.observation_layout
        for theirs, _, _ in replies:
            if theirs != layout:
                raise InputError(
                    "the observations of all lanes must have the same shapes and dtypes, got "
                    f"{layout} and {theirs}"
                )
        memory = self.parts.pool.memory or self._new_memory()
        for worker, (_, rows, infos) in zip(self.parts.pool.workers, replies, strict=True):
            if rows is not None:
                write_rows(memory.arrays.recent[worker.slot], worker.rows, rows)
            self.infos[worker.rows] = infos
        if self.parts.pool.memory is None:
            self.parts.pool.share(memory)
        obs = self.new_observations()
        self.infos[self.parts.own] = self.parts.local.infos
        write_rows(obs, self.parts.own, found[0])
        for worker in self.parts.pool.workers:
            copy_rows(obs, memory.arrays.recent[worker.slot], worker.rows)
        return obs

    def new_observations(self) -> Any:
        """Return a tree of arrays ``(n, ...)`` for observations.

        The first arrays, which `start` returns, are in memory that all processes write to. Later
        arrays are in ordinary memory, into which every reset and step copies observations.
        """
        if self._lent is None and self.parts.pool.memory is not None:
            self._lent = self.parts.pool.memory.arrays.observations
            return self._lent
        return zeros(self.observation_layout, (self.num_lanes,))

    def reset(
        self, obs: Any, lanes: Which = None, *, seeds: Seeds = None, options: Options = None
    ) -> None:
        arrays = self.parts.begin_step()
        chosen = self._chosen(lanes)

        def part(start: int, stop: int) -> tuple[Any, Any, Any]:
            places = places_of(chosen, start, stop)
            return (
                None if lanes is None else [chosen[place] - start for place in places],
                seeds and [seeds[place] for place in places],
                options and [options[place] for place in places],
            )

        jobs = []
        for worker in self.parts.pool.workers:
            own, own_seeds, _ = args = part(worker.start, worker.stop)
            if own is None or own:
                worker.keep_seeds(own, own_seeds)
                jobs.append((worker, Job("reset", args)))
        mine, my_seeds, my_options = part(0, self.parts.own.stop)

        def here() -> None:
            if mine is None or mine:
                rows = take(obs, self.parts.own)
                self.parts.local.reset(rows, mine, seeds=my_seeds, options=my_options)

        in_place = self._is_in_place(obs)
        outcomes, failure = self.parts.pool.run(jobs, here, publish=in_place)
        for lane in range(self.parts.own.stop) if mine is None else mine:
            self.infos[lane] = self.parts.local.infos[lane]
        for (worker, job), outcome in zip(jobs, outcomes, strict=True):
            lanes_reset = worker, job.args[0]
            self._results.take_reset(*lanes_reset, outcome, arrays, obs, in_place=in_place)
        raise_first(failure, outcomes)
        self._results.note_begun(chosen)

    def step(self, actions: Any, out: StepArrays, lanes: Which = None) -> None:
        which = None if lanes is None else self._chosen(lanes)
        self._step(StepCall("step", actions, out, which))

    def step_next(self, actions: Any, out: StepArrays, ended: Flags, lanes: Which = None) -> None:
        which = None if lanes is None else self._chosen(lanes)
        self._step(StepCall("step_next", actions, out, which, ended))

    def step_same(
        self, actions: Any, out: StepArrays, lanes: Which = None
    ) -> dict[int, tuple[Any, dict[str, Any]]]:
        which = None if lanes is None else self._chosen(lanes)
        return self._step(StepCall("step_same", actions, out, which))

    def _step(self, call: StepCall) -> dict[int, tuple[Any, dict[str, Any]]]:
        finals, reported, again = self.runner.run(call, publish=self._is_in_place(call.out.obs))
        if again:
            self.reset(call.out.obs, again)
        self._results.note_ends(call, reported)
        return finals

    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        raise NotImplementedError("the lanes of each part are reset by that part")

    # The environments

    def hide(self) -> None:
        self.parts.local.hide()

    def expose(self) -> None:
        self.parts.local.expose()

    def call(self, name: str, *args: Any, lanes: Which = None, **kwargs: Any) -> list[Any]:
        chosen = self._chosen(lanes)
        replies = self.parts.run_on(
            chosen,
            lambda _, own: Job("call", (name, args, kwargs, own)),
            lambda _, own: self.parts.local.call(name, *args, lanes=own, **kwargs),
        )
        found: dict[int, Any] = {}
        for places, values in replies:
            found.update(zip(places, values, strict=True))
        return [found[place] for place in range(len(chosen))]

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        values = list(values)
        self.parts.run_all(
            lambda worker: Job("set_attr", (name, values[worker.rows])),
            lambda: self.parts.local.set_attr(name, values[self.parts.own]),
        )
        self.parts.pool.attributes[name] = values

    def are_wrapped(self, wrapper_class: type) -> list[bool]:
        found = self.parts.local.are_wrapped(wrapper_class)
        for wrapped in self.parts.run_all(lambda worker: Job("are_wrapped", (wrapper_class,))):
            found += wrapped
        return found

    def refreshed(self) -> Lanes:
        self.parts.local = self.parts.local.refreshed()
        self._note_traits()
        return self

    # States

    @property
    def formats(self) -> list[StateFormat]:
        self._check_has_states()
        if self._formats is None:
            found = formats_of(self.parts.local)
            for formats in self.parts.run_all(lambda worker: Job("formats", ())):
                found += formats
            self._formats = found
        return self._formats

    def get_states(self, lanes: Which = None, *, out: Row | None = None) -> Row:
        self._check_has_states()
        chosen = self._chosen(lanes)
        rows = self._new_rows(chosen) if out is None else out
        replies = self.parts.run_on(
            chosen,
            lambda _, own: Job("get_states", (own,)),
            lambda _, own: self.parts.local.get_states(own),
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

    def set_states(self, states: Row, lanes: Which = None, seeds: Any = None) -> None:
        self._check_has_states()
        chosen = self._chosen(lanes)
        rows = checked_states(states, self.formats, chosen)
        numbers = checked_reseeds(seeds, len(chosen))

        def own(places: list[int]) -> tuple[Row, list[int] | None]:
            own_seeds = None if numbers is None else [numbers[place] for place in places]
            return rows if len(rows) == 1 else rows[places], own_seeds

        def job(places: list[int], lanes: list[int]) -> Job:
            own_rows, own_seeds = own(places)
            return Job("set_states", (own_rows, lanes, own_seeds))

        def here(places: list[int], lanes: list[int]) -> None:
            own_rows, own_seeds = own(places)
            self.parts.local.set_states(own_rows, lanes, own_seeds)

        self.parts.run_on(chosen, job, here, begins=True)
        self._results.note_begun(chosen)

    def close(self) -> None:
        """End the processes within about 3 seconds, and close the environments."""
        self._lent = None
        self.parts.close()

    def _new_memory(self) -> LaneMemory:
        nbytes = self.state_nbytes if self._keeps_jobs else 0
        layouts = self.action_layout, self.observation_layout
        return LaneMemory(LaneForm(*layouts, self.num_lanes, nbytes))

    def _is_in_place(self, obs: Any) -> bool:
        memory = self.parts.pool.memory
        return obs is self._lent and memory is not None and memory.shares_observations
