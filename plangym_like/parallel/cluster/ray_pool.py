"""`RayPool`: one batch of states fanned out over the actors of a cluster."""

from __future__ import annotations

import threading
import time
from typing import Any

from plangym_like.batches import Inputs, Layout, Rows
from plangym_like.errors import ClosedError
from plangym_like.parallel.cluster.ray_fleet import RayFleet
from plangym_like.parallel.cluster.ray_flight import RayFlight
from plangym_like.parallel.cluster.ray_lane import RayLane
from plangym_like.parallel.cluster.ray_session import RaySession
from plangym_like.parallel.cluster.ray_stats import RayStats
from plangym_like.parallel.costs import Costs
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
        self._flight: RayFlight | None = None
        self._closed = False

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
            if self._flight is not None:
                self._flight.settle()
            self.fleet.wait_ready(timeout)

    def run(self, inputs: Inputs, *, states: bool, observations: bool, blocking: bool) -> Any:
        """Step checked inputs; return their result, or a promise of it."""
        with self.lock:
            self.ensure_open()
            if self._flight is not None:
                self._flight.settle()
            self.stats.batches += 1
            self.stats.rows += inputs.count
            rows = self.layout.allocate(inputs, states=states, observations=observations)
            done = self._run_here(rows)
            if done == inputs.count:
                result = self.layout.result(rows)
                return result if blocking else lambda timeout=None: result
            self.fleet.survey()
            self.fleet.welcome()
            begun = time.perf_counter()
            stood = self.fleet.stands
            flight = self._flight = RayFlight(self, rows, done, here=blocking)
            if not blocking:
                return flight.land
            result = flight.land()
            if stood and not done:
                seconds = time.perf_counter() - begun
                self._costs.note(inputs.count, _steps(inputs), seconds=seconds, sent=True)
            return result

    def _run_here(self, rows: Rows) -> int:
        """Step rows here that are not worth sending; return how many that were.

        Of a batch of a size that was never seen, a few are stepped to know what they cost.
        """
        inputs = rows.inputs
        if self.caller is None or not inputs.count:
            return 0
        count, steps = inputs.count, _steps(inputs)
        begun = time.perf_counter()
        done = self._probe(rows, count, steps)
        if done < count:
            if self._costs.send(count, steps):
                return done
            self.caller.run_rows(rows, done, count)
        seconds = time.perf_counter() - begun
        self._costs.note(count, steps, seconds=seconds, sent=False)
        return count

    def _probe(self, rows: Rows, count: int, steps: int) -> int:
        size = (count.bit_length(), steps.bit_length())
        if size in self._tried:
            return 0
        self._tried.add(size)
        assert self.caller is not None
        best, portion, done = float("inf"), 1, 0
        until = time.perf_counter() + _PROBE_SECONDS
        while done < count and (now := time.perf_counter()) < until:
            stop = min(count, done + portion)
            self.caller.run_rows(rows, done, stop)
            best = min(best, (time.perf_counter() - now) / (stop - done))
            done, portion = stop, 4 * portion
        if done < count:
            self._costs.note(count, steps, seconds=best * count, sent=False)
        return done

    def landed(self, flight: RayFlight) -> None:
        """Note that `flight` is over."""
        if self._flight is flight:
            self._flight = None

    def close(self) -> None:
        """End all actors, within seconds, and leave the session; may be called again."""
        if self._closed:
            return
        self._closed = True
        self._flight = None
        try:
            self.fleet.close()
        finally:
            self._session.leave()

    def ensure_open(self) -> None:
        """Raise `ClosedError` after `close`."""
        if self._closed:
            raise ClosedError("this RayEnv has been closed")


def _steps(inputs: Inputs) -> int:
    """Return how many single steps a row of a batch amounts to."""
    held = inputs.dt if isinstance(inputs.dt, int) else -(-int(inputs.dt.sum()) // inputs.count)
    return held * max(1, inputs.horizon)
