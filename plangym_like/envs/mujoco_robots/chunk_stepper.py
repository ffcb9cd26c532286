"""`ChunkStepper`: simulates rows one by one, but vectorises all other computations of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Inputs, Rows, given_states
from plangym_like.envs.fast_form import FastForm, held_frames
from plangym_like.envs.mujoco_physics import INTEGRATION, PhysicsMemory, lay_out
from plangym_like.envs.mujoco_robots.record import Record
from plangym_like.envs.mujoco_robots.robot import Frames, Robot, look_in
from plangym_like.states.rows import HEADER_NBYTES, Row

# The number of frames to simulate before computing their results. Their data fit into a cache.
_FRAMES_AT_ONCE = 1024
_KEPT_RECORDS = 2


class ChunkStepper(FastForm):
    """Steps blocks of rows of one robot.

    Parameters
    ----------
    robot : Robot
    frameskip : int
        The number of frames per action.
    physics : PhysicsMemory
        The layout of the simulation's state in a row.
    reseed : callable
        ``reseed(payload, seed)`` writes a random generator made from `seed` into a payload.
    elapsed_at : int, optional
        The offset of the time limit's step count in a payload.
    limit : callable
        Returns the number of steps of the time limit, if there is one.
    """

    rolls_out_one = True

    def __init__(
        self,
        robot: Robot,
        physics: PhysicsMemory,
        frameskip: int,
        reseed: Callable[[Row, int], None],
        *,
        elapsed_at: int | None = None,
        limit: Callable[[], int] = lambda: 0,
    ) -> None:
        self._robot = robot
        self._physics = physics
        self._frameskip = frameskip
        self._reseed = reseed
        self._counter = None if elapsed_at is None else (HEADER_NBYTES + elapsed_at) // 8
        self._limit = limit
        self.places = dict(physics.places)
        slices, self._nbytes = lay_out(robot.recorded(), physics.nbytes, self.places)
        self._parts = physics.slices + slices
        self._records: dict[int, Record] = {}

    def takes(self, rows: Rows) -> bool:
        whole = not rows.inputs.horizon or isinstance(rows.inputs.dt, int)
        return whole and super().takes(rows)

    def step(self, rows: Rows, first: int, last: int) -> None:
        """Step the rows ``first:last``, each from its own state."""
        self._step(rows, first, last, rows.inputs.actions[:, None], 1)

    def rollout(self, rows: Rows, first: int, last: int) -> None:
        """Step each of the rows ``first:last`` through its T actions, or until its episode ends.

        ``dt`` must be the same for all rows.
        """
        self._step(rows, first, last, rows.inputs.actions, rows.inputs.horizon)

    def _step(self, rows: Rows, first: int, last: int, plans: NDArray[Any], horizon: int) -> None:
        """Step each of the rows ``first:last`` through its `horizon` actions in `plans`."""
        most = self._most_frames(rows.inputs, slice(first, last))[1]
        size = max(1, _FRAMES_AT_ONCE // (most * horizon))
        for start in range(first, last, size):
            block = slice(start, min(start + size, last))
            held, most = self._most_frames(rows.inputs, block)
            actions = plans[block] if most == 1 else plans[block].repeat(most, axis=1)
            self._run(rows, block, actions, held * horizon, most)

    def _most_frames(self, inputs: Inputs, block: slice) -> tuple[int | NDArray[np.int64], int]:
        """Return how many frames each row of `block` holds an action, and the maximum of these."""
        held = held_frames(inputs, block, self._frameskip)
        return held, held if isinstance(held, int) else int(np.max(held))

    def _run(
        self,
        rows: Rows,
        block: slice,
        actions: NDArray[Any],
        wanted: int | NDArray[np.int64],
        held: int,
    ) -> None:
        """Step the rows of `block` for up to `wanted` frames each.

        `actions` has one action for each frame; an action is repeated for up to `held` frames.
        """
        source = given_states(rows.inputs, block)
        elapsed = self._elapsed(source)
        count = len(actions)
        ran = np.empty(count, np.int64)
        ran[:] = wanted
        if self._counter is not None:
            np.minimum(ran, np.maximum(self._limit() - elapsed, 1), out=ran)
        record = self._record(actions.shape[1])
        self._simulate(rows, block, record, source, actions, ran)
        numbers = record.numbers[:count]
        with np.errstate(all="ignore"):
            rewards, ended, infos = self._robot.settle(Frames(numbers, self.places, actions))
        if rewards.shape[1] == 1:
            self._tell_frame(rows, block, numbers, rewards, ended, infos, elapsed)
        else:
            ended = np.broadcast_to(ended, rewards.shape)
            over = np.where(ended.any(axis=1), ended.argmax(axis=1), len(ended[0]))
            np.minimum(ran, over + 1, out=ran)
            flags = over < ran, self._late(elapsed + ran)
            self._tell(rows, block, numbers, rewards, infos, flags, ran, held)
        self._store(rows, block, source, record.bytes[:count], ran, elapsed)

    # Simulating

    def _simulate(
        self,
        rows: Rows,
        block: slice,
        record: Record,
        source: Row,
        actions: NDArray[Any],
        ran: NDArray[np.int64],
    ) -> None:
        """Simulate each row for its number of frames in `ran`, and store the data in `record`.

        If a row's episode ends earlier, its number in `ran` is reduced to the frames simulated.
        """
        count, length = actions.shape[:2]
        record.bytes[:count, 0, : self._physics.nbytes] = source[
            :, HEADER_NBYTES : HEADER_NBYTES + self._physics.nbytes
        ]
        record.numbers[:count, 0, self.places["ctrl"][0]] = actions[:, 0]
        robot, cursor, parts = self._robot, rows.cursor, self._parts
        model, data, substeps = robot.simulation()
        ctrl, advance, refresh = data.ctrl, robot.advance, robot.refresh
        write, read = mujoco.mj_setState, mujoco.mj_getState
        derive = mujoco.mj_rnePostConstraint if robot.contact_forces else None
        index = block.start
        if length == 1:
            for (state, _), (after, everything) in record.views(count)[:count]:
                cursor[0] = index
                write(model, data, state, INTEGRATION)
                if refresh is not None:
                    refresh(model, data)
                advance(model, data, substeps)
                if derive is not None:
                    derive(model, data)
                read(model, data, after, INTEGRATION)
                for view, place in parts:
                    everything[place] = view
                index += 1
            return
        controls = actions.astype(np.float64)
        for views, controls_of_row, frames in zip(
            record.views(count), controls, ran.tolist(), strict=False
        ):
            cursor[0] = index
            write(model, data, views[0][0], INTEGRATION)
            if refresh is not None:
                refresh(model, data)
            for frame in range(frames):
                if frame:
                    if robot.over():
                        ran[index - block.start] = frame
                        break
                    ctrl[:] = controls_of_row[frame]
                advance(model, data, substeps)
                if derive is not None:
                    derive(model, data)
                after, everything = views[frame + 1]
                read(model, data, after, INTEGRATION)
                for view, place in parts:
                    everything[place] = view
            index += 1

    def _record(self, frames: int) -> Record:
        record = self._records.get(frames)
        if record is None:
            while len(self._records) >= _KEPT_RECORDS:
                del self._records[next(iter(self._records))]
            capacity = max(1, _FRAMES_AT_ONCE // frames)
            record = Record(capacity, frames, self._physics.state_nbytes, self._nbytes)
            self._records[frames] = record
        return record

    # Results

    def _tell_frame(
        self,
        rows: Rows,
        block: slice,
        numbers: NDArray[np.float64],
        rewards: NDArray[Any],
        ended: NDArray[np.bool_] | bool,
        infos: dict[str, Any],
        elapsed: NDArray[np.int64],
    ) -> None:
        """Write the results of one frame per row, like `_tell` but with fewer operations."""
        lead = (block, 0) if rows.inputs.horizon else (block,)
        rows.n_step[block] = 1
        # Adding 0 turns -0.0 into 0.0, as sums that begin at 0 do.
        np.add(rewards[:, 0], 0.0, out=rows.rewards[lead])
        rows.terminateds[lead] = ended if isinstance(ended, bool) else ended[:, 0]
        rows.truncateds[lead] = self._late(elapsed + 1)
        if rows.observations is not None:
            self._observe(numbers[:, 1], rows.observations[lead])
        for name, column in rows.columns.items():
            column[block] = infos[name][:, 0]

    def _tell(
        self,
        rows: Rows,
        block: slice,
        numbers: NDArray[np.float64],
        rewards: NDArray[Any],
        infos: dict[str, Any],
        flags: tuple[Any, Any],
        ran: NDArray[np.int64],
        held: int,
    ) -> None:
        """Write the results of each row's 1 or T actions, each held for up to `held` frames."""
        count, horizon = len(ran), max(1, rows.inputs.horizon)
        paid, seen = rows.rewards[block], rows.observations
        rows.n_step[block] = ran
        going = np.arange(rewards.shape[1]) < ran[:, None]
        shape = (count * horizon, held)
        paid[...] = _summed(rewards.reshape(shape), going.reshape(shape)).reshape(paid.shape)
        reached = np.arange(horizon) >= ((ran - 1) // held)[:, None]
        for column, flag in zip((rows.terminateds, rows.truncateds), flags, strict=True):
            shown = reached & np.broadcast_to(flag, count)[:, None]
            column[block] = shown.reshape(paid.shape)
        if seen is not None:
            ends = np.minimum(held * np.arange(1, horizon + 1), ran[:, None])
            out = seen[block].reshape(count, horizon, -1)
            self._observe(numbers[np.arange(count)[:, None], ends], out)
        for name, column in rows.columns.items():
            column[block] = infos[name][np.arange(count), ran - 1]

    def _observe(self, numbers: NDArray[np.float64], out: NDArray[Any]) -> None:
        self._robot.observe(lambda name: look_in(numbers, self.places, name), out)

    def _late(self, elapsed: NDArray[np.int64]) -> Any:
        """Return which rows have reached the time limit."""
        return False if self._counter is None else elapsed >= self._limit()

    # Rows before and after the simulation

    def _elapsed(self, source: Row) -> NDArray[np.int64]:
        if self._counter is None:
            return np.zeros(1, np.int64)
        return source.view(np.int64)[:, self._counter].copy()

    def _store(
        self,
        rows: Rows,
        block: slice,
        source: Row,
        record: NDArray[np.uint8],
        ran: NDArray[np.int64],
        elapsed: NDArray[np.int64],
    ) -> None:
        """Write the next states.

        The physics, the step counts and, if there are seeds, the random generators are new. The
        rest of each row is copied from `source`.
        """
        if rows.next_states is None:
            return
        fresh, end = rows.next_states[block], HEADER_NBYTES + self._physics.nbytes
        last = record[:, 1] if record.shape[1] == 2 else _at(record, ran)
        fresh[:, HEADER_NBYTES:end] = last[:, : self._physics.nbytes]
        fresh[:, :HEADER_NBYTES] = source[:, :HEADER_NBYTES]
        fresh[:, end:] = source[:, end:]
        if rows.inputs.seeds is not None:
            for row, seed in zip(fresh, rows.inputs.seeds[block].tolist(), strict=True):
                self._reseed(row[HEADER_NBYTES:], seed)
        if self._counter is not None:
            fresh.view(np.int64)[:, self._counter] = elapsed + ran


def _at(values: NDArray[Any], index: NDArray[np.int64]) -> NDArray[Any]:
    return values[np.arange(len(values)), index]


def _summed(rewards: NDArray[Any], going: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the sum of each row of `rewards` where `going` is true, added up in frame order."""
    total = np.zeros(len(rewards))
    for frame in range(rewards.shape[1]):
        total += np.where(going[:, frame], rewards[:, frame], 0.0)
    return total
