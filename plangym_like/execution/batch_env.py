"""`BatchEnv`: one batch of states fanned out over many processes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, Self

from plangym_like import spaces
from plangym_like.audit.auditor import EVERY, Auditor, check_audit
from plangym_like.batch_future import BatchFuture
from plangym_like.batches import Inputs, Layout, check_on_error, steps_of
from plangym_like.errors import ClosedError, InputError, WorkerTimeoutError
from plangym_like.execution.costs import Costs
from plangym_like.execution.flight import Flight
from plangym_like.execution.lane_pool import LanePool
from plangym_like.execution.placement import REGIONS, common_layout
from plangym_like.execution.worker_audit import auditor_of
from plangym_like.fork_safety import forget_after_fork
from plangym_like.plan_env import PlanEnv
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.promise import Promise
from plangym_like.processes.shared_memory import BlockPool
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
    start_timeout : float, optional
        Seconds that a worker may take to make its environment before it is replaced. Left out: 60
        with `step_timeout`, else no limit.

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
        start_timeout: float | None = None,
    ) -> None:
        check_audit(audit, EVERY)
        self._audit = audit
        self._auditor: Auditor | None = None
        self._envs = list(envs)
        self.blocking = blocking
        self._costs = Costs()
        self._caller = caller
        if not self._envs and caller is None:
            raise InputError("a BatchEnv needs at least one ExternalProcess")
        self.pool = LanePool(self._envs, step_timeout, start_timeout)
        self.lanes, self.tally = self.pool.lanes, self.pool.tally
        if layout is None:
            for env in self._envs:
                env.wait_ready(self.pool.start_timeout)
            layout = common_layout([env.layout for env in self._envs])
        self.layout = layout
        self._pools = {region: BlockPool() for region in REGIONS}
        # Audits have a few rows each: in the batches' own pools, theirs would push out larger ones.
        self._audit_pools = {region: BlockPool() for region in REGIONS}
        self.lock = threading.RLock()
        self._flights: list[Flight] = []
        self._state: Row | None = None
        self._closed = False
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
        return sample.audited(result, again)

    def _own_auditor(self) -> Auditor:
        if self._caller is not None:
            self._caller.setup()
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
        """Step checked inputs; return their result, or its future.

        Checksums that have not been looked at are, before anything is sent or stepped; but where
        rows take long, each lane's first ones are on their way while those of others are looked at.

        Several batches may be pending. A lane that is free takes rows of the oldest first.

        `masked`: rows that fail are reported in the result instead of raised. `pools`: whose
        memory. `audit`: these rows are not counted in `stats`.
        """
        with self.lock:
            self.ensure_open()
            steps = steps_of(inputs)
            if not blocking or self._stays_here(inputs.count, steps):
                self.layout.verify(inputs)
                inputs.verified = True
            if self._stays_here(inputs.count, steps, blocking=blocking):
                if not audit:
                    self.tally.begin(inputs.count)
                run = partial(self._run_here, inputs, steps, states, observations, masked)
                return run() if blocking else BatchFuture.of(run)
            self._drop_unwanted()
            begun, alone = time.perf_counter(), not self._flights
            flight = Flight(
                self,
                pools or (self._audit_pools if audit else self._pools),
                self._caller,
                inputs,
                states=states,
                observations=observations,
                here=blocking,
                masked=masked,
            )
            # From here on, the batch is given up if its future is dropped, also by an interrupt.
            future = flight.future(self)
            self._flights.append(flight)
            flight.attempt(partial(self._launch, flight))
            if not flight.landed and not audit:
                self.tally.begin(inputs.count)
            complete = alone and all(lane.ready for lane in self.lanes)
            del flight  # an error's traceback holds this frame
            if not blocking:
                return future
            try:
                result = future.result()
            finally:
                del future
            if complete:  # else it was stepped here after all
                seconds = time.perf_counter() - begun
                self._costs.note(inputs.count, steps, seconds=seconds, sent=True)
            return result

    def _stays_here(self, count: int, steps: int, *, blocking: bool = True) -> bool:
        if self._caller is None:
            return count == 0
        if not self.lanes or not count:
            return True
        if not blocking:  # no trials: this must not take long
            return self._costs.cheap(count, steps)
        return count < 2 or not self._costs.send(count, steps)

    def _launch(self, flight: Flight) -> bool:
        """Send `flight` to the lanes that are free."""
        self.pool.prepare([each.schedule for each in self._flights if not each.landed])
        flight.launch()
        return False

    def _drop_unwanted(self) -> None:
        """Give up batches whose futures have been dropped."""
        for flight in tuple(self._flights):
            if flight.dropped:
                flight.cancel(CancelledError("the future of this batch was dropped"))
        self.pool.release()

    def drive(self, flight: Flight, until: float = math.inf) -> bool:
        """Advance all batches until `flight` is over or it is `until`; return whether it is over.

        If `until` has passed already, no row is stepped in this process.
        """
        here = until > time.monotonic()
        while True:
            self.ensure_open()  # another thread may close it meanwhile
            if here:
                flight.step_own()
            self._drop_unwanted()
            self.pool.tend()
            for each in tuple(self._flights):
                if each is flight:
                    if each.advance(here=here):
                        return True
                else:
                    each.attempt(partial(each.advance, here=False), for_another=True)
            left = until - time.monotonic()
            if left <= 0:
                return False
            if not flight.has_own_rows:
                schedule = flight.schedule
                self.pool.wait(min(left, schedule.nap()), schedule.watched())

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

    @property
    def stats(self) -> Stats:
        """What has happened so far."""
        if self.lock.acquire(blocking=False):  # else a batch is on its way, in another thread
            try:
                self.pool.hear_late(patient=True)
            finally:
                self.lock.release()
        return self.tally

    def landed(self, flight: Flight) -> None:
        """Note that `flight` is over."""
        if flight in self._flights:
            self._flights.remove(flight)
        self.pool.release()
        for pool in (*self._pools.values(), *self._audit_pools.values()):
            pool.forget(lambda number: any(number in lane.known for lane in self.lanes))

    # The environments' own state

    def sync_states(self, state: Row, blocking: bool = True) -> None:
        """Make `state` the one that batches without states branch from; workers hold none."""
        del blocking
        self._state = self.layout.format.check(state)[0].copy()

    def _common_state(self) -> Row:
        if self._state is None:
            self._state = self._answer(0, self._envs[0].call("get_state"))
        return self._state

    def _answer(self, index: int, promise: Promise) -> Any:
        """Return the answer of the environment `index`; its worker may still be starting."""
        try:
            return promise.call_safely(self.pool.start_timeout)
        except TimeoutError as error:
            if promise.settled:
                raise
            pid = self._envs[index].pid
            self.pool.restart(self.lanes[index])
            raise WorkerTimeoutError(
                f"the environment {index} (pid {pid}) did not answer within start_timeout="
                f"{self.pool.start_timeout:g} seconds; its worker was replaced"
            ) from error

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
            numbers = [self._envs.index(env) for env in chosen]
            results = [self._answer(*asked) for asked in zip(numbers, promises, strict=True)]
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
        self._flights.clear()
        self.pool.close(_CLOSE_SECONDS)
        for pool in (*self._pools.values(), *self._audit_pools.values()):
            pool.close()

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
