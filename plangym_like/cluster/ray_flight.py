"""One batch on its way through a cluster, from launch to landing."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.batches import Rows
from plangym_like.cluster.chunk import Chunk, Order, distinct, order_nbytes, order_of
from plangym_like.cluster.ray_lane import RayLane
from plangym_like.cluster.ray_schedule import RaySchedule, StepHere
from plangym_like.cluster.ray_session import load
from plangym_like.execution.landing import Landing

if TYPE_CHECKING:
    from plangym_like.cluster.ray_pool import RayPool

# What is smaller travels with each chunk; a larger thing that chunks share is put where every node
# fetches it once.
_PUT_NBYTES = 1 << 16
_FEW = 4


class RayFlight(Landing):
    """A batch in this process's memory, of which chunks go out and come back.

    Parameters
    ----------
    pool : RayPool
        Whose actors step it.
    rows : Rows
        The batch.
    start : int
        The first row that is still to be stepped.
    step_here : callable or None
        As in `RaySchedule`.
    errors : dict
        What rows below `start` raised, where they are masked.
    here : bool
        Whether it is to be landed at once.
    masked : bool
        Whether rows that fail are told in the result instead of raised.

    Attributes
    ----------
    launched : bool
        Whether its first rows have been sent.
    """

    def __init__(
        self,
        pool: RayPool,
        rows: Rows,
        start: int,
        step_here: StepHere | None,
        errors: dict[int, Exception],
        *,
        here: bool,
        masked: bool,
    ) -> None:
        super().__init__(pool, rows.inputs.count)
        self._pool = pool
        if not here:
            # Once the caller goes on, its arrays are its own again.
            rows.inputs = copy.deepcopy(rows.inputs)
        self._rows = rows
        self._shared: Any = None
        self._which: NDArray[Any] | None = None
        self._looked = False
        self._masked, self._errors = masked, errors
        self._schedule = RaySchedule(
            pool.fleet,
            pool.layout,
            rows,
            start,
            self._send,
            step_here,
            errors if masked else None,
        )
        self._here = here
        self.launched = False

    def launch(self) -> bool:
        """Send actors their first rows; return False, as this ends no batch."""
        self.launched = True
        self._pool.fleet.survey()
        self._pool.fleet.welcome()
        self._schedule.launch(here=self._here)
        return False

    def _share(self) -> None:
        """Put states that chunks all over the batch start from where every node fetches them once.

        States that only neighbouring rows share are sent once with their chunk instead.
        """
        if self._looked:
            return
        self._looked = True
        states, count = self._rows.inputs.states, self._rows.inputs.count
        if len(states) > 1:
            found = distinct(self._pool.layout.format, states)
            if found is None or len(found[0]) * _FEW > count:
                return
            first, which = found
            if len(np.unique(which[: max(1, count // _FEW)])) * 2 <= len(first):
                return
            states, self._which = states[first], which
        self._shared = states
        self._pool.stats.bytes_sent += states.nbytes
        if states.nbytes >= _PUT_NBYTES:
            self._shared = load().put(states)

    def _send(self, lane: RayLane, chunk: Chunk) -> None:
        pool = self._pool
        pool.stats.chunks += 1
        pool.stats.rows_sent += len(chunk)
        if lane.near:
            states = self._rows.inputs.states
            own = states if len(states) == 1 else states[chunk.start : chunk.stop]
            order = self._order(chunk, None)
            by_line = pool.fleet.all_near
            lane.send_near(self._schedule, chunk, pool.layout, order, own, by_line=by_line)
        else:
            self._send_far(lane, chunk)

    def _send_far(self, lane: RayLane, chunk: Chunk) -> None:
        inputs, pool = self._rows.inputs, self._pool
        start, stop = chunk.start, chunk.stop
        self._share()
        which, states = self._which, self._shared
        if which is not None:
            which = which[start:stop]
        elif states is None:
            states = inputs.states[start:stop]
            if (found := distinct(pool.layout.format, states)) is not None:
                states, which = states[found[0]], found[1]
            pool.stats.bytes_sent += states.nbytes
        order = self._order(chunk, which)
        pool.stats.bytes_sent += order_nbytes(order)
        lane.send(self._schedule, chunk, order, states)

    def _order(self, chunk: Chunk, which: NDArray[Any] | None) -> Order:
        rows = self._rows
        return order_of(
            rows.inputs,
            which,
            *chunk.range,
            states=rows.next_states is not None,
            obs=rows.observations is not None,
            masked=self._masked,
        )

    def advance(self, until: float) -> bool:
        """Have rows stepped and bring them in until `until`; return whether it is over."""
        over = self._schedule.finish(until)
        if over:
            self.result = self._pool.layout.result(self._rows, self._errors)
        return over

    def _abandon(self) -> None:
        """Leave chunks that are on their way to themselves: nobody asks for them any more."""

    def _let_go(self) -> None:
        del self._rows, self._schedule, self._shared, self._which
