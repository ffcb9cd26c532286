"""A range of a batch on its way to another machine and back: what is sent, what returns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like import spaces
from plangym_like.batches import Inputs, Layout, Rows
from plangym_like.cluster.near_memory import NearOrder
from plangym_like.errors import PoisonInputError, StepTimeoutError
from plangym_like.processes.remote_errors import is_remote, pack_exception
from plangym_like.states import HEADER_NBYTES, Row, StateFormat

# Below this, a state that rows share is not worth looking for.
_SHARED_NBYTES = 256
_ROWS, _NUMBER = re.compile(r"rows? \d+(, \d+)*"), re.compile(r"\d+")
_NOTE = re.compile(r"\(in row (\d+) of a batch of \d+\)")


@dataclass(eq=False, slots=True)
class Chunk:
    """Rows `start` to `stop` of one batch, as the side that deals them out sees them.

    ``suspect``: they were in hand when an actor died, so they go to one that has nothing else.
    ``deaths`` counts those of actors that had this single row alone, ``copies`` the actors that
    have it now, ``sent_at`` is when the last of them got it.
    """

    start: int
    stop: int
    suspect: bool = False
    deaths: int = 0
    copies: int = 0
    done: bool = False
    sent_at: float = 0.0

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def range(self) -> tuple[int, int]:
        """Its first row, and the one behind its last."""
        return self.start, self.stop


@dataclass(slots=True)
class Order:
    """What an actor is told of a chunk, besides the states.

    ``which[i]`` is the state that row i starts from, ``None`` where row i has state i or all rows
    have the only one. ``masked``: rows that fail are told apart. With ``near``, all arrays lie in
    memory that both sides share.
    """

    count: int
    horizon: int
    actions: Any
    which: NDArray[np.int32] | None
    dt: int | NDArray[np.int64]
    seeds: NDArray[np.uint64] | None
    wants_states: bool
    wants_observations: bool
    masked: bool = False
    near: NearOrder | None = None

    def inputs(self, states: Row) -> Inputs:
        """Return what a batch needs, given the states that were sent."""
        rows = states if self.which is None else states[self.which]
        return Inputs(self.count, self.horizon, self.actions, rows, self.dt, self.seeds)


@dataclass(slots=True)
class Harvest:
    """What stepping a chunk gave: the arrays of its `Rows`, or the error that it ended with.

    ``observations`` are the leaves of the nest, or a list of objects; ``infos`` the plain infos by
    row; ``failed`` what masked rows raised; ``counts`` what happened to the actor's own workers
    meanwhile, ``phases`` what a `PhaseClock` has counted. ``verdicts`` are the rows whose errors
    the actor's pool made, -1 for ``error``: an error of the same type that a row raised itself
    names rows of another batch.
    """

    seconds: float
    counts: dict[str, int]
    error: bytes | None = None
    states: Row | None = None
    observations: list[Any] | None = None
    outcomes: Sequence[NDArray[Any]] = ()
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)
    infos: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    failed: dict[int, bytes] = field(default_factory=dict)
    verdicts: set[int] = field(default_factory=set)
    phases: Sequence[float] = ()

    def take(self, layout: Layout, order: Order, result: Any) -> None:
        """Take over the `result` of a batch."""
        self.outcomes = [result.rewards, result.terminateds, result.truncateds]
        self.states = result.states if order.wants_states else None
        found = result.observations if order.horizon else result.obs
        if not order.wants_observations:
            found = None
        elif layout.obs_leaves is not None:
            found = spaces.flatten(layout.observation_space, found)
        elif order.horizon:
            found = [obs for row in found for obs in row]
        self.observations = found
        infos = result.infos
        self.failed = {
            index: pack_exception(error, skip_frames=1) for index, error in infos.errors.items()
        }
        self.verdicts = {index for index, error in infos.errors.items() if not is_remote(error)}
        self.outcomes = [*self.outcomes, infos["n_step"]]
        if not order.horizon:
            self.columns = {name: infos[name] for name in layout.columns}
            if layout.plain_infos:
                told = {*layout.columns, "n_step", "dt"}
                for index, row in enumerate(infos):
                    if plain := {key: row[key] for key in row if key not in told}:
                        self.infos[index] = plain

    def take_infos(self, layout: Layout, order: Order, result: Any) -> None:
        """Take over of the `result` of a batch only what does not lie in shared memory."""
        self.take(layout, order, result)
        self.states, self.outcomes, self.columns = None, (), {}
        if layout.obs_leaves is not None:
            self.observations = None

    def take_rows(self, layout: Layout, rows: Rows) -> None:
        """Take over the arrays of `rows`, which lie in shared memory."""
        self.states, self.columns = rows.next_states, rows.columns
        self.outcomes = [rows.rewards, rows.terminateds, rows.truncateds, rows.n_step]
        if layout.obs_leaves is not None and rows.observations is not None:
            self.observations = spaces.flatten(layout.observation_space, rows.observations)

    def put(self, layout: Layout, rows: Rows, start: int) -> int:
        """Write everything where it belongs in `rows`, and return how many bytes that was."""
        moved = 0
        filled = [rows.rewards, rows.terminateds, rows.truncateds, rows.n_step]
        pairs = list(zip(filled, self.outcomes, strict=False))
        pairs += [(rows.columns[name], column) for name, column in self.columns.items()]
        if self.states is not None and rows.next_states is not None:
            pairs.append((rows.next_states, self.states))
        if self.observations is not None:
            if layout.obs_leaves is None:
                span = max(1, rows.inputs.horizon)
                first = start * span
                rows.observations[first : first + len(self.observations)] = self.observations
            else:
                leaves = spaces.flatten(layout.observation_space, rows.observations)
                pairs += zip(leaves, self.observations, strict=True)
        for whole, part in pairs:
            whole[start : start + len(part)] = part
            moved += part.nbytes
        if rows.infos is not None:
            rows.infos.update({start + index: row for index, row in self.infos.items()})
        return moved


def order_of(
    inputs: Inputs,
    which: NDArray[Any] | None,
    start: int,
    stop: int,
    *,
    states: bool,
    obs: bool,
    masked: bool = False,
) -> Order:
    """Return the order for rows `start` to `stop`; `which` are their states among those sent."""
    return Order(
        stop - start,
        inputs.horizon,
        inputs.actions[start:stop],
        None if which is None else which.astype(np.int32),
        inputs.dt if isinstance(inputs.dt, int) else inputs.dt[start:stop],
        None if inputs.seeds is None else inputs.seeds[start:stop],
        states,
        obs,
        masked,
    )


def order_nbytes(order: Order) -> int:
    """Return the bytes of the arrays that `order` holds."""
    parts = (order.actions, order.which, order.dt, order.seeds)
    return sum(part.nbytes for part in parts if isinstance(part, np.ndarray))


def distinct(state_format: StateFormat, rows: Row) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return which of `rows` are all the different ones, and which of those each row is.

    ``None`` where sending them once would save less than a quarter. Rows are told apart by a
    64-bit sum and then compared byte by byte, so this never confuses two.
    """
    if len(rows) < 2 or rows.shape[1] < _SHARED_NBYTES:
        return None
    words = rows.view(np.uint64)
    if state_format.checksum:
        sums = words[:, HEADER_NBYTES // 8 - 1]
    else:
        sums = words @ np.arange(1, 2 * words.shape[1], 2, dtype=np.uint64)
    _, first, which = np.unique(sums, return_index=True, return_inverse=True)
    if len(first) > 0.75 * len(rows) or not np.array_equal(words[first][which], words):
        return None
    return first, which


def moved(error: BaseException, start: int, count: int, *, of_row: bool = False) -> BaseException:
    """Return `error`, which counts rows from a chunk's start, counting from the batch's instead.

    `of_row`: the row raised it, so that what it says is about something else.
    """
    cause, notes = error.__cause__, getattr(error, "__notes__", ())
    if of_row:
        pass
    elif isinstance(error, PoisonInputError):
        error = PoisonInputError(_renamed(error, start), error.index + start, error.exitcode)
    elif isinstance(error, StepTimeoutError):
        error = StepTimeoutError(_renamed(error, start), [row + start for row in error.indices])
    error.__cause__ = cause
    if notes:
        error.__notes__ = [
            _NOTE.sub(lambda at: f"(in row {int(at[1]) + start} of a batch of {count})", note)
            for note in notes
        ]
    return error


def _renamed(error: BaseException, start: int) -> str:
    """Return the message of `error`, which begins with the rows that it is about."""
    rows = _ROWS.match(str(error))
    if rows is None:
        return str(error)
    return _NUMBER.sub(lambda at: str(int(at[0]) + start), rows[0]) + str(error)[rows.end() :]
