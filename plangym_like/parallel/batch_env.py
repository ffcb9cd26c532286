"""`BatchEnv`: one batch of states fanned out over many processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

from plangym_like import spaces
from plangym_like.audit.auditor import EVERY, Auditor, check_audit
from plangym_like.batches import Inputs, Layout, check_on_error, steps_of
from plangym_like.errors import ClosedError, InputError, WorkerDiedError
from plangym_like.fork_safety import forget_after_fork
from plangym_like.parallel.batch_memory import BatchMemory
from plangym_like.parallel.costs import Costs
from plangym_like.parallel.external_process import ExternalProcess
from plangym_like.parallel.flight import Flight
from plangym_like.parallel.lane import CONTROL_WORDS, Report
from plangym_like.parallel.mortality import Mortality
from plangym_like.parallel.placement import REGIONS, common_layout
from plangym_like.parallel.shared_memory import BlockPool, SharedBlock
from plangym_like.parallel.watch import Watch
from plangym_like.parallel.worker_audit import auditor_of
from plangym_like.parallel.worker_lane import WorkerLane
from plangym_like.plan_env import PlanEnv
from plangym_like.states import Row
from plangym_like.stats import Stats

_CLOSE_SECONDS = 2.0


class BatchEnv:
    """Steps batches on several `ExternalProcess` that each host the same `PlanEnv`.

    Parameters
    ----------
    envs : sequence of ExternalProcess
        The workers.
    blocking : bool
        What `make_transitions` does unless told otherwise: ``True`` waits for the result, ``False``
        too (the name is kept for those who come from plangym), but workers always run at once.
    caller : PlanEnv, optional
        An environment in this process that steps rows as well.
    step_timeout : float, optional
        Seconds that one row may take before its worker is replaced.
    audit : {"raise", "warn", "off"}
        What happens when a row that is stepped a second time gives another result (see `make`).

    Raises
    ------
    ValueError
        The environments' spaces or states differ.
    """

    def __init__(
        self,
        envs: Sequence[ExternalProcess],
        blocking: bool = False,
        *,
        caller: PlanEnv | None = None,
        layout: Layout | None = None,
        step_timeout: float | None = None,
        audit: str = "raise",
    ) -> None:
        check_audit(audit, EVERY)
        self._audit = audit
        self._auditor: Auditor | None = None
        self._envs = list(envs)
        self.blocking = blocking
        self.step_timeout = step_timeout
        self.tally = Stats()
        self.seconds_per_row = 0.0
        self._costs = Costs()
        self._caller = caller
        if not self._envs and caller is None:
            raise InputError("a BatchEnv needs at least one ExternalProcess")
        self.layout = (
            layout if layout is not None else common_layout([env.layout for env in self._envs])
        )
        self._control = SharedBlock(8 * CONTROL_WORDS * max(1, len(self._envs)))
        self._pools = {region: BlockPool() for region in REGIONS}
        self.lanes = [
            WorkerLane(process, index, self._control) for index, process in enumerate(self._envs)
        ]
        self._watch = Watch(self.lanes)
        self.lock = threading.RLock()
        self._flight: Flight | None = None
        self._leftover: list[BatchMemory] = []
        self._state: Row | None = None
        self._closed = self._start_over = False
        self.mortality = Mortality()
        self.slowest_row = 0.0
        self._closed_because = "this BatchEnv has been closed"
        forget_after_fork(self)

    def __len__(self) -> int:
        return len(self._envs)

    def __getitem__(self, index: int) -> ExternalProcess:
        return self._envs[index]

    @property
    def observation_space(self) -> Any:
        """The space of single observations."""
        return self.layout.observation_space

    @property
    def action_space(self) -> Any:
        """The space of single actions."""
        return self.layout.action_space

    # Batches

    def make_transitions(
        self,
        actions: Any,
        states: Any = None,
        dt: Any = 1,
        return_state: bool | None = None,
        *,
        seeds: Any = None,
        blocking: bool = True,
        on_error: str = "raise",
    ) -> Any:
        """Step N rows; see `PlanEnv.step_batch`.

        With ``states=None`` all rows branch from what `sync_states` or `reset` set last.
        """
        wanted = return_state if return_state is not None else states is not None
        given = self._common_state() if states is None else states
        inputs = self.layout.check(actions, given, dt, seeds, sums=False)
        masked = check_on_error(on_error)
        sample = self._own_auditor().draw(inputs)
        run = partial(self.run, observations=True)
        result = run(inputs, states=wanted, blocking=blocking, masked=masked)
        if sample is None:
            return result
        again = partial(run, states=True, blocking=True, masked=True, audit=True)
        return sample.audited(result, again, blocking=blocking)

    def _own_auditor(self) -> Auditor:
        if self._caller is not None:
            return self._caller.auditor
        if self._auditor is None:
            self._auditor = auditor_of(self._envs[0], self.layout, self._audit, self.tally)
        return self._auditor

    def run(
        self,
        inputs: Inputs,
        *,
        states: bool,
        observations: bool,
        blocking: bool,
        masked: bool = False,
        pools: dict[str, BlockPool] | None = None,
        audit: bool = False,
    ) -> Any:
        """Step checked inputs; return their result, or a promise of it.

        Checksums that have not been looked at are, before anything is sent or stepped; but where
        rows take long, each lane's first ones are on their way while those of others are looked at.

        `masked`: rows that fail are told in the result instead of raised. `pools`: whose memory.
        `audit`: these rows are not counted in `stats`.
        """
        with self.lock:
            self.ensure_open()
            if self._flight is not None:
                self._flight.settle()
            steps = steps_of(inputs)
            if self._stays_here(inputs.count, steps):
                self.layout.verify(inputs)
                if not audit:
                    self.tally.begin(inputs.count)
                result = self._run_here(inputs, steps, states, observations, masked)
                return result if blocking else lambda timeout=None: result
            self._settle()
            begun, complete = time.perf_counter(), all(lane.ready for lane in self.lanes)
            flight = Flight(
                self,
                self._pools if pools is None else pools,
                self._caller,
                inputs,
                states=states,
                observations=observations,
                here=blocking,
                masked=masked,
            )
            self._flight = flight
            if not audit:
                self.tally.begin(inputs.count)
            if not blocking:
                return partial(_land, self, flight)
            try:
                result = flight.land()
            finally:
                del flight  # an error's traceback holds this frame
            seconds = time.perf_counter() - begun
            if complete:  # else it was stepped here after all
                self._costs.note(inputs.count, steps, seconds=seconds, sent=True)
            return result

    def _stays_here(self, count: int, steps: int) -> bool:
        if self._caller is None:
            return count == 0
        if count < 2 or not self.lanes:
            return True
        return not self._costs.send(count, steps)

    def _run_here(
        self, inputs: Inputs, steps: int, states: bool, observations: bool, masked: bool
    ) -> Any:
        rows = self.layout.allocate(inputs, states=states, observations=observations)
        errors: dict[int, Exception] | None = None
        if self._caller is not None and inputs.count:
            run = self._caller.run_rows_apart if masked else self._caller.run_rows
            rows.clock, begun = self.tally.clock.sample(inputs.count), time.perf_counter()
            errors = run(rows, 0, inputs.count)
            seconds = time.perf_counter() - begun
            self.tally.seconds_here += seconds
            self._costs.note(inputs.count, steps, seconds=seconds, sent=False)
        return self.layout.result(rows, errors)

    def wait(self, seconds: float, *, watch: bool = False) -> None:
        """Sleep until a worker says something or dies, or `seconds` have passed.

        `watch`: or until one is seen to have finished its rows.
        """
        self.tally.seconds_waiting += self._watch.wait(seconds, finished=watch)
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

    @property
    def stats(self) -> Stats:
        """What has happened so far."""
        if self.lock.acquire(blocking=False):  # else a batch is on its way, in another thread
            try:
                self.hear_late(patient=True)
            finally:
                self.lock.release()
        return self.tally

    def bury(self, lane: WorkerLane, *, stray: bool = True) -> None:
        """Give a lane whose worker died a fresh process; `stray`: it was in no row."""
        self.tally.deaths += 1
        if stray:
            self.mortality.note_stray()
        self.restart(lane)

    def restart(self, lane: WorkerLane) -> None:
        """Give the lane a fresh process."""
        lane.restart()
        self.tally.restarts += 1

    def arrive(self, lane: WorkerLane) -> None:
        """Take note if the lane's environment stands by now.

        Raises
        ------
        WorkerStartError
            Processes die again and again before that, and none comes up in between.
        Exception
            What the environment's constructor raised.
        """
        try:
            if lane.arrive():
                self.mortality.note_start()
        except WorkerDiedError as error:
            # It may be due to chance.
            self.bury(lane)
            self.mortality.note_failed_start(error, len(self.lanes))
        except Exception:
            # The others have the same constructor; what they say of it later is no news.
            self._start_over = True
            raise

    def _settle(self) -> None:
        """Let lanes that were abandoned in a batch come to rest, and see to those that died."""
        abandoned = [lane for lane in self.lanes if lane.busy]
        while any(lane.busy and not lane.lost for lane in self.lanes):
            for lane in self.lanes:
                if lane.busy and lane.job.done():
                    lane.job = None
                elif lane.busy and self.step_timeout is not None:
                    if lane.idle_seconds() > self.step_timeout:
                        self.restart(lane)
            if any(lane.busy and not lane.lost for lane in self.lanes):
                self.wait(0.05)
        start_over, self._start_over = self._start_over, False
        for lane in self.lanes:
            if lane.lost or (start_over and not lane.ready):
                self.restart(lane)
            self.arrive(lane)
            if not lane.process.is_alive():
                self.bury(lane, stray=lane not in abandoned)
        while self._leftover:
            self._leftover.pop().release()

    def landed(self, flight: Flight) -> None:
        """Note that `flight` is over."""
        if self._flight is flight:
            self._flight = None
        for pool in self._pools.values():
            pool.forget(lambda number: any(number in lane.known for lane in self.lanes))

    def leave(self, memory: BatchMemory) -> None:
        """Keep the memory of an abandoned batch until no lane writes to it any more."""
        if any(lane.busy or lane.lost for lane in self.lanes):
            self._leftover.append(memory)
        else:
            memory.release()

    # The environments' own state

    def sync_states(self, state: Row, blocking: bool = True) -> None:
        """Make `state` the one that batches without states branch from; workers hold none."""
        del blocking
        self._state = self.layout.format.check(state)[0].copy()

    def _common_state(self) -> Row:
        if self._state is None:
            self._state = self._envs[0].call("get_state")()
        return self._state

    def reset(self, indices: Sequence[int] | None = None, return_states: bool = True) -> Any:
        """Reset environments; returns ``(states, obs, infos)``, or ``(obs, infos)``.

        ``states`` is ``(K, state_nbytes)``, ``obs`` a batch of K observations, ``infos`` a list of
        K dicts, for the K environments that `indices` names (all of them if left out). Batches
        without states branch from the first of them afterwards.
        """
        with self.lock:
            self.ensure_open()
            chosen = self._envs if indices is None else [self._envs[index] for index in indices]
            promises = [env.reset(blocking=False, return_states=True) for env in chosen]
            results = [promise() for promise in promises]
            obs = spaces.empty(self.observation_space, (len(results),))
            for index, result in enumerate(results):
                spaces.put(self.observation_space, obs, index, result.obs)
            infos = [result.info for result in results]
            states = self.layout.format.new(len(results))
            for row, result in zip(states, results, strict=True):
                row[:] = result.state
            if results:
                self._state = states[0].copy()
            return (states, obs, infos) if return_states else (obs, infos)

    # The end

    def close(self) -> None:
        """Close all workers; results already returned stay valid. May be called again.

        Takes some 2 seconds at most: workers that are still in a row by then are killed.
        """
        if self._closed:
            return
        self._closed = True
        self._flight = None
        until = time.monotonic() + _CLOSE_SECONDS
        for lane in self.lanes:
            if lane.busy:
                lane.end_at(0)
        # Those that can say goodbye do so, before others have used up the time.
        for lane in sorted(self.lanes, key=lambda lane: lane.busy or not lane.ready):
            lane.process.close(max(0.0, until - time.monotonic()))
        while self._leftover:
            self._leftover.pop().release()
        for pool in self._pools.values():
            pool.close()
        self._control.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ensure_open(self) -> None:
        """Raise `ClosedError` after `close`."""
        if self._closed:
            raise ClosedError(self._closed_because)

    def forget(self) -> None:
        """Close in a forked copy of the process: its memory is shared with the original's."""
        self.lock = threading.RLock()
        self._closed = True
        self._closed_because = (
            "this BatchEnv belongs to the process that this one was forked from; make or clone "
            "another one here"
        )


def _land(house: BatchEnv, flight: Flight, timeout: float | None = None) -> Any:
    """Land a flight whose house lives at least until then."""
    try:
        return flight.land(timeout)
    finally:
        del flight
