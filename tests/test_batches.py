"""What a batch is asked to do, checked before anything happens, and the arrays it is given."""

from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from plangym_like.batch.arrays import Rows, dt_of
from plangym_like.batch.layout import Layout, Shape, check_dt
from plangym_like.batch.spaces import flatten
from plangym_like.errors import InputError
from plangym_like.states.rows import HEADER_NBYTES, StateFormat

FORMAT = StateFormat("TEST", {"id": "batches"}, 24)
OBSERVATION = spaces.Dict(x=spaces.Box(-1, 1, (3,), np.float32), n=spaces.Discrete(4))
LAYOUT = Layout(
    OBSERVATION,
    spaces.Discrete(3),
    FORMAT,
    {"lives": ((), np.dtype(np.int64)), "place": ((2,), np.dtype(np.float32))},
    plain_infos=True,
)


def rows(count: int) -> Any:
    made = np.zeros((count, FORMAT.state_nbytes), np.uint8)
    made[:, :HEADER_NBYTES] = FORMAT.header_bytes
    made[:, 40] = np.arange(count)
    return made


# Lengths


@pytest.mark.parametrize(
    ("actions", "states", "dt", "seeds", "count"),
    [
        ([0, 1, 2], 3, 1, None, 3),
        ([0, 1, 2], 1, 1, None, 3),
        (0, 4, 1, None, 4),
        ([0], 4, [1, 2, 3, 4], [5, 6, 7, 8], 4),
        (0, 1, [1, 2], None, 2),
        (0, 1, 1, [1, 2, 3], 3),
        (0, 1, 1, 9, 1),
        ([0, 1], 2, [3], [4], 2),
        ([], 0, 1, None, 0),
        ([], 1, 1, None, 0),
        (0, 0, 1, None, 0),
        ([], 0, [], [], 0),
    ],
)
def test_lengths_of_one_spread_over_all_others(actions, states, dt, seeds, count):
    inputs = LAYOUT.check(actions, rows(states), dt, seeds)
    assert inputs.count == count
    assert inputs.horizon == 0
    assert len(inputs.actions) == count
    assert len(inputs.states) in (count, 1)
    assert isinstance(inputs.dt, int) or len(inputs.dt) == count
    assert inputs.seeds is None or len(inputs.seeds) == count
    for index in range(count):
        assert inputs.actions[index] == np.atleast_1d(actions)[index if np.size(actions) > 1 else 0]
        assert dt_of(inputs, index) == np.atleast_1d(dt)[index if np.size(dt) > 1 else 0]


@pytest.mark.parametrize(
    ("actions", "states", "dt", "seeds"),
    [
        ([0, 1, 2], 2, 1, None),
        ([0, 1], 3, 1, None),
        ([0, 1], 2, [1, 1, 1], None),
        ([0, 1], 2, 1, [1, 2, 3]),
        (0, 1, [1, 2], [1, 2, 3]),
        ([], 2, 1, None),
        ([0, 1], 0, 1, None),
        ([0, 1], 2, [], None),
        ([0, 1], 2, 1, []),
    ],
)
def test_lengths_that_do_not_fit_are_told(actions, states, dt, seeds):
    with pytest.raises(InputError, match="length N or 1") as caught:
        LAYOUT.check(actions, rows(states), dt, seeds)
    told = f"{np.size(actions)} actions, {states} states"
    assert told in str(caught.value)


# Rollouts


def test_rollouts_have_a_horizon():
    inputs = LAYOUT.check(np.zeros((3, 5), int), rows(3), 1, None, horizon=True)
    assert (inputs.count, inputs.horizon) == (3, 5)
    inputs = LAYOUT.check(np.zeros((1, 5), int), rows(3), 1, None, horizon=True)
    assert (inputs.count, inputs.horizon) == (3, 5)
    assert inputs.actions.shape == (3, 5)
    with pytest.raises(InputError, match="T at least 1"):
        LAYOUT.check(np.zeros((3, 0), int), rows(3), 1, None, horizon=True)


# Step counts and seeds


@pytest.mark.parametrize(
    "dt",
    [
        *(0, -1, -(2**40), 2**63, 2**70, 1.0, 1.5, float("nan"), True, False, None, "1", 1j),
        *(np.bool_(True), np.float64(2.0), np.int8(-3), object, {}),
        *([1, 0], [1, -1], [1.0, 2.0], [True, True], [1, None], [[1, 2]], [[1], [1, 2]], ["1"]),
        np.array([2**63], np.uint64),
    ],
    ids=repr,
)
def test_other_step_counts_are_refused(dt):
    with pytest.raises(InputError, match="dt must be"):
        check_dt(dt)


@pytest.mark.parametrize(
    "seeds",
    [-1, [0, -1], 1.5, [1.0, 2.0], True, "1", [None, 1], 2**64, [[1, 2]], [[1], [1, 2]], object],
    ids=repr,
)
def test_other_seeds_are_refused(seeds):
    with pytest.raises(InputError, match="seeds must be whole numbers"):
        LAYOUT.check(0, rows(2), 1, seeds)


# Where arrays are in memory, for the caller and for workers

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
        legal=st.just(False),  # only games have such rollouts
        action=st.sampled_from(["<i8", "<f4", "<f8"]),
    )


COLUMNS = {"lives": ((), np.dtype(np.int64)), "rgb": ((4, 3), np.dtype(np.uint8))}
LAYOUTS = {
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


@pytest.mark.parametrize(
    "other",
    [
        layout(BYTES),
        layout(spaces.Box(-1, 1, (3, 2), np.float64)),
        layout(actions=BOX),
        layout(columns=COLUMNS),
        layout(plain_infos=True),
        layout(meaning={"game": "y"}),
        layout(width=90),
    ],
)
def test_whatever_moves_an_array_changes_the_signature(other: Layout) -> None:
    assert other.signature != layout().signature
    assert layout().signature == layout().signature
