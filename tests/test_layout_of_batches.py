"""Where the arrays of a batch are in memory, for the caller and for workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from plangym_like.batch.arrays import Rows
from plangym_like.batch.layout import Layout, Shape
from plangym_like.batch.spaces import flatten
from plangym_like.states.rows import StateFormat

BOX = spaces.Box(-1, 1, (3, 2), np.float32)
BYTES = spaces.Box(0, 255, (5,), np.uint8)
FLAG = spaces.MultiBinary(3)
DISCRETE = spaces.Discrete(7)
NEST = spaces.Dict(
    page=BOX,
    more=spaces.Tuple((DISCRETE, BYTES, spaces.Dict(flag=FLAG, pair=spaces.Tuple((BOX,))))),
)
TEXT = spaces.Text(9)
MIXED = spaces.Dict(label=TEXT, page=BOX)


def layout(
    observations: Any = BOX, actions: Any = DISCRETE, columns: Any = None, **kwargs: Any
) -> Layout:
    kwargs = {"plain_infos": False, "meaning": {"game": "x"}, "width": 19, **kwargs}
    state_format = StateFormat("TEST", kwargs["meaning"], kwargs["width"])
    found = columns or {}
    return Layout(observations, actions, state_format, found, plain_infos=kwargs["plain_infos"])


def arrays_of(rows: Rows, space: Any) -> list[Any]:
    """Return the arrays of a batch; a batch of some shapes lacks some."""
    inputs = rows.inputs
    found = [inputs.states, inputs.actions, inputs.dt, inputs.seeds]
    found += [rows.next_states, rows.rewards, rows.terminateds, rows.truncateds, rows.n_step]
    found += list(rows.columns.values())
    if rows.observations is not None:
        found += flatten(space, rows.observations)
    arrays = [array for array in found if isinstance(array, np.ndarray)]
    return [array for array in arrays if not array.dtype.hasobject]


def shapes() -> Any:
    return st.builds(
        Shape,
        rows=st.integers(0, 70),
        horizon=st.sampled_from([0, 0, 1, 4]),
        state_rows=st.integers(0, 70),
        dt=st.sampled_from([0, 1, 5]),
        seeded=st.booleans(),
        wants_states=st.booleans(),
        wants_observations=st.booleans(),
        action=st.sampled_from(["<i8", "<f4", "<f8"]),
    )


COLUMNS = {"lives": ((), np.dtype(np.int64)), "rgb": ((4, 3), np.dtype(np.uint8))}
LAYOUTS = {
    "box": layout(),
    "bytes and columns": layout(BYTES, BOX, COLUMNS),
    "nest": layout(NEST, FLAG, COLUMNS),
    "text": layout(TEXT, MIXED),
    "mixed": layout(MIXED, BYTES, {"odd": ((3,), np.dtype(bool))}),
}


@pytest.mark.parametrize("which", LAYOUTS)
@settings(max_examples=15)
@given(shape=shapes(), seed=st.integers(0, 1000))
def test_both_sides_find_the_same_arrays(which: str, shape: Shape, seed: int) -> None:
    here = LAYOUTS[which]
    space = here.observation_space
    sizes = here.region_nbytes(shape)
    memory = {region: np.zeros(nbytes, np.uint8) for region, nbytes in sizes.items() if nbytes}
    actions = None if here.array_actions else ["a"] * shape.rows
    ours = here.place(shape, memory, actions)
    theirs = here.place(shape, memory, actions)
    rng = np.random.default_rng(seed)
    written = []
    for array in arrays_of(ours, space):
        array[...] = rng.integers(0, 2, array.shape)
        written.append(array.copy())
    # Written one after the other and all still there: no two of them overlap.
    assert_same(arrays_of(theirs, space), written)
    assert_same(ours.inputs, theirs.inputs)


def test_equal_environments_have_equal_signatures() -> None:
    assert layout(NEST, BOX, COLUMNS).signature == layout(NEST, BOX, dict(COLUMNS)).signature


@pytest.mark.parametrize(
    "other",
    [
        layout(BYTES),
        layout(spaces.Box(-1, 1, (3, 2), np.float64)),
        layout(spaces.Box(-1, 1, (2, 3), np.float32)),
        layout(actions=BOX),
        layout(columns=COLUMNS),
        layout(columns={"lives": ((), np.dtype(np.int32))}),
        layout(plain_infos=True),
        layout(meaning={"game": "y"}),
        layout(width=90),
        layout(TEXT),
    ],
)
def test_whatever_moves_an_array_changes_the_signature(other: Layout) -> None:
    assert other.signature != layout().signature
