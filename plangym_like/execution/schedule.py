"""How one batch is dealt out to lanes, and what happens when lanes fail.

Every lane starts on a share of the rows. Whoever is done takes half of what the slowest still has,
by lowering that lane's limit: no lock, so nothing that a killed worker could hold. When victim and
thief race for a row, both step it, and because rows are pure they write the same bytes. This
process steps its own rows from the last one down, so that the lane next to them can be given some
before it runs dry, by raising its limit: that costs nothing, where a message costs both sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from plangym_like.batches import Rows, split
from plangym_like.execution.hearing import Hearing
from plangym_like.execution.lane import faded_minimum, portion
from plangym_like.execution.worker_lane import WorkerLane

if TYPE_CHECKING:
    from plangym_like.execution.lane_pool import LanePool

_LOOK_SECONDS = 6e-3
_WAIT_SECONDS = 0.5
# Rows that take less are done before another lane has heard of them. How much more than its
# share a lane may be given without hearing of it: one part in so many.
_SENDING_SECONDS, _AHEAD = 4e-4, 16
_LOOK_AT_CLOCK_SECONDS = 0.02


class Schedule(Hearing):
    """One batch on its way, on those lanes that it has been able to get.

    Parameters
    ----------
    house : LanePool
        Owns lanes and statistics.
    rows : Rows
        The batch, its results in shared memory and its inputs where the caller has them.
    send : callable
        ``send(lane, start, stop, most, careful)`` hands rows to a lane; its limit may be raised to
        `most` later.
    step_here : callable or None
        ``step_here(start, stop)`` steps rows in this process, and where `masked` returns what those
        that failed raised; ``None``: never do that.
    masked : bool
        Whether to go on after a row that fails.
    exact : bool
        Whether a row that two lanes step gives the same bytes; else no lane takes another's rows.

    Attributes
    ----------
    abandoned_at : float or None
        When it was given up; lanes may still be in a row of it.
    """

    def __init__(
        self,
        house: LanePool,
        rows: Rows,
        send: Callable[[WorkerLane, int, int, int, bool], None],
        step_here: Callable[[int, int], dict[int, Exception] | None] | None,
        *,
        masked: bool = False,
        exact: bool = True,
    ) -> None:
        super().__init__(house, rows, masked=masked)
        self._exact = exact
        self._send = send
        self._step_here = step_here
        self.abandoned_at: float | None = None

    # Dealing out

    def launch(self, *, here: bool) -> None:
        """Give every lane that is ready its first share; `here` counts this process as one."""
        count = self._rows.inputs.count
        here = here and self._step_here is not None
        lanes = [lane for lane in self._lanes if lane.free]
        if not lanes and not here:
            self._pending.append((0, count))
            return
        shares = list(split(count, len(lanes) + here))
        self._own = shares[-1] if here else (0, 0)
        for lane, (start, stop) in zip(lanes, shares, strict=False):
            if stop > start:
                self._hand(lane, start, stop)

    def _hand(self, lane: WorkerLane, start: int, stop: int, *, alone: bool = False) -> None:
        lane.alone = alone
        most = stop
        if stop == self._own[0] and not alone:
            most = min(stop + (stop - start) // _AHEAD, self._own[1])
        self._send(lane, start, stop, most, self._careful)
        self._house.tally.rows_sent += stop - start

    def advance(self, *, here: bool) -> bool:
        """Hear from lanes and deal out more, without waiting; return whether the batch is over.

        `here`: rows may be dealt out to this process.
        """
        self._hear_lanes()
        self._feed(here=here)
        start, stop = self._own
        if start < stop:
            return False
        if self._failure is not None and not self._below_failure():
            return True
        return not (self._pending or self._suspects) and self._all_done()

    def watched(self) -> list[WorkerLane]:
        """Return the lanes whose reports need not be awaited once shared memory shows their end."""
        return [] if self._eventful else self._held()

    @property
    def has_own_rows(self) -> bool:
        """Whether this process has rows to step."""
        return self._own[0] < self._own[1]

    def _all_done(self) -> bool:
        """Return whether no lane has rows; those that are seen to be done are not waited for."""
        busy = self._held()
        if self._eventful or not all(lane.finished and lane.unheard is None for lane in busy):
            return not busy
        for lane in busy:
            lane.leave()
        return True

    @property
    def _eventful(self) -> bool:
        """Whether what lanes say is awaited."""
        return self._told or self._careful or self._failure is not None

    def step_own(self) -> None:
        """Step rows here, the last first, until it is time to look at the other lanes."""
        house, until = self._house, time.perf_counter() + _LOOK_SECONDS
        while self._own[0] < self._own[1]:
            start, stop = self._own
            middle = stop - portion(stop - start, house.seconds_per_row)
            self._rows.clock = house.tally.clock.sample(stop - middle)
            begun = time.perf_counter()
            assert self._step_here is not None
            try:
                self.errors |= self._step_here(middle, stop) or {}
            except Exception as error:
                self._fail(int(self._rows.cursor[0]), error)
                return
            now = time.perf_counter()
            house.tally.seconds_here += now - begun
            each = (now - begun) / (stop - middle)
            house.seconds_per_row = faded_minimum(house.seconds_per_row, each)
            self._own = (start, middle)
            self._pass_on()
            if now > until or any(lane.left == 0 for lane in self._held()):
                return

    def _pass_on(self) -> None:
        """Let the lane below these rows have some of them if it will be done first."""
        start, stop = self._own
        for lane in self._held():
            more = min((stop - start - lane.ahead) // 2, lane.most - start)
            if lane.stop == start and more > 0:
                self._own = (start + more, stop)
                self._house.tally.rows_sent += more
                lane.end_at(start + more)

    def _feed(self, *, here: bool) -> None:
        """Give work to every lane that has none; `here`: this process included."""
        for lane in self._lanes:
            if not lane.free:
                continue
            if self._suspects:
                row = self._suspects.popleft()
                self._hand(lane, row, row + 1, alone=True)
            elif (found := self._next_range(here=False)) is not None:
                self._hand(lane, *found)
        if here and self._step_here is not None and not self.has_own_rows:
            self._own = self._next_range(here=True) or self._own

    def _next_range(self, *, here: bool) -> tuple[int, int] | None:
        # Others than this process need a message, which a few rows are not worth.
        least = 1 if here else max(1, int(_SENDING_SECONDS / (self._house.seconds_per_row or 1.0)))
        for _ in range(len(self._pending)):
            start, stop = self._pending.popleft()
            if self._failure is not None:
                stop = min(stop, self._failure[0])
            if start < stop < start + least:
                self._pending.append((start, stop))
            elif start < stop:
                lanes = 1 + sum(lane.free for lane in self._lanes)
                middle = start + -(-(stop - start) // lanes)
                if middle < stop:
                    self._pending.appendleft((middle, stop))
                return start, middle
        return self._steal(least)

    def _steal(self, least: int) -> tuple[int, int] | None:
        """Take rows from the slowest, so that both end together; a lane keeps what it began."""
        # Both lanes may step a row, which gives the same bytes only in an exact environment.
        lanes = self._held() if self._exact else ()
        victim = max(lanes, key=lambda lane: lane.unbegun, default=None)
        theirs = 0 if victim is None or victim.alone else min(victim.unbegun, victim.ahead // 2)
        start, stop = self._own
        ours = (stop - start) // 2
        if max(ours, theirs) < least:
            return None
        self._house.tally.steals += 1
        if victim is None or ours >= theirs:
            self._own = (start + ours, stop)
            return start, start + ours
        victim.end_at(victim.stop - theirs)
        return victim.stop, victim.stop + theirs

    def abandon(self) -> None:
        """Tell every lane to stop; what they still answer is no longer awaited."""
        self.abandoned_at = time.monotonic()
        for lane in self._held():
            lane.end_at(0)

    def nap(self) -> float:
        """Return for how long lanes may be left alone."""
        limit = self._house.step_timeout
        return _WAIT_SECONDS if limit is None else min(_LOOK_AT_CLOCK_SECONDS, limit / 8)
