"""`StepRunner`: runs the steps of a `ProcessLanes`."""

from __future__ import annotations

from typing import Any, NamedTuple

from plangym_like.vector.lane_memory import LaneArrays
from plangym_like.vector.lane_parts import LaneParts, raise_first
from plangym_like.vector.lanes_worker import Job, LanesWorker
from plangym_like.vector.step_call import StepCall
from plangym_like.vector.tree import put_batch


class StepOutcome(NamedTuple):
    """The results of a step that are not written into arrays.

    Attributes
    ----------
    finals : dict of int to (observation, info)
        The result of `Lanes.step_same`.
    reported : list of int
        The lanes whose episode has ended because their process died.
    again : list of int
        Lanes in `reported` whose new episodes have been stepped already; they must be reset again.
    """

    finals: dict[int, Any]
    reported: list[int]
    again: list[int]


class StepRunner:
    """Runs a step of all parts at once, or begins a step of one process without waiting for it.

    Parameters
    ----------
    parts : LaneParts
    keeps_jobs : bool
        Whether to keep the jobs of each step, so that they can be repeated if a process dies.
    """

    def __init__(self, parts: LaneParts, *, keeps_jobs: bool) -> None:
        self._parts, self._pool, self._results = parts, parts.pool, parts.results
        self._keeps_jobs = keeps_jobs

    def run(self, call: StepCall, *, publish: bool) -> StepOutcome:
        """Run `call` in all processes; `publish` is as in `HostedLanes.perform`."""
        arrays, results = self._parts.begin_step(), self._results
        results.begin_step(call)
        lost_before = set(results.lost)
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

        outcomes, failure = self._pool.run(jobs, here, publish=publish)
        for (worker, _), outcome in zip(jobs, outcomes, strict=True):
            results.take_step(
                *(worker, outcome, call, arrays, finals),
                in_place=publish,
            )
        raise_first(failure, outcomes)
        return self._report(call, finals, lost_before)

    def _report(self, call: StepCall, finals: dict[int, Any], lost_before: set[int]) -> StepOutcome:
        reported = self._results.report_lost(call, finals) if self._results.lost else []
        again = sorted(lost_before.intersection(reported)) if call.method == "step_same" else []
        return StepOutcome(finals, reported, again)

    # One process

    def begin(self, worker: LanesWorker, call: StepCall) -> Job:
        """Begin to step the lanes in `call`, all hosted by `worker`; return the job for `end`."""
        arrays: LaneArrays = self._parts.begin_step()
        lanes = call.lanes
        # Only the rows of `lanes` are written, because other lanes may be stepping now.
        shared = put_batch(arrays.actions, call.actions, lanes)
        if call.ended is not None:
            arrays.ended[worker.rows] = call.ended[worker.rows]
        job = call.job(worker, shared=shared, kept=self._keeps_jobs)
        self._pool.begin(worker, job)
        return job

    def end(self, worker: LanesWorker, call: StepCall, job: Job) -> StepOutcome:
        """Wait until `job` is done, and write its results into the arrays of `call`.

        Raises
        ------
        Exception
            An error of an environment.
        """
        arrays, results = self._parts.begin_step(), self._results
        results.begin_step(call)
        lost_before = set(results.lost)
        finals: dict[int, Any] = {}
        outcome = self._pool.end(worker, job)
        results.take_step(worker, outcome, call, arrays, finals, in_place=False)
        raise_first(None, [outcome])
        report = self._report(call, finals, lost_before)
        if report.again:
            own = worker.own(report.again)
            reset = Job("reset", (own, None, None))
            self._pool.begin(worker, reset)
            outcome = self._pool.end(worker, reset)
            results.take_reset(worker, own, outcome, arrays, call.out.obs, in_place=False)
            raise_first(None, [outcome])
        results.note_ends(call, report.reported)
        return report

    def infos(self, call: StepCall, report: StepOutcome) -> dict[int, dict[str, Any]]:
        """Return the new infos of `call` by lane; `report` is the result of `end`."""
        infos = self._results.infos
        return {lane: infos[lane] for lane in call.lanes or ()}
