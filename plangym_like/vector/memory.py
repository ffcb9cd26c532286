"""Memory that several processes share: trees of arrays, and how lanes use them.

`SharedArrays` is any tree of arrays or tensors in shared memory. `LaneArrays` are those of lanes:
the actions and results of one step. `LaneChannel` requests a step from another process through this
memory, and returns the reply.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.processes.shared_memory import WRITES_IN_ORDER, SharedBlock, as_bytes, attach
from plangym_like.vector.tree import (
    Leaf,
    has_objects,
    tree_leaves,
    tree_map,
    with_axes,
)

# Each array begins at a new cache line.
_ALIGNMENT = 64
# For each lane: the words of a `LaneChannel`, and the bytes of its replies. Longer replies are sent
# in messages.
NUM_WORDS, REPLY_NBYTES = 16, 4096
# The words that the caller writes and those that the worker writes are in different cache lines.
_RUNG, _METHOD, _ACTIONS = range(3)
_DONE, _WATCHING, _NBYTES = range(8, 11)
_METHODS = ("step", "step_next", "step_same")
_FIELDS = ("actions", "wide_actions")

# A function that returns the bytes of a leaf as an array or tensor over the same memory.
Over = Callable[[NDArray[np.uint8], Leaf], Any]


def array_over(content: NDArray[np.uint8], leaf: Leaf) -> NDArray[Any]:
    """Return an array of `leaf`'s shape and dtype over the memory of `content`."""
    array: NDArray[Any] = content.view(leaf.dtype).reshape(leaf.shape)
    return array


class SharedArrays:
    """Zero-filled arrays in one block of anonymous shared memory.

    To attach to them, another process calls `attach_arrays` with a copy of the descriptor, and with
    the layout. The memory is freed when no process uses it any more.

    Parameters
    ----------
    layout : tree of Leaf
        The shapes include all axes; no leaf has the dtype ``object``.
    over : callable
        Makes an array or tensor over some bytes; by default, a NumPy array.

    Attributes
    ----------
    layout : tree of Leaf
    arrays : tree of array

    Raises
    ------
    MemoryError
        There is not enough memory.
    """

    def __init__(self, layout: Any, over: Over = array_over) -> None:
        self.layout = layout
        self._block = SharedBlock(sum(map(_padded_nbytes, tree_leaves(layout))))
        self.arrays = _lay_out(as_bytes(self._block.memory), layout, over)

    @property
    def fd(self) -> int:
        """The file descriptor of the memory."""
        return self._block.fd

    def close(self) -> None:
        """Close the descriptor; the memory remains as long as the arrays exist."""
        self._block.close()


def attach_arrays(fd: int, layout: Any, over: Over = array_over) -> Any:
    """Return the arrays of the `SharedArrays` with descriptor `fd`, and close `fd`."""
    return _lay_out(attach(fd), layout, over)


def nbytes_of(leaf: Leaf) -> int:
    """Return the size of one array or tensor in bytes."""
    nbytes: int = math.prod(leaf.shape) * leaf.dtype.itemsize
    return nbytes


def _padded_nbytes(leaf: Leaf) -> int:
    return -(-nbytes_of(leaf) // _ALIGNMENT) * _ALIGNMENT


def _lay_out(memory: NDArray[np.uint8], layout: Any, over: Over) -> Any:
    place = 0

    def leaf_over(leaf: Leaf) -> Any:
        nonlocal place
        begin, place = place, place + _padded_nbytes(leaf)
        return over(memory[begin : begin + nbytes_of(leaf)], leaf)

    return tree_map(leaf_over, layout)


# Lanes


class LaneArrays(NamedTuple):
    """Arrays with one row for each lane, either of all lanes or of the lanes of one process.

    Attributes
    ----------
    actions, observations : tree of array or None
        ``None`` if they have leaves of dtype ``object``, which are sent in messages.
    wide_actions : tree of array or None
        For actions that are given as float64 where their space is float32.
    rewards : array float64
    terminated, truncated : array bool
    ended : array bool
        Which lanes `Lanes.step_next` resets.
    words, replies : array int64, array uint8
        The memory of `LaneChannel`s, one for each process.
    """

    actions: Any
    wide_actions: Any
    observations: Any
    rewards: Any
    terminated: Any
    truncated: Any
    ended: Any
    words: Any
    replies: Any


def lane_layout(actions: Any, observations: Any, num_lanes: int) -> LaneArrays:
    """Return the layout of the shared memory of lanes, from the layouts of one lane's trees."""
    number, flag = Leaf((), np.dtype(np.float64)), Leaf((), np.dtype(np.bool_))

    def widened(leaf: Leaf) -> Leaf:
        return Leaf(leaf.shape, number.dtype) if leaf.dtype == np.float32 else leaf

    layout = LaneArrays(
        None if has_objects(actions) else actions,
        None if has_objects(actions) else tree_map(widened, actions),
        None if has_objects(observations) else observations,
        *(number, flag, flag, flag),
        Leaf((NUM_WORDS,), np.dtype(np.int64)),
        Leaf((REPLY_NBYTES,), np.dtype(np.uint8)),
    )
    with_lanes: LaneArrays = with_axes(layout, (num_lanes,))
    return with_lanes


class LaneChannel:
    """Requests steps from one process, and carries the replies, through shared memory.

    Sending and receiving messages takes a considerable part of the time of short steps. So while a
    worker polls for its next message, it also polls its channel. All arguments of the step must be
    in shared memory.

    Parameters
    ----------
    arrays : LaneArrays
        The arrays of the n lanes of the process, zero-filled at first.
    """

    def __init__(self, arrays: LaneArrays) -> None:
        # Items of a memoryview are read and written several times as fast as those of an array.
        self._words: Any = arrays.words[0].data
        self._replies = arrays.replies.reshape(-1).data

    # For the caller

    def ring(self, method: str, actions: str = "actions") -> bool:
        """If the worker polls the channel, request a step; return whether a step was requested.

        `method` is that of a `Step`; `actions` is the field of `LaneArrays` that holds its actions.
        A worker that stops polling at this moment may not notice the request; then
        `HostedLanes.collect` runs the step.
        """
        words = self._words
        if not words[_WATCHING]:
            return False
        words[_METHOD], words[_ACTIONS] = _METHODS.index(method), _FIELDS.index(actions)
        words[_RUNG] += 1
        return True

    def is_done(self) -> bool:
        """Return whether the step is done, or has raised an error."""
        words = self._words
        done: bool = words[_DONE] == words[_RUNG]
        return done

    def reply(self) -> memoryview | None:
        """Return the pickled reply; ``None`` if the reply or error must be requested by message."""
        nbytes = self._words[_NBYTES]
        return self._replies[:nbytes] if nbytes else None

    # For the worker

    def begin(self) -> None:
        """Discard any request that was made to an earlier process of these lanes."""
        words = self._words
        words[_DONE], words[_WATCHING] = words[_RUNG], 0

    def has_rung(self, watching: bool) -> bool:
        """Return whether a step is requested; `watching` says if the worker continues to poll."""
        words = self._words
        words[_WATCHING] = watching and WRITES_IN_ORDER
        rung: bool = words[_RUNG] != words[_DONE]
        return rung

    def arguments(self) -> tuple[str, str]:
        """Return what was given to `ring`."""
        return _METHODS[self._words[_METHOD]], _FIELDS[self._words[_ACTIONS]]

    def answer(self, reply: bytes | None) -> None:
        """Mark the step as done; a `reply` of ``None`` means that the step raised an error."""
        words, nbytes = self._words, len(reply or b"")
        if nbytes > len(self._replies):
            nbytes = 0
        elif reply:
            self._replies[:nbytes] = reply
        words[_NBYTES] = nbytes
        words[_DONE] = words[_RUNG]
