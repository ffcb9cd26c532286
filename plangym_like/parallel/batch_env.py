"""`BatchEnv`: one batch of states fanned out over many processes."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from plangym_like import spaces
from plangym_like.batches import Inputs, Layout, Rows
from plangym_like.errors import ClosedError, InputError
from plangym_like.parallel.external_process import ExternalProcess
from plangym_like.parallel.lane import CONTROL_WORDS, Job
from plangym_like.parallel.placement import REGIONS, Memory, Shape, place, region_nbytes
from plangym_like.parallel.schedule import Schedule
from plangym_like.parallel.shared_memory import BlockPool, SharedBlock
from plangym_like.parallel.stats import Stats
from plangym_like.parallel.worker_lane import WorkerLane
from plangym_like.plan_env import PlanEnv
from plangym_like.states import Row

# A batch that this process steps faster than this many times the way to a worker and back stays
# here.
_WORTH_ROUND_TRIPS = 3.0
_ROUND_TRIP_SECONDS = 2e-4


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
    ) -> None:
        self._envs = list(envs)
        self.blocking = blocking
        self.step_timeout = step_timeout
        self.stats = Stats()
        self.seconds_per_row = 0.0
        self._caller = caller
        if not self._envs and caller is None:
            raise InputError("a BatchEnv needs at least one ExternalProcess")
        self.layout = layout if layout is not None else _common_layout(self._envs)
        self._control = SharedBlock(8 * CONTROL_WORDS * max(1, len(self._envs)))
        self._pools = {region: BlockPool() for region in REGIONS}
        self.lanes = [
            WorkerLane(process, index, self._control) for index, process in enumerate(self._envs)
        ]
        self._poller = select.poll()
        self._watched: dict[int, set[int]] = {}
        for lane in self.lanes:
            self.watch(lane)
        self._lock = threading.RLock()
        self._flight: _Flight | None = None
        self._leftover: list[Any] = []
        self._state: Row | None = None
        self._closed = False

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
    ) -> Any:
        """Step N rows; see `PlanEnv.step_batch`.

        With ``states=None`` all rows branch from what `sync_states` or `reset` set last.
        """
        wanted = return_state if return_state is not None else states is not None
        given = self._common_state() if states is None else states
        inputs = self.layout.check(actions, given, dt, seeds)
        return self.run(inputs, states=wanted, observations=True, blocking=blocking)

    def run(self, inputs: Inputs, *, states: bool, observations: bool, blocking: bool) -> Any:
        """Step checked inputs; return their result, or a promise of it."""
        with self._lock:
            self._ensure_open()
            if self._flight is not None:
                self._flight.land()
            self.stats.batches += 1
            self.stats.rows += inputs.count
            if self._stays_here(inputs):
                result = self._run_here(inputs, states, observations)
                return result if blocking else lambda timeout=None: result
            self._settle()
            flight = _Flight(self, inputs, states, observations, here=blocking)
            self._flight = flight
            return flight.land() if blocking else flight.land

    def _stays_here(self, inputs: Inputs) -> bool:
        if self._caller is None:
            return inputs.count == 0
        if inputs.count < 2 or not self.lanes:
            return True
        worth = _WORTH_ROUND_TRIPS * _ROUND_TRIP_SECONDS
        return self.seconds_per_row * _weight(inputs) <= worth

    def _run_here(self, inputs: Inputs, states: bool, observations: bool) -> Any:
        rows = self.layout.allocate(inputs, states=states, observations=observations)
        if self._caller is not None and inputs.count:
            self._caller.park()
            begun = time.perf_counter()
            self._caller.run_rows(rows, 0, inputs.count)
            self.note_speed(time.perf_counter() - begun, _weight(inputs))
        return self.layout.result(rows)

    def note_speed(self, seconds: float, weight: float) -> None:
        """Remember what a row held for one ``dt`` costs in this process."""
        self.seconds_per_row = seconds / weight

    def wait(self, seconds: float) -> None:
        """Sleep until a worker says something or dies, or `seconds` have passed."""
        self._poller.poll(seconds * 1000)
        for lane in self.lanes:
            lane.process.drain()

    def watch(self, lane: WorkerLane) -> None:
        """Listen to the lane's present process instead of its former one."""
        for fd in self._watched.pop(lane.index, ()):
            self._poller.unregister(fd)
        fds = {lane.process.fileno()}
        if lane.process.sentinel is not None:
            fds.add(lane.process.sentinel)
        for fd in fds:
            self._poller.register(fd, select.POLLIN)
        self._watched[lane.index] = fds

    def _settle(self) -> None:
        """Let lanes that were abandoned in a batch come to rest."""
        while any(lane.busy for lane in self.lanes):
            for lane in self.lanes:
                if lane.busy and lane.job.done():
                    lane.job = None
                elif lane.busy and self.step_timeout is not None:
                    if lane.idle_seconds() > self.step_timeout:
                        lane.restart()
                        self.watch(lane)
            if any(lane.busy for lane in self.lanes):
                self.wait(0.05)
        for lane in self.lanes:
            if not lane.process.is_alive() and lane.starting is None:
                lane.restart()
                self.watch(lane)
                self.stats.restarts += 1
        self._leftover.clear()

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
        K dicts, for the K environments that `indices` names (all of them if left out).
        """
        with self._lock:
            self._ensure_open()
            chosen = range(len(self._envs)) if indices is None else indices
            promises = [
                self._envs[index].reset(blocking=False, return_states=True) for index in chosen
            ]
            results = [promise() for promise in promises]
            obs = spaces.empty(self.observation_space, (len(results),))
            for index, result in enumerate(results):
                spaces.put(self.observation_space, obs, index, result.obs)
            infos = [result.info for result in results]
            if not return_states:
                return obs, infos
            return np.stack([result.state for result in results]), obs, infos

    # The end

    def close(self) -> None:
        """Close all workers; results already returned stay valid. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._flight = None
        for process in self._envs:
            process.close()
        for pool in self._pools.values():
            pool.close()
        self._control.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ensure_open(self) -> None:
        if self._closed:
            raise ClosedError("this BatchEnv has been closed")


class _Flight:
    """One batch in shared memory, from launch to landing."""

    def __init__(
        self, house: BatchEnv, inputs: Inputs, states: bool, observations: bool, *, here: bool
    ) -> None:
        self._house = house
        self._inputs = inputs
        self._result: Any = None
        self._error: BaseException | None = None
        self._landed = False
        layout, pools = house.layout, house._pools
        self._shape = Shape.of(inputs, states=states, observations=observations)
        sizes = region_nbytes(layout, self._shape)
        self._blocks: dict[str, SharedBlock] = {}
        self._memory: dict[str, Memory] = {}
        self._private: set[str] = set()
        for region, nbytes in sizes.items():
            if nbytes:
                pool = pools[region]
                block = pool.take(nbytes)
                self._blocks[region] = block
                if region != "inputs" and pool.may_lend():
                    self._memory[region] = pool.lend(block)
                else:
                    self._private.add(region)
                    self._memory[region] = block.array()
        actions = inputs.actions if isinstance(inputs.actions, list) else None
        self._rows = place(layout, self._shape, self._memory, actions)
        self._sent_inputs = self._rows.inputs
        self._rows.inputs = inputs
        self._copy_common()
        caller = house._caller
        step_here: Callable[[int, int], None] | None = None
        if caller is not None:
            caller.park()
            step_here = partial(caller.run_rows, self._rows)
        self._schedule = Schedule(house, self._rows, self._send, step_here)
        self._schedule.launch(here=here)

    def _copy_common(self) -> None:
        sent, given = self._sent_inputs, self._inputs
        if not isinstance(given.actions, list):
            sent.actions[:] = given.actions
        if not isinstance(given.dt, int):
            assert not isinstance(sent.dt, int)
            sent.dt[:] = given.dt
        if given.seeds is not None:
            assert sent.seeds is not None
            sent.seeds[:] = given.seeds
        if len(given.states) == 1:
            sent.states[:] = given.states

    def _send(self, lane: WorkerLane, start: int, stop: int, careful: bool) -> None:
        given = self._inputs
        if len(given.states) > 1:
            self._sent_inputs.states[start:stop] = given.states[start:stop]
        actions = given.actions[start:stop] if isinstance(given.actions, list) else None
        dropped = [number for pool in self._house._pools.values() for number in pool.dropped]
        blocks = {region: block.number for region, block in self._blocks.items()}
        make_job = partial(
            Job,
            fingerprint=self._house.layout.format.fingerprint,
            shape=self._shape,
            blocks=blocks,
            dropped=tuple(number for number in dropped if number in lane.known),
            careful=careful,
            actions=actions,
        )
        lane.send(make_job, list(self._blocks.values()), start, stop)

    def land(self, timeout: float | None = None) -> Any:
        """Return the result; raises what the batch raised."""
        del timeout
        with self._house._lock:
            if not self._landed:
                self._house._ensure_open()
                self._finish()
            if self._error is not None:
                raise self._error
            return self._result

    def _finish(self) -> None:
        house = self._house
        try:
            self._schedule.finish()
        except Exception as error:
            self._error = error
        except BaseException:
            self._schedule.abandon()
            house._leftover.append(self)
            house._flight = None
            self._landed = True
            self._error = ClosedError("this batch was interrupted")
            raise
        self._landed = True
        house._flight = None
        if self._error is not None:
            self._schedule.abandon()
            house._leftover.append((self._blocks, self._memory))
        else:
            self._result = house.layout.result(self._own_rows())
        settled = not any(lane.busy for lane in house.lanes)
        for region in self._private:
            if settled:
                house._pools[region].give(self._blocks[region])
        self._memory.clear()

    def _own_rows(self) -> Rows:
        """Return the rows with everything that could not be lent copied to ordinary memory."""
        if not self._private - {"inputs"}:
            return self._rows
        copies = {
            region: memory.copy() if region in self._private and region != "inputs" else memory
            for region, memory in self._memory.items()
        }
        rows = place(self._house.layout, self._shape, copies)
        rows.inputs, rows.infos = self._inputs, self._rows.infos
        if isinstance(self._rows.observations, list):
            rows.observations = self._rows.observations
        return rows


def _weight(inputs: Inputs) -> float:
    """Return how many single steps a batch amounts to."""
    steps = float(inputs.dt) if isinstance(inputs.dt, int) else float(inputs.dt.mean())
    return inputs.count * steps * max(1, inputs.horizon)


def _common_layout(envs: Sequence[ExternalProcess]) -> Layout:
    layouts: list[Layout] = [env.layout for env in envs]
    first = layouts[0]
    for index, layout in enumerate(layouts[1:], 1):
        for what in ("observation_space", "action_space", "format"):
            one, other = getattr(first, what), getattr(layout, what)
            if one != other:
                raise ValueError(
                    f"all environments of a BatchEnv have the same {what}, but env 0 has {one} "
                    f"and env {index} has {other}"
                )
    return first
