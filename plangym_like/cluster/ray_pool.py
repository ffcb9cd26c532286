"""`RayPool`: one batch of states fanned out over the actors of a cluster."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from plangym_like.batch_future import BatchFuture
from plangym_like.batches import Inputs, Layout, steps_of
from plangym_like.cluster.ray_fleet import RayFleet
from plangym_like.cluster.ray_flight import RayFlight
from plangym_like.cluster.ray_lane import RayLane
from plangym_like.cluster.ray_schedule import StepHere
from plangym_like.cluster.ray_session import RaySession
from plangym_like.cluster.ray_stats import RayStats
from plangym_like.errors import ClosedError
from plangym_like.execution.costs import Costs
from plangym_like.fork_safety import forget_after_fork
from plangym_like.plan_env import PlanEnv

_PROBE_SECONDS = 2e-3


class RayPool:
    """Steps batches on actors, or here where they are too cheap to be sent.

    Parameters
    ----------
    session : RaySession
        The connection; the pool leaves it when it is closed.
    fleet : RayFleet
        The actors.
    layout : Layout
        What batches look like.
    caller : PlanEnv or None
        Steps what is too cheap to be sent, and everything while no actor stands.
    """

    def __init__(
        self, session: RaySession, fleet: RayFleet, layout: Layout, caller: PlanEnv | None
    ) -> None:
        self._session = session
        self.fleet = fleet
        self.layout = layout
        self.caller = caller
        self.lock = threading.RLock()
        self._costs = Costs()
        self._tried: set[tuple[int, int]] = set()
        self._flights: list[RayFlight] = []
        self._closed = False
        self._closed_because = "this RayEnv has been closed"
        forget_after_fork(self)

    @property
    def stats(self) -> RayStats:
        """What has happened so far."""
        return self.fleet.stats

    @property
    def lanes(self) -> list[RayLane]:
        """The actors that stand, and those that have been asked for."""
        return self.fleet.lanes

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until every actor that has been asked for stands.

        Raises
        ------
        TimeoutError
            They do not after `timeout` seconds.
        """
        with self.lock:
            self.ensure_open()
            for flight in tuple(self._flights):
                flight.settle(None)
            self.fleet.wait_ready(timeout)

    def run(
        self,
        inputs: Inputs,
        *,
        states: bool,
        observations: bool,
        blocking: bool,
        masked: bool = False,
        audit: bool = False,
    ) -> Any:
        """Step checked inputs; return their result, or its future.

        Several batches may be on their way; actors step one after the other.

        `masked`: rows that fail are told in the result instead of raised. `audit`: these rows are
        not counted.
        """
        with self.lock:
            self.ensure_open()
            self.layout.verify(inputs)
            if not audit:
                self.stats.begin(inputs.count)
            rows = self.layout.allocate(inputs, states=states, observations=observations)
            step_here: StepHere | None = None
            if self.caller is not None:
                run = self.caller.run_rows_apart if masked else self.caller.run_rows
                step_here = partial(run, rows)
            errors: dict[int, Exception] = {}
            done = self._run_here(inputs, step_here, errors) if blocking else 0
            if done == inputs.count:
                finish = partial(self.layout.result, rows, errors)
                return finish() if blocking else BatchFuture.of(finish)
            begun = time.perf_counter()
            stood = self.fleet.stands and not self._flights
            flight = RayFlight(self, rows, done, step_here, errors, here=blocking, masked=masked)
            future = flight.future(self)
            self._flights.append(flight)
            self._launch_first()
            del flight  # an error's traceback holds this frame
            if not blocking:
                return future
            try:
                result = future.result()
            finally:
                del future
            if stood and not done:
                seconds = time.perf_counter() - begun
                self._costs.note(inputs.count, steps_of(inputs), seconds=seconds, sent=True)
            return result

    def _launch_first(self) -> RayFlight | None:
        """Launch the oldest batch whose future still exists, and return it."""
        while self._flights:
            first = self._flights[0]
            if first.dropped:
                first.cancel(CancelledError("the future of this batch was dropped"))
            elif first.launched or not first.attempt(first.launch, for_another=True):
                return first
        return None

    def drive(self, flight: RayFlight, until: float) -> bool:
        """Advance batches until `flight` is over or it is `until`; return whether it is over."""
        while (first := self._launch_first()) is not flight:
            if first is None or not first.attempt(partial(first.advance, until), for_another=True):
                return flight.landed
        return flight.advance(until)

    def _run_here(
        self, inputs: Inputs, step_here: StepHere | None, errors: dict[int, Exception]
    ) -> int:
        """Step rows here that are not worth sending; return how many that were.

        Of a batch of a size that was never seen, a few are stepped to know what they cost.
        """
        count = inputs.count
        if step_here is None or not count:
            return 0
        steps = steps_of(inputs)
        begun = time.perf_counter()
        done = self._probe(count, steps, step_here, errors)
        if done < count:
            if self._costs.send(count, steps):
                return done
            errors |= step_here(done, count) or {}
        seconds = time.perf_counter() - begun
        self._costs.note(count, steps, seconds=seconds, sent=False)
        return count

    def _probe(
        self, count: int, steps: int, step_here: StepHere, errors: dict[int, Exception]
    ) -> int:
        size = (count.bit_length(), steps.bit_length())
        if size in self._tried:
            return 0
        self._tried.add(size)
        best, portion, done = float("inf"), 1, 0
        until = time.perf_counter() + _PROBE_SECONDS
        while done < count and (now := time.perf_counter()) < until:
            stop = min(count, done + portion)
            errors |= step_here(done, stop) or {}
            best = min(best, (time.perf_counter() - now) / (stop - done))
            done, portion = stop, 4 * portion
        if done < count:
            self._costs.note(count, steps, seconds=best * count, sent=False)
        return done

    def landed(self, flight: RayFlight) -> None:
        """Note that `flight` is over."""
        if flight in self._flights:
            self._flights.remove(flight)

    def close(self) -> None:
        """End all actors, within seconds, and leave the session; may be called again."""
        if self._closed:
            return
        self._closed = True
        self._flights.clear()
        try:
            self.fleet.close()
        finally:
            self._session.leave()

    def ensure_open(self) -> None:
        """Raise `ClosedError` after `close`."""
        if self._closed:
            raise ClosedError(self._closed_because)

    def forget(self) -> None:
        """Close in a forked copy of the process: Ray's connection is the original's."""
        self.lock = threading.RLock()
        self._closed = True
        self._closed_because = (
            "this RayEnv belongs to the process that this one was forked from; make or clone "
            "another one in a fresh process"
        )
