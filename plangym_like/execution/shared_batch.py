"""`SharedBatch`: one batch in shared memory, and its jobs for workers."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from typing import Any

from plangym_like.batches import Inputs, Rows
from plangym_like.errors import StateFormatError
from plangym_like.execution.batch_memory import BatchMemory
from plangym_like.execution.executor import SubmitOptions
from plangym_like.execution.job import Job
from plangym_like.execution.placement import Shape, place, region_nbytes, signature
from plangym_like.execution.row_worker import RowWorker
from plangym_like.layout import Layout
from plangym_like.processes.shared_memory import BlockPool

# The time to verify and copy the states of a batch: at least this many seconds (enough to send a
# job), or one second for this many bytes (`benchmarks/throughput.py`, MsPacman with 256 states).
_SUPPLY_SECONDS, _SUPPLIED_PER_SECOND = 1e-3, 1e9


class SharedBatch:
    """The inputs and results of a batch, in memory that is shared with workers.

    Parameters
    ----------
    layout : Layout
    pools : dict of str to BlockPool
        The pool of memory blocks for each region.
    inputs : Inputs
        The checked inputs.
    options : SubmitOptions
        If `blocking` is false, all inputs are copied before the batch is sent, because the caller
        may change its arrays afterwards.

    Attributes
    ----------
    rows : Rows
        The batch, with its results in shared memory and the inputs that this process reads.
    nbytes : int
        The bytes of shared memory that the batch uses.
    """

    def __init__(
        self, layout: Layout, pools: dict[str, BlockPool], inputs: Inputs, options: SubmitOptions
    ) -> None:
        self.layout, self.masked, self.audit = layout, options.masked, options.audit
        self._pools, kept = pools, options.blocking
        if not kept and isinstance(inputs.actions, list):
            inputs = replace(inputs, actions=copy.deepcopy(inputs.actions))
        self._inputs = inputs
        self._shape = Shape.of(inputs, states=options.states, observations=options.observations)
        sizes = region_nbytes(layout, self._shape)
        self.memory = BatchMemory(pools, sizes)
        self.nbytes = sum(sizes.values())
        actions = inputs.actions if isinstance(inputs.actions, list) else None
        self.rows = place(layout, self._shape, self.memory.arrays, actions)
        self._sent = self.rows.inputs
        if kept:
            self.rows.inputs = inputs
        # States that are not shared by all rows may be copied when the rows are sent.
        self._copies_late = kept and len(inputs.states) > 1
        self._owed: list[tuple[RowWorker, int, int]] = []
        self._supplied = self._first = 0

    def begin(self, workers: int, seconds_per_row: float) -> None:
        """Copy the inputs that every worker reads. After this, call `send`, then `supply_rest`.

        Raises
        ------
        StateFormatError
            The checksum of a state is wrong.
        """
        sent, given = self._sent, self._inputs
        self._first = self._first_rows(workers, seconds_per_row)
        if not self._first:
            self._verify_all()
        if not isinstance(given.actions, list):
            sent.actions[:] = given.actions
        if not isinstance(given.dt, int):
            assert not isinstance(sent.dt, int)
            sent.dt[:] = given.dt
        if given.seeds is not None:
            assert sent.seeds is not None
            sent.seeds[:] = given.seeds
        if not self._copies_late:
            sent.states[:] = given.states

    def _first_rows(self, workers: int, seconds_per_row: float) -> int:
        """Return how many rows each worker gets first; 0 means all of its rows at once.

        If rows take long enough, these first rows keep a worker busy while the states of all other
        rows are verified and copied.
        """
        inputs = self._inputs
        if inputs.verified or not self._copies_late or not seconds_per_row:
            return 0
        seconds = max(_SUPPLY_SECONDS, inputs.states.nbytes / _SUPPLIED_PER_SECOND)
        rows = math.ceil(seconds / seconds_per_row)
        return rows if 2 * rows * (workers + 1) < inputs.count else 0

    def send(
        self, worker: RowWorker, owner: object, start: int, stop: int, most: int, *, careful: bool
    ) -> None:
        """Send a worker the rows ``start:stop``; `stop` may later be raised to at most `most`."""
        given = self._inputs
        now = stop
        if self._first and start + self._first < stop:
            now = start + self._first
            self._owed.append((worker, now, stop))
        self._supply(start, now if now < stop else most)
        actions = given.actions[start:most] if isinstance(given.actions, list) else None
        blocks = self.memory.blocks
        dropped = (number for pool in set(self._pools.values()) for number in pool.dropped)
        make_job = partial(
            Job,
            signature=signature(self.layout),
            shape=self._shape,
            blocks={region: block.number for region, block in blocks.items()},
            dropped=tuple(number for number in dropped if number in worker.known),
            careful=careful,
            masked=self.masked,
            audit=self.audit,
            actions=actions,
        )
        worker.send(owner, make_job, list(blocks.values()), start, now, most)

    def _supply(self, start: int, stop: int) -> None:
        """Verify and copy the states of the rows ``start:stop``, if `begin` has not copied them."""
        if self._copies_late:
            self.layout.verify(self._inputs, start, stop)
            self._sent.states[start:stop] = self._inputs.states[start:stop]
            self._supplied = max(self._supplied, stop)

    def supply_rest(self) -> None:
        """Let workers step the rest of their rows; verify the states of rows that no worker has."""
        for worker, start, stop in self._owed:
            self._supply(start, worker.most)
            worker.end_at(stop)
        self._verify_all(self._supplied)
        self._first = 0

    def verify_from(self, start: int) -> None:
        """Verify the states of rows from `start` on.

        If one of them is damaged, the states of all rows are verified, so that the error names the
        first damaged row of the batch.

        Raises
        ------
        StateFormatError
            The checksum of a state is wrong.
        """
        try:
            self.layout.verify(self._inputs, start if len(self._inputs.states) > 1 else 0)
        except StateFormatError:
            self._verify_all()
            raise

    def _verify_all(self, start: int = 0) -> None:
        """Verify the states of all rows from `start` on; earlier rows were verified before."""
        self.layout.verify(self._inputs, start)
        self._inputs.verified = True

    def result(self, errors: dict[int, Exception]) -> Any:
        """Return the result, whose memory then belongs to the caller; all rows must be done."""
        self.rows.inputs = self._inputs
        result = self.layout.result(self._own_rows(), errors)
        self.memory.release()
        return result

    def _own_rows(self) -> Rows:
        """Return the rows; arrays whose memory cannot be lent to the caller are copied."""
        if not self.memory.private - {"inputs"}:
            return self.rows
        rows = place(self.layout, self._shape, self.memory.results())
        rows.inputs, rows.infos = self._inputs, self.rows.infos
        if isinstance(self.rows.observations, list):
            rows.observations = self.rows.observations
        return rows
