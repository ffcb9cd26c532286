"""`ClassicBlocks`: steps blocks of rows of one classic control environment."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from plangym_like.batch.arrays import Rows, given_states
from plangym_like.batch.simulator import Outcome
from plangym_like.envs.block_stepper import BlockStepper, Outcomes, put_generators
from plangym_like.envs.classic_dynamics.columns import Columns
from plangym_like.envs.classic_dynamics.dynamics import Dynamics
from plangym_like.envs.fast_form import NotVectorisableError
from plangym_like.states.rows import HEADER_NBYTES, Row

_COUNT = struct.Struct("<q")


def packing_of(dynamics: Dynamics | type[Dynamics]) -> struct.Struct:
    """Return the `struct.Struct` of the physical state, hidden attribute and flags in a payload."""
    hidden = dynamics.no_hidden.dtype
    flags = "i" if hidden.itemsize == 4 else "q"
    return struct.Struct(f"={len(dynamics.order)}d{hidden.char}{flags}")


class ClassicBlocks(BlockStepper[Columns]):
    """Steps blocks of rows of one environment, with its current constants.

    Parameters
    ----------
    dynamics : Dynamics
    frameskip : int
    elapsed_at : int
        The offset of the time limit's step count in a payload.
    time_limit : gymnasium.wrappers.TimeLimit, optional
        The time limit, if there is one.
    """

    # The columns of this many rows fit into a core's own cache.
    most = 8192

    def __init__(
        self,
        dynamics: Dynamics,
        frameskip: int,
        elapsed_at: int,
        time_limit: TimeLimit[Any, Any] | None,
    ) -> None:
        super().__init__(frameskip)
        self._dynamics, self._time_limit = dynamics, time_limit
        self._packing = packing_of(dynamics)
        begin, size = HEADER_NBYTES // 8, len(dynamics.order)
        self._places = slice(begin, begin + size)
        # The numbers of one state are copied together, which is faster than one by one.
        self._bytes = slice(8 * begin, 8 * (begin + size))
        self._whole = np.dtype((np.void, 8 * size))
        width, place = dynamics.no_hidden.itemsize, 8 * (begin + size)
        self._hidden_at = place // width
        self._flags = np.dtype(f"i{width}")
        self._generator_at = place + 2 * width
        self._elapsed_at = (HEADER_NBYTES + elapsed_at) // 8
        self._x, self._states = np.empty((size, 0)), np.empty((0, size))
        # Whether `_states` holds the same numbers as the columns.
        self._is_turned = False

    def step_one(self, row: Row, action: Any, dt: int) -> tuple[Row, Outcome] | None:
        if dt * self._frameskip != 1:
            return None
        memory = row.data
        *x, hidden, flags = self._packing.unpack_from(memory, HEADER_NBYTES)
        found = None if flags else self._dynamics.advance_one(x, hidden, action)
        if found is None:
            return None
        reached, hidden, reward, terminated = found
        fresh = row.copy()
        self._packing.pack_into(fresh.data, HEADER_NBYTES, *reached, hidden, 0)
        truncated = False
        if self._time_limit is not None:
            (elapsed,) = _COUNT.unpack_from(memory, 8 * self._elapsed_at)
            _COUNT.pack_into(fresh.data, 8 * self._elapsed_at, elapsed + 1)
            truncated = elapsed + 1 >= self._time_limit._max_episode_steps
        return fresh, (np.array(reached, np.float32), reward, terminated, truncated, {}, 1)

    def load(self, rows: Rows, block: slice) -> Columns:
        dynamics, count = self._dynamics, block.stop - block.start
        source, size = given_states(rows.inputs, block), len(dynamics.order)
        if self._x.shape[1] != count:
            # A single statement, so that a Ctrl-C cannot leave only some of them assigned.
            self._x, self._states = np.empty((size, count)), np.empty((count, size))
        dynamics.load(source.view(np.float64)[:, self._places], self._x)
        flags = source.view(self._flags)[:, self._hidden_at + 1]
        hidden = source.view(dynamics.no_hidden.dtype)[:, self._hidden_at]
        single = elapsed = None
        if dynamics.takes_single:
            single = _copies((flags & 1) != 0, count)
        elif np.count_nonzero(flags & 1 if dynamics.hidden_kinds else flags):
            raise NotVectorisableError
        if self._time_limit is not None:
            elapsed = _copies(source.view(np.int64)[:, self._elapsed_at], count)
        return Columns(self._x, _copies(hidden, count), single, elapsed)

    def frame(self, states: Columns, actions: NDArray[Any], out: Outcomes) -> None:
        self._is_turned = False
        self._dynamics.advance(states, actions, out.rewards, out.terminated)
        if states.single is not None:
            states.single.fill(self._dynamics.leaves_single)
        if self._time_limit is None or states.elapsed is None:
            out.truncated.fill(False)
        else:
            states.elapsed += 1
            limit = self._time_limit._max_episode_steps
            np.greater_equal(states.elapsed, limit, out=out.truncated)

    def observe(self, states: Columns, out: NDArray[Any]) -> None:
        self._turn(states)
        self._dynamics.observe(states.x, self._states, out)

    def store(self, states: Columns, rows: Rows, block: slice) -> None:
        dynamics = self._dynamics
        assert rows.next_states is not None
        fresh = rows.next_states[block]
        fresh[:] = given_states(rows.inputs, block)
        if rows.inputs.seeds is not None:
            put_generators(fresh, self._generator_at, rows.inputs.seeds[block])
        self._turn(states)
        fresh[:, self._bytes].view(self._whole)[:, 0] = self._states.view(self._whole)[:, 0]
        fresh.view(states.hidden.dtype)[:, self._hidden_at] = states.hidden
        if states.single is not None:
            fresh.view(self._flags)[:, self._hidden_at + 1] = states.single
        elif dynamics.hidden_kinds:
            fresh.view(self._flags)[:, self._hidden_at + 1] = dynamics.hidden_kind << 1
        if states.elapsed is not None:
            fresh.view(np.int64)[:, self._elapsed_at] = states.elapsed

    def _turn(self, states: Columns) -> None:
        if not self._is_turned:
            self._dynamics.store(states.x, self._states)
            self._is_turned = True


def _copies(column: NDArray[Any], count: int) -> NDArray[Any]:
    return column.copy() if len(column) == count else column.repeat(count)
