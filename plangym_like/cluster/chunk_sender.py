"""`ChunkSender`: makes the requests to actors for the chunks of one batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.batches import Inputs, Rows
from plangym_like.cluster.chunk import Chunk, ChunkRequest, distinct_states
from plangym_like.cluster.ray_session import load
from plangym_like.cluster.ray_stats import RayStats
from plangym_like.layout import Layout

# Shared states of fewer bytes travel with each chunk; larger ones are put into the object store,
# from which each node fetches them once (`benchmarks/constants.py`).
_PUT_NBYTES = 1 << 16
# All chunks share the states of the batch if at least this many rows start from each distinct state
# on average (`benchmarks/constants.py`).
_ROWS_PER_STATE = 4


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
