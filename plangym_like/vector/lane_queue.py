"""`LaneQueue`: steps lanes as soon as they are given actions, without waiting for all lanes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from plangym_like.vector.lanes import Lanes
from plangym_like.vector.part_steppers import PartStepper, steppers_of
from plangym_like.vector.process_lanes import ProcessLanes
from plangym_like.vector.step_arrays import Flags, StepArrays
from plangym_like.vector.step_call import StepCall

# The longest sleep while waiting for a reply or a death; after it, timeouts are checked.
_SLEEP_SECONDS = 0.1


class Ready(NamedTuple):
    """A lane that has been stepped or reset.

    Attributes
    ----------
    lane : int
    info : dict
        Empty if the lane has no new info.
    final : (observation, info) or None
        The last observation and info of an episode that this step ended, if the step also reset the
        lane.
    """

    lane: int
    info: dict[str, Any]
    final: Any


class LaneQueue:
    """Steps the lanes of each process separately, and returns lanes as they become ready.

    Each process steps its lanes in the order in which they are given to `put`. This process steps
    its own lanes while it waits for the others. A lane can have one action at a time: `take` must
    return the lane before the lane is given to `put` again.

    Parameters
    ----------
    lanes : Lanes
        Lanes that have been started. Nothing else may step or reset them until all lanes that
        were given to `put` are ready; see `finish`.
    out : StepArrays
        Where the results of lanes are written.
    ended : array ``(n,) bool``
        Which lanes are at the end of an episode and not yet reset; updated by this object.
    method : {"step_next", "step_same"}
        The method of `Lanes` to call.
    batch_size : int
        How many lanes each call of `take` usually returns.

    Attributes
    ----------
    pending : array bool
        Which lanes have been given to `put`, or marked by `add_ready`, and not yet been taken.
    """

    def __init__(
        self, lanes: Lanes, out: StepArrays, ended: Flags, method: str, batch_size: int
    ) -> None:
        self._out, self._ended, self._method = out, ended, method
        self._batch_size = batch_size
        self.pending = np.zeros(lanes.num_lanes, bool)
        self._ready: deque[Ready] = deque()
        # Exceptions of environments that `raise_first` has not raised yet.
        self._failures: deque[Exception] = deque()
        self.use(lanes)

    def use(self, lanes: Lanes) -> None:
        """Step `lanes` from now on; all lanes that were given to `put` must be ready."""
        self._pool = lanes.parts.pool if isinstance(lanes, ProcessLanes) else None
        self._local, self._workers = steppers_of(lanes)
        self._parts: list[PartStepper] = [self._local, *self._workers]
        # For each part, the lanes to step, each with the `actions` of its call of `put`.
        self._waiting: list[deque[tuple[int, Any]]] = [deque() for _ in self._parts]
        self._part_of = [number for number, part in enumerate(self._parts) for _ in part.lanes]
        # The maximum number of lanes in one call, so that a slow lane delays few others: the share
        # of a batch that one process steps.
        self._most_at_once = -(-self._batch_size // len(self._parts))

    def add_ready(self, infos: Iterable[dict[str, Any]]) -> None:
        """Mark all lanes as ready, after a reset; `infos` has one entry for each lane."""
        self._ready.extend(Ready(lane, info, None) for lane, info in enumerate(infos))
        self.pending[:] = True

    def put(self, lanes: Sequence[int], actions: Any) -> None:
        """Begin to step `lanes` with their rows of `actions` ``(n, ...)``.

        None of `lanes` may be pending. `actions` must not be changed afterwards.
        """
        for lane in lanes:
            self._waiting[self._part_of[lane]].append((lane, actions))
            self.pending[lane] = True
        self._collect()

    def take(self, count: int) -> list[Ready]:
        """Wait until `count` lanes are ready, and return them; at least `count` must be pending.

        Raises
        ------
        Exception
            See `raise_first`.
        """
        self._collect()
        self.raise_first()
        while len(self._ready) < count:
            self._advance()
            self.raise_first()
        taken = [self._ready.popleft() for _ in range(count)]
        for each in taken:
            self.pending[each.lane] = False
        return taken

    def raise_first(self) -> None:
        """If exceptions of environments are still to be raised, raise the first of them.

        The lanes that were stepped in the failed call are not pending any more.
        """
        if self._failures:
            raise self._failures.popleft()

    def finish(self) -> None:
        """Wait until all lanes that were given to `put` are ready; they stay pending."""
        while any(self._waiting) or any(part.call for part in self._parts):
            self._advance()

    def drop(self) -> None:
        """Drop all pending lanes and their results; wait until no process is stepping lanes."""
        for waiting in self._waiting:
            waiting.clear()
        self._ready.clear()
        self.finish()
        self._ready.clear()
        self._failures.clear()
        self.pending[:] = False

    def _advance(self) -> None:
        if self._waiting[0]:
            self._begin(0)
            self._end(self._local)
        elif self._pool is not None:
            self._pool.look(_SLEEP_SECONDS)
        self._collect()

    def _collect(self) -> None:
        """Take the results of other processes whose calls are done, and begin their next calls."""
        if self._pool is None:
            return
        self._pool.look()
        for number, worker in enumerate(self._workers, 1):
            if worker.call is not None and worker.is_over():
                self._end(worker)
            if worker.call is None and self._waiting[number]:
                self._begin(number)

    def _begin(self, number: int) -> None:
        """Begin the next call of part `number`; all its lanes come from one call of `put`."""
        waiting = self._waiting[number]
        actions, lanes = waiting[0][1], list[int]()
        while waiting and waiting[0][1] is actions and len(lanes) < self._most_at_once:
            lanes.append(waiting.popleft()[0])
        lanes.sort()
        ended = None
        if self._method == "step_next":
            ended = np.zeros(len(self.pending), bool)
            ended[lanes] = self._ended[lanes]
        try:
            self._parts[number].begin(StepCall(self._method, actions, self._out, lanes, ended))
        except Exception as error:
            self._fail(lanes, error)

    def _end(self, part: PartStepper) -> None:
        out, call = self._out, part.call
        assert call is not None and call.lanes is not None
        try:
            finals, infos = part.end()
        except Exception as error:
            self._fail(call.lanes, error)
            return
        for lane in call.lanes:
            is_over = out.terminated[lane] or out.truncated[lane]
            self._ended[lane] = is_over and lane not in finals
            self._ready.append(Ready(lane, infos.get(lane, {}), finals.get(lane)))

    def _fail(self, lanes: Sequence[int], error: Exception) -> None:
        self.pending[lanes] = False
        self._failures.append(error)
