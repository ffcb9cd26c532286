"""The parent's side of one worker: what it was given, how far it is, whether it lives."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Sequence
from typing import Any

from plangym_like.execution.lane import (
    CURSOR,
    DONE,
    LEFT,
    LIMIT,
    REACH,
    Job,
    Report,
    control_line,
    greet,
    run_job,
)
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.shared_memory import SharedBlock

# How long a lane that has left its rows may take to say so.
_SAY_SECONDS = 1.0
# Whose cores see the writes of another in the order in which they were made, so that the word of a
# lane in shared memory is true of its rows there. Elsewhere only a message is.
_ORDERED = platform.machine() in ("x86_64", "AMD64")


class WorkerLane:
    """One `ExternalProcess` that hosts a `PlanEnv`, and the range of rows that it is stepping.

    Attributes
    ----------
    start, stop, most : int
        Its range; `stop` is lowered when rows are taken from it, and may be raised to `most`.
    alone : bool
        Whether it was given a single row to find out if that row kills.
    lost : bool
        Whether nobody knows what it is doing, because sending rows to it was interrupted.
    started_at : float
        When its process was started.
    unheard : (Promise, int) or None
        The report that `leave` did not wait for, and the first of the rows that it is about.
    """

    def __init__(self, process: ExternalProcess, index: int, control: SharedBlock) -> None:
        self.process = process
        self.index = index
        self._control = control
        self.line = control_line(control.array(), index)
        self.start = self.stop = self.most = 0
        self.alone = self.lost = False
        self.job: Any = None
        self.unheard: tuple[Any, int] | None = None
        self.known: set[int] = set()
        self._attached: Sequence[int] = ()
        self._pid = process.pid
        self.progress_at = 0.0
        self._progress = (-1, -1)
        self._owner: Any = None
        self._greeting: Any = process.apply(greet, patient=True)
        self.started_at = time.monotonic()

    @property
    def ready(self) -> bool:
        """Whether the environment in the worker is known to stand."""
        return self._greeting is None

    def arrive(self) -> bool:
        """Return whether the environment stands just now; raises what its constructor raised."""
        if self._greeting is None or not self._greeting.done():
            return False
        self._greeting.call_safely()
        self._greeting = None
        return True

    @property
    def died_starting(self) -> bool:
        """Whether its worker ended before the environment was ready, without an exception."""
        greeting = self._greeting
        return greeting is not None and greeting.done() and not greeting.replied

    @property
    def busy(self) -> bool:
        """Whether it has rows in hand."""
        return self.job is not None

    @property
    def free(self) -> bool:
        """Whether it can be given rows."""
        return self._greeting is None and self.job is None and not self.lost

    @property
    def owner(self) -> Any:
        """The `Schedule` whose rows it may be writing, or ``None``."""
        return self._owner if self.job is not None or self.lost else None

    @property
    def done(self) -> int:
        """Up to which row it is done."""
        return int(self.line[DONE])

    @property
    def cursor(self) -> int:
        """The row that it is in, or was in when it died; -1 before the first."""
        return int(self.line[CURSOR])

    @property
    def reach(self) -> int:
        """Up to which row it may have written anything, rows taken from it meanwhile included."""
        return max(self.stop, int(self.line[REACH]))

    @property
    def left(self) -> int:
        """How many rows it has not finished."""
        return max(0, self.stop - self.done) if self.busy else 0

    @property
    def finished(self) -> bool:
        """Whether all its rows are seen to be done, which is some time before it says so."""
        line = self.line
        return _ORDERED and self.busy and bool(line[LEFT]) and int(line[DONE]) >= self.stop

    @property
    def unbegun(self) -> int:
        """How many rows it has not begun, so that they may be taken from it."""
        return max(0, self.stop - int(self.line[REACH])) if self.busy else 0

    @property
    def ahead(self) -> int:
        """How many rows lie before it, about.

        Some families step all rows that they begin at once: these are taken to be halfway.
        """
        done, cursor = self.done, self.cursor
        return self.stop - (cursor if cursor > done else (done + int(self.line[REACH])) // 2)

    def send(
        self,
        owner: Any,
        make_job: Any,
        blocks: list[SharedBlock],
        start: int,
        stop: int,
        most: int,
    ) -> None:
        """Hand it rows `start` to `stop` of `owner`'s; `make_job` fills in the rest of the job."""
        if self.process.pid != self._pid:  # somebody else has restarted it
            self._pid = self.process.pid
            self.known.clear()
        self.start, self.stop, self.most = start, stop, most
        line = self.line
        line[CURSOR], line[LIMIT], line[DONE], line[REACH], line[LEFT] = -1, stop, start, start, 0
        fresh = [block for block in (self._control, *blocks) if block.number not in self.known]
        job: Job = make_job(
            lane=self.index,
            control=self._control.number,
            start=start,
            stop=most,
            attached=tuple(block.number for block in fresh),
        )
        self.progress_at = time.monotonic()
        self._progress = (-1, start)
        try:
            self._owner = owner
            fds = [block.fd for block in fresh]
            self.job = self.process.apply(run_job, job, fds=fds, patient=True)
            self.known.difference_update(job.dropped)
            self.known.update(job.attached)
            self._attached = job.attached
        except BaseException:
            self.lost = True
            raise

    def end_at(self, stop: int) -> None:
        """Take the rows from `stop` on away from it, for good, or give it those below as well."""
        if stop < self.stop:
            self.most = stop
        self.stop = stop
        self.line[LIMIT] = stop

    def leave(self) -> None:
        """Have done with a lane that has finished; what it says of its rows is heard later."""
        self.unheard, self.job, self._owner = (self.job, self.start), None, None

    def late_report(self, *, patient: bool) -> tuple[Report, int] | None:
        """Return what it still had to say, if it has said it, and of how many rows.

        `patient`: wait for it. Whatever has happened to the worker since, its rows are done.
        """
        if self.unheard is not None and (patient or self.unheard[0].done()):
            (promise, start), self.unheard = self.unheard, None
            with contextlib.suppress(Exception):
                report: Report = promise(_SAY_SECONDS)
                return report, report.stop - start
        return None

    @property
    def died(self) -> bool:
        """Whether its worker ended before it answered for its rows."""
        return self.job is not None and self.job.done() and not self.job.replied

    def report(self) -> Report:
        """Return what it says of its rows; raises what stepping them raised."""
        promise, self.job, self._owner = self.job, None, None
        try:
            report: Report = promise.call_safely()
        except (MemoryError, OSError):
            # It may have had no room for the blocks that came along; it will get them again.
            self.known.difference_update(self._attached)
            raise
        return report

    def drop(self) -> None:
        """Forget its rows and its answer, since the batch was given up."""
        self.job = self._owner = None

    def idle_seconds(self) -> float:
        """Return for how long it has not moved on in its rows, or has not begun them."""
        now = time.monotonic()
        progress = (self.cursor, self.done)
        if progress != self._progress:
            self._progress, self.progress_at = progress, now
        return now - self.progress_at

    def restart(self) -> None:
        """Replace a dead or hung process by a fresh one; its rows are forgotten."""
        self.unheard = None
        self.known.clear()
        self.process.restart()
        self._greeting = self.process.apply(greet, patient=True)
        self.started_at = time.monotonic()
        self.job, self._owner, self.lost = None, None, False
