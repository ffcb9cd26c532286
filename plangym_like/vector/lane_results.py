"""`LaneResults`: results from other processes, put into the caller's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.vector.hosted_lanes import StepReply
from plangym_like.vector.lane_memory import LaneArrays
from plangym_like.vector.lane_stats import LaneStats
from plangym_like.vector.lanes import Lanes
from plangym_like.vector.lanes_worker import LanesWorker, Loss, Outcome
from plangym_like.vector.lost_lanes import LostLanes
from plangym_like.vector.step_call import StepCall
from plangym_like.vector.tree import copy_rows, take, write_rows

_DIED = {"worker_died": True}

Columns = dict[str, NDArray[Any]]

# The dtypes that NumPy gives to Python's own numbers.
_PYTHONS = (np.dtype(float), np.dtype(int), np.dtype(bool))


class LaneResults:
    """Stores the results of workers, and reports episodes that were lost when a worker died.

    Parameters
    ----------
    num_lanes : int
    stats : LaneStats

    Attributes
    ----------
    lost : LostLanes
    done : array bool
        Whether the episode of each lane has ended. An ended episode cannot be lost.
    """

    def __init__(self, num_lanes: int, stats: LaneStats) -> None:
        self._infos: list[dict[str, Any]] = [{} for _ in range(num_lanes)]
        # Infos of the last step as arrays, by the first lane of their part; they become dicts when
        # `infos` is read.
        self._columns: dict[int, Columns] = {}
        self.lost = LostLanes(stats)
        self.done = np.zeros(num_lanes, bool)
        # Lanes whose episode had ended when their process died, or whose lost episode has been
        # reported. They have no state until they begin another episode.
        self._gone: set[int] = set()

    @property
    def infos(self) -> list[dict[str, Any]]:
        """The same as `Lanes.infos`, for the lanes of all processes."""
        pending, self._columns = self._columns, {}
        for first_lane, columns in pending.items():
            for name, column in columns.items():
                plain = column.ndim == 1 and column.dtype in _PYTHONS
                # Copied, because the next step overwrites columns in shared memory.
                values = column.tolist() if plain else column.copy()
                for lane, value in enumerate(values, first_lane):
                    self._infos[lane][name] = value
        return self._infos

    def info_columns(self) -> Columns | None:
        """Return the info columns of all lanes; ``None`` unless all parts have the same columns."""
        parts = [self._columns[first_lane] for first_lane in sorted(self._columns)]
        if not parts or sum(map(_num_rows, parts)) < len(self._infos):
            return None
        if len({_form(columns) for columns in parts}) > 1:
            return None
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def begin_step(self, call: StepCall) -> None:
        """Move the last info columns into `infos`, or drop them if `call` steps all lanes."""
        if call.lanes is None:
            self._columns = {}
        _ = self.infos

    def take_local(self, local: Lanes, lanes: Sequence[int]) -> None:
        """Store the new infos of `lanes`, which belong to this process."""
        self._take_columns(0, local.info_columns() if lanes else None, local.num_lanes)
        if 0 not in self._columns:
            for lane in lanes:
                self.infos[lane] = local.infos[lane]

    def _take_columns(self, first_lane: int, columns: Columns | None, num_lanes: int) -> None:
        if columns:
            self._infos[first_lane : first_lane + num_lanes] = [{} for _ in range(num_lanes)]
            self._columns[first_lane] = columns

    def note_begun(self, lanes: Sequence[int]) -> None:
        """Record that `lanes` have begun new episodes, or continue from given states."""
        self.done[lanes] = False
        self._gone.difference_update(lanes)
        self.lost.forget(lanes)

    def without_state(self, lanes: Sequence[int]) -> list[int]:
        """Return the lanes in `lanes` whose states were lost with their process."""
        return [lane for lane in lanes if lane in self.lost or lane in self._gone]

    def note_loss(self, worker: LanesWorker, repeated: Sequence[int] = ()) -> None:
        """If the worker's process has died, record the episodes that were lost.

        The lanes `repeated` are left out, because a repeated call has begun new episodes in them.
        """
        loss, worker.loss = worker.loss, None
        if loss is not None:
            own = [lane for lane in range(worker.start, worker.stop) if lane not in repeated]
            self._gone.update(lane for lane in own if self.done[lane])
            self.lost.add(worker.start, [lane for lane in own if not self.done[lane]], loss.last)

    def take_observations(
        self,
        worker: LanesWorker,
        own: Sequence[int] | None,
        reply: StepReply | None,
        arrays: LaneArrays,
        obs: Any,
        *,
        in_place: bool,
    ) -> None:
        """Copy the observations of the lanes `own` of `worker` into the caller's rows.

        ``None`` means all lanes of the worker. With `in_place`, nothing is copied, because the
        worker has already written the observations there.
        """
        rows: Any = worker.rows if own is None else np.array(worker.numbers(own), np.intp)
        recent = arrays.recent[worker.slot]
        if reply is not None and reply.observations is not None:
            if own is not None:
                copy_rows(recent, arrays.recent[1 - worker.slot], worker.rows)
            write_rows(recent, rows, reply.observations)
        if not in_place:
            copy_rows(obs, recent, rows)

    def take_reset(
        self,
        worker: LanesWorker,
        own: Sequence[int] | None,
        outcome: Outcome,
        arrays: LaneArrays,
        obs: Any,
        *,
        in_place: bool,
    ) -> None:
        """Store the results of a reset of the worker's lanes `own`, unless it raised an error."""
        numbers = worker.numbers(own)
        if outcome.error is None:
            self.take_observations(worker, own, outcome.reply, arrays, obs, in_place=in_place)
            self.take_infos(worker, numbers, outcome.reply)
            self.note_begun(numbers)
        self.note_loss(worker, () if outcome.error else numbers)

    def take_infos(
        self, worker: LanesWorker, lanes: Sequence[int], reply: StepReply | None
    ) -> None:
        """Replace the infos of `lanes`, all hosted by `worker`, with the infos in `reply`."""
        columns = None if reply is None else reply.columns
        if reply is not None and reply.form and worker.columns is not None:
            columns = worker.columns.read(reply.form)
        if columns:
            self._take_columns(worker.start, columns, worker.num_lanes)
            return
        infos = {} if reply is None else reply.infos
        for lane in lanes:
            self.infos[lane] = infos.get(lane - worker.start) or {}

    def take_step(
        self,
        worker: LanesWorker,
        outcome: Outcome,
        call: StepCall,
        arrays: LaneArrays,
        finals: dict[int, Any],
        *,
        in_place: bool,
    ) -> None:
        """Store the results of a worker's step, unless it raised an error.

        Parameters
        ----------
        worker, outcome
            The worker, and the outcome of its job.
        call : StepCall
        arrays : LaneArrays
            The arrays of all lanes.
        finals : dict
            Final observations and infos by lane, to which the worker's lanes are added.
        in_place : bool
            Whether the worker has already written observations to the caller's rows.
        """
        own = worker.own(call.lanes)
        lanes = worker.numbers(own)
        if outcome.loss is not None:
            self._take_loss(worker, outcome.loss, call)
            return
        if outcome.error is not None:
            return
        reply: StepReply | None = outcome.reply
        rows: Any = worker.rows if own is None else np.array(lanes, np.intp)
        out = call.out
        out.rewards[rows] = arrays.rewards[rows]
        out.terminated[rows] = arrays.terminated[rows]
        out.truncated[rows] = arrays.truncated[rows]
        self.take_observations(worker, own, reply, arrays, out.obs, in_place=in_place)
        theirs = {} if reply is None else reply.finals
        for lane, final in theirs.items():
            finals[worker.start + lane] = final
        self.take_infos(worker, lanes, reply)

    def note_ends(self, call: StepCall, reported: Sequence[int] = ()) -> None:
        """Record which lanes' episodes have ended in a step.

        `reported` is the result of `report_lost`: lanes whose states were lost with their process.
        Their infos say so in every mode.
        """
        if self._gone:
            self._gone.difference_update(
                range(len(self.done)) if call.lanes is None else call.lanes
            )
        if call.method == "step_same":
            for lane in reported:  # its info is now that of the new episode
                self.infos[lane] = {**self.infos[lane], **_DIED}
            return
        self._gone.update(reported)
        out = call.out
        if call.lanes is None:
            np.logical_or(out.terminated, out.truncated, out=self.done)
        else:
            self.done[call.lanes] = out.terminated[call.lanes] | out.truncated[call.lanes]

    def _take_loss(self, worker: LanesWorker, loss: Loss, call: StepCall) -> None:
        """Record lost episodes; store the first results of the episodes that `call` begins."""
        out, lanes = call.out, worker.numbers(worker.own(call.lanes))
        self.done[lanes] = False
        begun: Sequence[int] = ()
        if call.ended is not None:
            begun = [lane for lane in lanes if call.ended[lane]]
        self.note_loss(worker, begun)
        for lane in lanes if call.method == "step_same" else begun:
            place = lane - worker.start
            write_rows(out.obs, lane, take(loss.first, place))
            self.infos[lane] = loss.infos[place]
            out.rewards[lane], out.terminated[lane], out.truncated[lane] = 0.0, False, False

    def report_lost(self, call: StepCall, finals: dict[int, Any]) -> list[int]:
        """Report the lost episodes of the lanes that `call` steps as truncated.

        Each of these episodes ends with its last observation, a reward of 0 and ``truncated``. For
        ``step_same``, the last observation is added to `finals`.

        Returns
        -------
        list of int
            The lanes whose episodes were lost.
        """
        out, lanes = call.out, range(len(self.done)) if call.lanes is None else call.lanes
        if call.ended is not None:
            self.lost.forget(np.flatnonzero(call.ended).tolist())
        reported = [lane for lane in lanes if lane in self.lost]
        for lane in reported:
            last = self.lost.pop(lane)
            out.rewards[lane], out.terminated[lane], out.truncated[lane] = 0.0, False, True
            if call.method == "step_same":
                finals[lane] = last, dict(_DIED)
            else:
                write_rows(out.obs, lane, last)
                self.infos[lane] = dict(_DIED)
        return reported


def _num_rows(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _form(columns: Columns) -> tuple[Any, ...]:
    """Return the name of each column, and the dtype and shape of its rows."""
    return tuple((name, each.dtype, each.shape[1:]) for name, each in columns.items())
