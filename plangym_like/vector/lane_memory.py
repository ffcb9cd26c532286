"""`LaneMemory`: actions and results of all lanes, in memory that their processes share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from plangym_like.vector.bell import NUM_WORDS, REPLY_NBYTES, Bell
from plangym_like.vector.shared_arrays import SharedArrays, attach_arrays
from plangym_like.vector.shared_columns import COLUMNS_NBYTES, SharedColumns
from plangym_like.vector.tree import Leaf, has_objects, take, with_axes, zeros


class LaneArrays(NamedTuple):
    """Arrays with one row for each lane, either of all lanes or of the lanes of one process.

    Attributes
    ----------
    actions : tree of array or None
        ``None`` if actions are objects, which are sent in messages.
    observations : tree of array
        The arrays that the first call of `ProcessLanes.start` returns. They are in shared memory,
        to which workers write, if `LaneForm.shares_observations` is true.
    recent : (tree, tree)
        Two slots for the observations of the last calls. Calls write to them in turn, so that the
        observations of the previous call are intact if a process dies during a call.
    rewards : array float64
    terminated, truncated : array bool
    ended : array bool
        Which lanes `Lanes.step_next` resets.
    saved : (array uint8, array uint8) or (None, None)
        Two slots for saved state rows, if states are saved.
    words : array int64
        The memory of `Bell`s; the bell of a process uses the row of the first lane of the process.
    replies : array uint8
        The memory for the replies to requests through these bells.
    infos : array uint8
        The memory for `SharedColumns`.
    """

    actions: Any
    observations: Any
    recent: Any
    rewards: Any
    terminated: Any
    truncated: Any
    ended: Any
    saved: Any
    words: Any
    replies: Any
    infos: Any

    def part(self, start: int, stop: int) -> LaneArrays:
        """Return the rows of the lanes ``start:stop``."""
        rows: LaneArrays = take(self, slice(start, stop))
        return rows

    def bell(self) -> Bell:
        """Return the bell of the process that hosts the lanes of these rows."""
        return Bell(self.words[0], self.replies)

    def columns(self) -> SharedColumns:
        """Return the `SharedColumns` of these rows."""
        return SharedColumns(self.infos)


class LaneForm(NamedTuple):
    """The information that a process needs to attach to a `LaneMemory`.

    Attributes
    ----------
    actions, observations : tree of Leaf
        The layouts of one action and of one observation. Arrays are not shared if their layout has
        a leaf of dtype ``object``.
    num_lanes : int
    saved_nbytes : int
        The size of a state row in bytes; 0 if states are not saved.
    """

    actions: Any
    observations: Any
    num_lanes: int
    saved_nbytes: int

    @property
    def shares_observations(self) -> bool:
        """Whether observations are in shared memory; if not, they are sent in messages."""
        return not has_objects(self.observations)

    def layout(self) -> LaneArrays:
        """Return the layout of the shared memory."""
        number, flag = Leaf((), np.dtype(np.float64)), Leaf((), np.dtype(bool))
        observations = self.observations if self.shares_observations else None
        row = Leaf((self.saved_nbytes,), np.dtype(np.uint8)) if self.saved_nbytes else None
        layout = LaneArrays(
            None if has_objects(self.actions) else self.actions,
            observations,
            (observations, observations),
            *(number, flag, flag, flag),
            (row, row),
            Leaf((NUM_WORDS,), np.dtype(np.int64)),
            Leaf((REPLY_NBYTES,), np.dtype(np.uint8)),
            Leaf((COLUMNS_NBYTES,), np.dtype(np.uint8)),
        )
        with_lanes: LaneArrays = with_axes(layout, (self.num_lanes,))
        return with_lanes

    def attach(self, fd: int, start: int, stop: int) -> LaneArrays:
        """Return the rows ``start:stop`` of the memory with descriptor `fd`; close `fd`."""
        part = attach_arrays(fd, self.layout()).part(start, stop)
        return self.completed(part, stop - start)

    def completed(self, arrays: LaneArrays, num_lanes: int) -> LaneArrays:
        """Return `arrays`; if observations are not shared, add ordinary arrays for them."""
        if self.shares_observations:
            return arrays
        own = [zeros(self.observations, (num_lanes,)) for _ in range(3)]
        return arrays._replace(observations=own[0], recent=(own[1], own[2]))


class LaneMemory(SharedArrays):
    """The shared memory of all lanes.

    Parameters
    ----------
    form : LaneForm

    Attributes
    ----------
    arrays : LaneArrays
    shares_observations : bool
        See `LaneForm`; stored here, because every step reads it.

    Raises
    ------
    MemoryError
        There is not enough memory.
    """

    def __init__(self, form: LaneForm) -> None:
        super().__init__(form.layout())
        self.form = form
        self.shares_observations = form.shares_observations
        self.arrays: LaneArrays = form.completed(self.arrays, form.num_lanes)
