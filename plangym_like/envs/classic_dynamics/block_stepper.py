"""A block of state rows, through the array form of their environment and back into rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from plangym_like.batches import Inputs, Rows
from plangym_like.envs.classic_dynamics.columns import Columns, Survivors
from plangym_like.envs.classic_dynamics.dynamics import Dynamics, NotVectorisableError
from plangym_like.phases import OBSERVE, RESTORE, SAVE, STEP
from plangym_like.random_state import GENERATOR_NBYTES, save_generator, seeded_generator
from plangym_like.states import HEADER_NBYTES, Row


class BlockStepper:
    """Steps blocks of rows of one configuration.

    Two lanes may step the same rows at once, so nothing is read from where results are written.

    Parameters
    ----------
    form : Dynamics
    base_nbytes : int
        Bytes of payload before the time limit's counter.
    time_limit : gymnasium.wrappers.TimeLimit, optional
        Where one is kept.
    frameskip : int
    """

    def __init__(
        self,
        form: Dynamics,
        base_nbytes: int,
        time_limit: TimeLimit[Any, Any] | None,
        frameskip: int,
    ) -> None:
        self._form = form
        self._time_limit = time_limit
        self._frameskip = frameskip
        begin, size = HEADER_NBYTES // 8, len(form.order)
        self._places = slice(begin, begin + size)
        # The numbers of one state, which are moved as a whole: sooner than one by one.
        self._bytes = slice(8 * begin, 8 * (begin + size))
        self._whole = np.dtype((np.void, 8 * size))
        width, place = form.no_hidden.itemsize, 8 * (begin + size)
        self._hidden_at = place // width
        self._flags = np.dtype(f"i{width}")
        self._generator_at = place + 2 * width
        self._elapsed_at = (HEADER_NBYTES + base_nbytes) // 8
        self._x, self._states = np.empty((size, 0)), np.empty((0, size))
        self._outcomes = _empty_outcomes(0)

    def step(self, rows: Rows, first: int, last: int) -> None:
        """Step rows `first` to `last`; what they were asked and what comes of it are in `rows`.

        Raises
        ------
        NotVectorisableError
            Some row needs the environment itself; any results of these rows may be wrong.
        """
        block, clock = slice(first, last), rows.clock
        if clock is not None:
            clock.start()
        columns = self._load(rows, block)
        if clock is not None:
            clock.lap(RESTORE)
        outcomes = self._outcomes
        actions, frames = rows.inputs.actions[block], self._frames(rows.inputs, block)
        self._hold(columns, actions, frames, *outcomes)
        if clock is not None:
            clock.lap(STEP)
        rows.rewards[block], rows.terminateds[block] = outcomes[:2]
        rows.truncateds[block], rows.n_step[block] = outcomes[2:]
        self._form.store(columns.x, self._states)
        if rows.observations is not None:
            self._form.observe(columns.x, self._states, rows.observations[block])
        if clock is not None:
            clock.lap(OBSERVE)
        self._store(columns, rows, block)
        if clock is not None:
            clock.lap(SAVE)

    def rollout(self, rows: Rows, first: int, last: int) -> None:
        """Step rows `first` to `last` through all their T actions; raises what `step` raises."""
        block, count, clock = slice(first, last), last - first, rows.clock
        if clock is not None:
            clock.start()
        columns = self._load(rows, block)
        if clock is not None:
            clock.lap(RESTORE)
        frames = self._frames(rows.inputs, block)
        going = Survivors(columns)
        terminated, truncated = np.zeros((2, count), bool)
        n_step = np.zeros(count, np.int64)
        for time in range(rows.inputs.horizon):
            rewards = np.zeros(count)
            if len(going):
                at, length = going.rows, len(going)
                reward, ran = np.empty(length), np.empty(length, np.int64)
                ended, late = np.empty((2, length), bool)
                actions = np.ascontiguousarray(rows.inputs.actions[block, time][at])
                wanted = frames if isinstance(frames, int) else frames[at]
                self._hold(going.part, actions, wanted, reward, ended, late, ran)
                rewards[at], terminated[at], truncated[at] = reward, ended, late
                n_step[at] += ran
                going.keep(~(ended | late))
            if clock is not None:
                clock.lap(STEP)
            rows.rewards[block, time] = rewards
            rows.terminateds[block, time] = terminated
            rows.truncateds[block, time] = truncated
            if rows.observations is not None:
                going.write_back()
                self._form.store(columns.x, self._states)
                self._form.observe(columns.x, self._states, rows.observations[block, time])
            if clock is not None:
                clock.lap(OBSERVE)
        going.write_back()
        self._form.store(columns.x, self._states)
        rows.n_step[block] = n_step
        self._store(columns, rows, block)
        if clock is not None:
            clock.lap(SAVE)

    def _hold(
        self,
        columns: Columns,
        actions: NDArray[Any],
        frames: int | NDArray[np.int64],
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        n_step: NDArray[np.int64],
    ) -> None:
        """Step each row for its `frames`, or until it ends; fill the results, all ``(N,)``."""
        if isinstance(frames, int) and frames == 1:
            self._frame(columns, actions, rewards, terminated, truncated)
            n_step.fill(1)
            return
        for array in (rewards, terminated, truncated, n_step):
            array.fill(0)
        going = Survivors(columns)
        frame = 0
        while len(going):
            at, reward = going.rows, np.empty(len(going))
            ended, late = np.empty((2, len(going)), bool)
            self._frame(going.part, actions[at], reward, ended, late)
            rewards[at] += reward
            terminated[at], truncated[at] = ended, late
            n_step[at] += 1
            frame += 1
            wanted = frames if isinstance(frames, int) else frames[at]
            going.keep(~(ended | late) & (wanted > frame))
        going.write_back()

    def _frame(
        self,
        columns: Columns,
        actions: NDArray[Any],
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> None:
        self._form.advance(columns, actions, rewards, terminated)
        if columns.single is not None:
            columns.single.fill(self._form.leaves_single)
        if self._time_limit is None or columns.elapsed is None:
            truncated.fill(False)
        else:
            columns.elapsed += 1
            limit = self._time_limit._max_episode_steps
            np.greater_equal(columns.elapsed, limit, out=truncated)

    def _frames(self, inputs: Inputs, block: slice) -> int | NDArray[np.int64]:
        if isinstance(inputs.dt, int):
            return inputs.dt * self._frameskip
        return inputs.dt[block] * self._frameskip

    def _load(self, rows: Rows, block: slice) -> Columns:
        """Copy the states of `block` into columns."""
        form, count = self._form, block.stop - block.start
        source = _source(rows, block)
        if self._x.shape[1] != count:
            # All of them or none, should a Ctrl-C come: it never comes between two assignments.
            x, states = np.empty((len(form.order), count)), np.empty((count, len(form.order)))
            self._x, self._states, self._outcomes = x, states, _empty_outcomes(count)
        form.load(source.view(np.float64)[:, self._places], self._x)
        flags = source.view(self._flags)[:, self._hidden_at + 1]
        hidden = source.view(form.no_hidden.dtype)[:, self._hidden_at]
        single = elapsed = None
        if form.takes_single:
            single = _copies((flags & 1) != 0, count)
        elif np.count_nonzero(flags & 1 if form.hidden_kinds else flags):
            raise NotVectorisableError
        if self._time_limit is not None:
            elapsed = _copies(source.view(np.int64)[:, self._elapsed_at], count)
        return Columns(self._x, _copies(hidden, count), single, elapsed)

    def _store(self, columns: Columns, rows: Rows, block: slice) -> None:
        """Write the next states: what `columns` hold, and all else as it was."""
        if rows.next_states is None:
            return
        fresh = rows.next_states[block]
        fresh[:] = _source(rows, block)
        if rows.inputs.seeds is not None:
            self._reseed(fresh, rows.inputs.seeds[block])
        fresh[:, self._bytes].view(self._whole)[:, 0] = self._states.view(self._whole)[:, 0]
        fresh.view(columns.hidden.dtype)[:, self._hidden_at] = columns.hidden
        if columns.single is not None:
            fresh.view(self._flags)[:, self._hidden_at + 1] = columns.single
        elif self._form.hidden_kinds:
            fresh.view(self._flags)[:, self._hidden_at + 1] = self._form.hidden_kind << 1
        if columns.elapsed is not None:
            fresh.view(np.int64)[:, self._elapsed_at] = columns.elapsed

    def _reseed(self, fresh: Row, seeds: NDArray[np.uint64]) -> None:
        begin = self._generator_at
        for row, seed in zip(fresh, seeds.tolist(), strict=True):
            memory = save_generator(seeded_generator(seed))
            row[begin : begin + GENERATOR_NBYTES] = np.frombuffer(memory, np.uint8)


def _source(rows: Rows, block: slice) -> Row:
    states = rows.inputs.states
    return states if len(states) == 1 else states[block]


def _copies(column: NDArray[Any], count: int) -> NDArray[Any]:
    return column.copy() if len(column) == count else column.repeat(count)


def _empty_outcomes(count: int) -> tuple[NDArray[Any], ...]:
    """Return room for rewards, both flags, and frames, each ``(count,)``."""
    return np.empty(count), np.empty(count, bool), np.empty(count, bool), np.empty(count, np.int64)
