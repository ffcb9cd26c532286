"""`Chunk`: a range of a batch, as it is sent to an actor of a Ray cluster; and its result."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.batch.arrays import Inputs, Rows
from plangym_like.batch.layout import Layout
from plangym_like.cluster.ray_session import load
from plangym_like.errors import PoisonInputError, StepTimeoutError
from plangym_like.processes.remote_errors import is_remote, pack_exception
from plangym_like.results import RayStats
from plangym_like.states.rows import HEADER_NBYTES, Row, StateFormat

# Shorter states are sent as they are: searching for duplicates would cost more than it saves.
_SHARED_NBYTES = 256
# Shared states of fewer bytes travel with each chunk; larger ones are put into the object store,
# from which each node fetches them once (`benchmarks/constants.py`).
_PUT_NBYTES = 1 << 16
# All chunks share the states of the batch if at least this many rows start from each distinct state
# on average (`benchmarks/constants.py`).
_ROWS_PER_STATE = 4
_ROWS, _NUMBER = re.compile(r"rows? \d+(, \d+)*"), re.compile(r"\d+")
_NOTE = re.compile(r"\(in row (\d+) of a batch of \d+\)")


@dataclass(eq=False, slots=True)
class Chunk:
    """The rows ``start:stop`` of one batch, as the driver sees them.

    ``suspect`` is true if an actor died while it was stepping these rows; they are then sent to an
    actor that has no other rows. If the chunk is a single row, ``deaths`` is the number of actors
    that died while they had only this row. ``owner`` is the dispatcher that waits for an answer, or
    ``None``. ``sent_at`` is when the chunk was sent.
    """

    start: int
    stop: int
    suspect: bool = False
    deaths: int = 0
    owner: Any = None
    sent_at: float = 0.0

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(slots=True)
class ChunkRequest:
    """The request to step a chunk; the states are sent as a separate argument.

    ``inputs`` has no states. Row i starts from the sent state ``which[i]``. If ``which`` is
    ``None``, row i starts from the sent state i, or from the only state. If ``masked`` is true, all
    rows are stepped even if some fail.
    """

    inputs: Inputs
    which: NDArray[np.int32] | None
    wants_states: bool
    wants_observations: bool
    masked: bool

    def with_states(self, states: Row) -> Inputs:
        """Return the inputs with `states`, which were sent separately."""
        return replace(self.inputs, states=states if self.which is None else states[self.which])

    @property
    def nbytes(self) -> int:
        """The total size of its arrays in bytes."""
        inputs = self.inputs
        parts = (inputs.actions, inputs.dt, inputs.seeds, self.which)
        return sum(part.nbytes for part in parts if isinstance(part, np.ndarray))


@dataclass(slots=True)
class ChunkResult:
    """The result of stepping a chunk: the arrays of its `Rows`, or the error that it ended with.

    Stepping the rows took ``steps`` single steps in total, and ``seconds`` seconds.
    ``observations`` holds the leaves of the tree, or a list of objects. ``infos`` holds the plain
    infos by row, and ``failed`` the exceptions of masked rows. ``counts`` says by how much each
    counter of the actor's workers has increased. ``pool_errors`` holds the rows whose errors come
    from the actor's worker pool (-1 means ``error``); only the messages of these errors contain row
    numbers, which are counted within the chunk.
    """

    seconds: float = 0.0
    steps: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)
    error: bytes | None = None
    states: Row | None = None
    observations: list[Any] | None = None
    outcomes: Sequence[NDArray[Any]] = ()
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)
    infos: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    failed: dict[int, bytes] = field(default_factory=dict)
    pool_errors: set[int] = field(default_factory=set)

    def take(self, layout: Layout, request: ChunkRequest, result: Any) -> None:
        """Take the arrays and errors from `result`, the result of the batch in `request`."""
        infos, horizon = result.infos, request.inputs.horizon
        self.outcomes = result.rewards, result.terminateds, result.truncateds, infos["n_step"]
        self.states = result.states if request.wants_states else None
        if request.wants_observations:
            found = result.observations if horizon else result.obs
            if layout.obs_leaves is not None:
                self.observations = spaces.flatten(layout.observation_space, found)
            else:
                each = [spaces.take(found, index) for index in range(len(result.rewards))]
                if horizon:
                    each = [spaces.take(row, time) for row in each for time in range(horizon)]
                self.observations = each
        self.failed = {
            index: pack_exception(error, skip_frames=1) for index, error in infos.errors.items()
        }
        self.pool_errors = {index for index, error in infos.errors.items() if not is_remote(error)}
        if not horizon:
            self.columns = {name: infos[name] for name in layout.columns}
            if infos.has_objects:
                columns = {*layout.columns, "n_step", "dt"}
                for index, row in enumerate(infos):
                    if plain := {key: row[key] for key in row if key not in columns}:
                        self.infos[index] = plain

    def put(self, layout: Layout, rows: Rows, start: int) -> int:
        """Write the result into `rows` from row `start` on; return the number of array bytes."""
        whole = [rows.rewards, rows.terminateds, rows.truncateds, rows.n_step]
        pairs = list(zip(whole, self.outcomes, strict=True))
        pairs += [(rows.columns[name], column) for name, column in self.columns.items()]
        if self.states is not None and rows.next_states is not None:
            pairs.append((rows.next_states, self.states))
        if self.observations is not None:
            if layout.obs_leaves is None:
                first = start * max(1, rows.inputs.horizon)
                rows.observations[first : first + len(self.observations)] = self.observations
            else:
                leaves = spaces.flatten(layout.observation_space, rows.observations)
                pairs += zip(leaves, self.observations, strict=True)
        for array, part in pairs:
            array[start : start + len(part)] = part
        if rows.infos is not None:
            rows.infos.update({start + index: row for index, row in self.infos.items()})
        return sum(part.nbytes for _, part in pairs)


def distinct_states(
    state_format: StateFormat, states: Row
) -> tuple[NDArray[Any], NDArray[np.int32]] | None:
    """Find the distinct states; return the index and the inverse of `numpy.unique`.

    The first array holds the index of each distinct state, and the second array says for every
    state which distinct state it equals. Return ``None`` if the states are small, or if less than a
    quarter of them are duplicates. States are grouped by a 64-bit checksum and then compared byte
    by byte, so different states are never treated as equal.
    """
    if len(states) < 2 or states.shape[1] < _SHARED_NBYTES:
        return None
    words = states.view(np.uint64)
    if state_format.checksum:
        sums = words[:, HEADER_NBYTES // 8 - 1]
    else:
        sums = words @ np.arange(1, 2 * words.shape[1], 2, dtype=np.uint64)
    _, first, which = np.unique(sums, return_index=True, return_inverse=True)
    if len(first) > 0.75 * len(states) or not np.array_equal(words[first][which], words):
        return None
    return first, which.astype(np.int32)


def counted_from_batch(
    error: BaseException, start: int, count: int, *, of_row: bool = False
) -> BaseException:
    """Return `error` with row numbers counted from the start of the batch, not of the chunk.

    If `of_row` is true, the row itself raised the error, so its message is left unchanged.
    """
    cause, notes = error.__cause__, getattr(error, "__notes__", ())
    if not of_row:
        rows = _ROWS.match(message := str(error))
        if rows is not None:
            named = _NUMBER.sub(lambda at: str(int(at[0]) + start), rows[0])
            message = named + message[rows.end() :]
        if isinstance(error, PoisonInputError):
            error = PoisonInputError(message, error.index + start, error.exitcode)
        elif isinstance(error, StepTimeoutError):
            error = StepTimeoutError(message, [row + start for row in error.indices])
    error.__cause__ = cause
    if notes:
        error.__notes__ = [
            _NOTE.sub(lambda at: f"(in row {int(at[1]) + start} of a batch of {count})", note)
            for note in notes
        ]
    return error


class ChunkSender:
    """Makes the requests for chunks of `rows`, and counts the sent rows and bytes in `stats`.

    If `masked` is true, actors step all rows even if some fail.
    """

    def __init__(self, layout: Layout, rows: Rows, stats: RayStats, *, masked: bool) -> None:
        self._layout = layout
        self._rows = rows
        self._stats = stats
        self._masked = masked
        self._looked = False
        self._shared: Any = None
        self._which: NDArray[np.int32] | None = None

    def request(self, chunk: Chunk) -> tuple[ChunkRequest, Any]:
        """Return the request for `chunk`, and its states or a Ray reference to them."""
        rows, start, stop = self._rows, chunk.start, chunk.stop
        self._look_for_shared_states()
        which, states = self._which, self._shared
        if which is not None:
            which = which[start:stop]
        elif states is None:
            states = rows.inputs.states[start:stop]
            if (found := distinct_states(self._layout.format, states)) is not None:
                states, which = states[found[0]], found[1]
            self._stats.bytes_sent += states.nbytes
        request = ChunkRequest(
            _without_states(rows.inputs, start, stop),
            which,
            wants_states=rows.next_states is not None,
            wants_observations=rows.observations is not None,
            masked=self._masked,
        )
        self._stats.chunks += 1
        self._stats.rows_sent += len(chunk)
        self._stats.bytes_sent += request.nbytes
        return request, states

    def _look_for_shared_states(self) -> None:
        """Decide whether all chunks of the batch share its distinct states, each sent only once.

        They do not if mostly neighbouring rows start from the same state. Each chunk is then sent
        with the states of its own rows.
        """
        if self._looked:
            return
        self._looked = True
        states, count = self._rows.inputs.states, self._rows.inputs.count
        if len(states) > 1:
            found = distinct_states(self._layout.format, states)
            if found is None or len(found[0]) * _ROWS_PER_STATE > count:
                return
            first, which = found
            if len(np.unique(which[: max(1, count // _ROWS_PER_STATE)])) * 2 <= len(first):
                return
            states, self._which = states[first], which
        self._stats.bytes_sent += states.nbytes
        self._shared = load().put(states) if states.nbytes >= _PUT_NBYTES else states


def _without_states(inputs: Inputs, start: int, stop: int) -> Inputs:
    """Return the inputs of the rows ``start:stop``, without states."""
    return replace(
        inputs,
        count=stop - start,
        actions=inputs.actions[start:stop],
        states=inputs.states[:0],
        dt=inputs.dt if isinstance(inputs.dt, int) else inputs.dt[start:stop],
        seeds=None if inputs.seeds is None else inputs.seeds[start:stop],
        verified=True,
    )
