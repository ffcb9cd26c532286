"""`LanePool`: the lanes of a `BatchEnv`, whose workers are started, watched and replaced."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from plangym_like.errors import WorkerDiedError, WorkerTimeoutError
from plangym_like.execution.batch_memory import BatchMemory
from plangym_like.execution.lane import CONTROL_WORDS, Report
from plangym_like.execution.mortality import Mortality
from plangym_like.execution.watch import Watch
from plangym_like.execution.worker_lane import WorkerLane
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.shared_memory import SharedBlock
from plangym_like.stats import Stats

if TYPE_CHECKING:
    from plangym_like.execution.schedule import Schedule

logger = logging.getLogger("plangym_like")

# How long a worker may stay in a row of a batch that was given up before it is replaced.
_GRACE_SECONDS = 1.0
# How long a worker may take to make its environment if only `step_timeout` is given.
START_SECONDS = 60.0


class LanePool:
    """Lanes, and what has happened to them.

    Parameters
    ----------
    envs : sequence of ExternalProcess
        The workers.
    step_timeout, start_timeout : float, optional
        As in `BatchEnv`.

    Attributes
    ----------
    tally : Stats
        Counts of what has happened so far.
    seconds_per_row, slowest_row : float
        What a row takes here at best, and took on a lane at worst; 0 if that is not known.
    """

    def __init__(
        self,
        envs: Sequence[ExternalProcess],
        step_timeout: float | None,
        start_timeout: float | None,
    ) -> None:
        self.step_timeout = step_timeout
        if start_timeout is None and step_timeout is not None:
            start_timeout = START_SECONDS
        self.start_timeout = start_timeout
        self._control = SharedBlock(8 * CONTROL_WORDS * max(1, len(envs)))
        self.lanes = [
            WorkerLane(process, index, self._control) for index, process in enumerate(envs)
        ]
        self._watch = Watch(self.lanes)
        self.tally = Stats()
        self.mortality = Mortality()
        self.seconds_per_row = self.slowest_row = 0.0
        self._leftover: list[tuple[BatchMemory, Schedule]] = []
        self._start_over = False

    def wait(self, seconds: float, finished: Sequence[WorkerLane]) -> None:
        """Sleep until a worker says something or dies, or `seconds` have passed.

        Or until one of the lanes `finished` is seen to have finished its rows.
        """
        self.tally.seconds_waiting += self._watch.wait(seconds, finished=finished)
        for lane in self.lanes:
            lane.process.drain()

    def hear_late(self, *, patient: bool = False) -> None:
        """Hear what lanes still had to say when a batch was seen to be done; `patient`: wait."""
        for lane in self.lanes:
            if (said := lane.late_report(patient=patient)) is not None:
                self.note_rows_done(*said)

    def note_rows_done(self, report: Report, count: int) -> None:
        """Learn from a lane that has done `count` rows."""
        if not count:
            return
        self.mortality.note_rows_done()
        self.tally.seconds_on_lanes += report.seconds
        if report.phases:
            self.tally.note_phases(report.phases)
        self.slowest_row = max(self.slowest_row * 0.9, report.seconds / count)

    # Workers that come and go

    def bury(self, lane: WorkerLane, *, stray: bool = True) -> None:
        """Give a lane whose worker died a fresh process; `stray`: the worker was not in a row."""
        self.tally.deaths += 1
        if stray:
            self.mortality.note_stray()
        self.restart(lane)

    def restart(self, lane: WorkerLane) -> None:
        """Give the lane a fresh process."""
        lane.restart()
        self.tally.restarts += 1

    def prepare(self, schedules: Collection[Schedule]) -> None:
        """Replace workers that died since the last batch, and see to lanes that step none.

        `schedules` are those of all batches on their way.
        """
        start_over, self._start_over = self._start_over, False
        for lane in self.lanes:
            owner = lane.owner
            if owner is not None and owner.abandoned_at is None and owner not in schedules:
                # A second Ctrl-C came before its batch could be given up.
                owner.abandon()
            if start_over and not lane.ready:
                self.restart(lane)
            elif lane.free and not lane.process.is_alive():
                self.bury(lane)
        self.tend()

    def tend(self) -> None:
        """Look after lanes that step no batch, or one that was given up.

        Raises
        ------
        WorkerStartError
            Processes die or hang again and again before their environments are ready.
        Exception
            What the environment's constructor raised.
        """
        self.hear_late()
        for lane in self.lanes:
            owner = lane.owner
            if lane.lost:
                self.restart(lane)
            elif owner is None:
                if not lane.ready:
                    self._arrive(lane)
                elif lane.process.fileno() < 0:
                    self.bury(lane)
            elif owner.abandoned_at is not None:
                self._free(lane, owner.abandoned_at)

    def _arrive(self, lane: WorkerLane) -> None:
        """Take note if the lane's environment stands by now, or will not."""
        try:
            stands = lane.arrive()
        except Exception as error:
            # Asked only now: it may have died just before.
            if lane.died_starting and isinstance(error, WorkerDiedError):
                # It may be due to chance.
                self.bury(lane)
                self.mortality.note_failed_start(error, len(self.lanes))
                return
            # Workers with the same constructor would raise the same: start again at the next batch.
            self._start_over = True
            raise
        limit = self.start_timeout
        if stands:
            self.mortality.note_start()
        elif limit is not None and time.monotonic() - lane.started_at > limit:
            late = WorkerTimeoutError(
                f"the worker with pid {lane.process.pid} had not made its environment after "
                f"start_timeout={limit:g} seconds; its constructor hangs, or needs a larger "
                "start_timeout"
            )
            logger.warning("%s", late)
            self.restart(lane)
            self.mortality.note_failed_start(late, len(self.lanes))

    def _free(self, lane: WorkerLane, given_up: float) -> None:
        """Free a lane of a batch that was given up; replace its worker if it stays in a row."""
        if lane.job.done():
            lane.drop()
            if lane.process.fileno() < 0:
                self.bury(lane, stray=False)
        elif time.monotonic() - given_up > _GRACE_SECONDS:
            logger.warning(
                "the worker with pid %d was still in row %d of a batch that was given up; it "
                "is replaced",
                lane.process.pid,
                lane.cursor,
            )
            self.restart(lane)

    # Memory

    def leave(self, memory: BatchMemory, schedule: Schedule) -> None:
        """Keep the memory of a batch that is given up until no lane writes to it any more."""
        self._leftover.append((memory, schedule))

    def release(self) -> None:
        """Give back memory that no lane writes to any more."""
        if not self._leftover:
            return
        owners = [lane.owner for lane in self.lanes]
        for left in tuple(self._leftover):
            if left[1].abandoned_at is not None and left[1] not in owners:
                self._leftover.remove(left)
                left[0].release()

    # The end

    def close(self, seconds: float) -> None:
        """End all workers; those that have not ended after `seconds` are killed."""
        until = time.monotonic() + seconds
        for lane in self.lanes:
            if lane.busy:
                lane.end_at(0)
        # First those that can close at once, before others have used up the time.
        for lane in sorted(self.lanes, key=lambda lane: lane.busy or not lane.ready):
            lane.process.close(max(0.0, until - time.monotonic()))
        while self._leftover:
            self._leftover.pop()[0].release()
        self._control.close()
