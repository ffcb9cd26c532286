"""`Flight`: one batch on its way through the lanes of a `BatchEnv`, from launch to landing."""

from __future__ import annotations

import copy
import math
import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from plangym_like.batches import Inputs, Rows
from plangym_like.execution.batch_memory import BatchMemory
from plangym_like.execution.landing import Landing
from plangym_like.execution.lane import Job
from plangym_like.execution.placement import Shape, place, region_nbytes, signature
from plangym_like.execution.schedule import Schedule
from plangym_like.execution.worker_lane import WorkerLane
from plangym_like.plan_env import PlanEnv
from plangym_like.processes.shared_memory import BlockPool

if TYPE_CHECKING:
    from plangym_like.execution.batch_env import BatchEnv


# How long it takes to see to the states of a batch: to verify and to copy them, and to tell a lane.
_SUPPLY_SECONDS, _SUPPLIED_PER_SECOND = 1e-3, 1e9


class Flight(Landing):
    """A batch in shared memory.

    Parameters
    ----------
    house : BatchEnv
        Whose lanes step it; held weakly, as it holds its flight.
    pools : dict of str to BlockPool
        Where its memory comes from.
    caller : PlanEnv or None
        Steps rows in this process.
    inputs : Inputs
        Checked.
    states, observations : bool
        Whether they are wanted back.
    here : bool
        Whether this process starts on a share at once, instead of helping when it lands.
    masked : bool
        Whether rows that fail are told in the result instead of raised.
    """

    def __init__(
        self,
        house: BatchEnv,
        pools: dict[str, BlockPool],
        caller: PlanEnv | None,
        inputs: Inputs,
        *,
        states: bool,
        observations: bool,
        here: bool,
        masked: bool = False,
    ) -> None:
        self._house: BatchEnv = weakref.proxy(house)
        super().__init__(self._house, inputs.count)
        self._pools = pools
        if not here and isinstance(inputs.actions, list):
            inputs = replace(inputs, actions=copy.deepcopy(inputs.actions))
        self._inputs = inputs
        self._here = here
        self._masked = masked
        self._shape = Shape.of(inputs, states=states, observations=observations)
        sizes = region_nbytes(house.layout, self._shape)
        self._memory = BatchMemory(pools, sizes)
        house.tally.bytes_shared += sum(sizes.values())
        actions = inputs.actions if isinstance(inputs.actions, list) else None
        self._rows = place(house.layout, self._shape, self._memory.arrays, actions)
        self._sent = self._rows.inputs
        # Once the caller goes on, its arrays are its own again.
        self._rows.inputs = inputs if here else self._sent
        step_here: Any = None
        if caller is not None:
            step_here = partial(caller.run_rows_apart if masked else caller.run_rows, self._rows)
        send = partial(Flight._send, weakref.proxy(self))
        lanes = weakref.proxy(house.pool)
        self._schedule = Schedule(
            lanes, self._rows, send, step_here, masked=masked, exact=house.layout.exact
        )
        self._owed: list[tuple[WorkerLane, int, int]] = []
        self._supplied, self._first = 0, self._first_rows()

    def launch(self) -> None:
        """Send lanes their rows.

        Raises
        ------
        StateFormatError
            A checksum does not match.
        """
        if not self._first:
            self._verify_all()
        self._copy_inputs()
        self._schedule.launch(here=self._here)
        self._supply_rest()

    def step_own(self) -> None:
        """Step rows here, for as long as other lanes may be left alone."""
        self._schedule.step_own()

    @property
    def has_own_rows(self) -> bool:
        """Whether this process has rows to step."""
        return self._schedule.has_own_rows

    @property
    def schedule(self) -> Schedule:
        """How its rows are dealt out."""
        return self._schedule

    def _copy_inputs(self) -> None:
        """Copy what every lane reads; rows' own states may follow with the rows."""
        sent, given = self._sent, self._inputs
        if not isinstance(given.actions, list):
            sent.actions[:] = given.actions
        if not isinstance(given.dt, int):
            assert not isinstance(sent.dt, int)
            sent.dt[:] = given.dt
        if given.seeds is not None:
            assert sent.seeds is not None
            sent.seeds[:] = given.seeds
        if len(given.states) == 1 or not self._here:
            sent.states[:] = given.states

    def _first_rows(self) -> int:
        """Return how many rows each lane is sent at first; 0 where all are sent at once.

        They keep it busy while the states of all others are verified and copied, where rows take
        long enough for that.
        """
        house, inputs = self._house, self._inputs
        shared = len(inputs.states) == 1 or not self._here
        if inputs.verified or shared or not house.pool.seconds_per_row:
            return 0
        seconds = max(_SUPPLY_SECONDS, inputs.states.nbytes / _SUPPLIED_PER_SECOND)
        rows = math.ceil(seconds / house.pool.seconds_per_row)
        return rows if 2 * rows * (len(house.lanes) + 1) < inputs.count else 0

    def _supply(self, start: int, stop: int) -> None:
        """Verify the states of rows, and put them where lanes find them."""
        given = self._inputs
        if len(given.states) > 1 and self._here:
            self._house.layout.verify(given, start, stop)
            self._sent.states[start:stop] = given.states[start:stop]
            self._supplied = max(self._supplied, stop)

    def _supply_rest(self) -> None:
        """Give lanes the rows that they were not sent yet, and verify those that stay here."""
        for lane, start, stop in self._owed:
            self._supply(start, lane.most)
            lane.end_at(stop)
        self._verify_all(self._supplied)
        self._first = 0

    def _verify_all(self, start: int = 0) -> None:
        """Verify the states of all rows from `start` on, those before it being known."""
        self._house.layout.verify(self._inputs, start)
        self._inputs.verified = True

    def _send(self, lane: WorkerLane, start: int, stop: int, most: int, careful: bool) -> None:
        given = self._inputs
        now = stop
        if self._first and start + self._first < stop:
            now = start + self._first
            self._owed.append((lane, now, stop))
        self._supply(start, now if now < stop else most)
        actions = given.actions[start:most] if isinstance(given.actions, list) else None
        blocks = self._memory.blocks
        dropped = (number for pool in self._pools.values() for number in pool.dropped)
        make_job = partial(
            Job,
            signature=signature(self._house.layout),
            shape=self._shape,
            blocks={region: block.number for region, block in blocks.items()},
            dropped=tuple(number for number in dropped if number in lane.known),
            careful=careful,
            masked=self._masked,
            actions=actions,
        )
        lane.send(self._schedule, make_job, list(blocks.values()), start, now, most)

    def advance(self, *, here: bool) -> bool:
        """Hear from lanes and deal out more rows, without waiting; return whether it is over."""
        if not self._schedule.advance(here=here):
            return False
        self.error = self._schedule.failure
        if self.error is None:
            self._rows.inputs = self._inputs
            self.result = self._house.layout.result(self._own_rows(), self._schedule.errors)
            self._memory.release()
        else:
            self._abandon()
        return True

    def _let_go(self) -> None:
        # The caller alone decides how long memory is lent: no other reference stays.
        del self._rows, self._sent, self._schedule, self._memory

    def _abandon(self) -> None:
        """Stop the lanes; the memory waits until they have stopped."""
        self._schedule.abandon()
        self._house.pool.leave(self._memory, self._schedule)

    def _own_rows(self) -> Rows:
        """Return the rows with everything that is not lent copied to ordinary memory."""
        if not self._memory.private - {"inputs"}:
            return self._rows
        rows = place(self._house.layout, self._shape, self._memory.results())
        rows.inputs, rows.infos = self._inputs, self._rows.infos
        if isinstance(self._rows.observations, list):
            rows.observations = self._rows.observations
        return rows
