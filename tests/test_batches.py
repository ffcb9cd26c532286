"""What a batch is asked to do, checked before anything happens, and the arrays it is given."""

from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from gymnasium import spaces

from plangym_like.batch.arrays import dt_of
from plangym_like.batch.layout import Layout, check_dt
from plangym_like.errors import (
    InputError,
    StateFormatError,
)
from plangym_like.results import BatchStep, BatchTransition
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


@pytest.mark.parametrize("states", [None, 3, [None], [rows(1)[0], None], "ab", object])
def test_what_is_no_state_is_malformed(states):
    with pytest.raises(StateFormatError):
        LAYOUT.check([0, 1], states, 1, None)


# Rollouts


def test_rollouts_have_a_horizon():
    inputs = LAYOUT.check(np.zeros((3, 5), int), rows(3), 1, None, horizon=True)
    assert (inputs.count, inputs.horizon) == (3, 5)
    inputs = LAYOUT.check(np.zeros((1, 5), int), rows(3), 1, None, horizon=True)
    assert (inputs.count, inputs.horizon) == (3, 5)
    assert inputs.actions.shape == (3, 5)


def test_rollouts_of_no_steps_are_refused():
    with pytest.raises(InputError, match="T at least 1"):
        LAYOUT.check(np.zeros((3, 0), int), rows(3), 1, None, horizon=True)


# Step counts and seeds


@pytest.mark.parametrize("dt", [[1], [1, 2, 3], np.array([4, 5], np.uint16), (6, 7)])
def test_step_counts_by_row_are_an_array(dt):
    assert_same(check_dt(dt), np.array(dt, np.int64))


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
    "seeds", [np.array([0, 2**64 - 1], np.uint64), np.array([3, 4], np.int8), (5, 6)]
)
def test_seeds_are_whole_numbers(seeds):
    inputs = LAYOUT.check(0, rows(2), 1, seeds)
    assert inputs.seeds is not None and inputs.seeds.dtype == np.uint64
    assert inputs.seeds.tolist() == [int(seed) for seed in seeds]


@pytest.mark.parametrize(
    "seeds",
    [-1, [0, -1], 1.5, [1.0, 2.0], True, "1", [None, 1], 2**64, [[1, 2]], [[1], [1, 2]], object],
    ids=repr,
)
def test_other_seeds_are_refused(seeds):
    with pytest.raises(InputError, match="seeds must be whole numbers"):
        LAYOUT.check(0, rows(2), 1, seeds)


# Memory


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("states", [True, False])
def test_results_have_the_shapes_of_the_documentation(count, states):
    inputs = LAYOUT.check([1] * count, rows(count), 2, None)
    batch = LAYOUT.allocate(inputs, states=states)
    batch.columns["lives"][:] = 3
    batch.n_step[:] = 8
    result = LAYOUT.result(batch)
    assert type(result) is (BatchTransition if states else BatchStep)
    assert len(result) == (6 if states else 5)
    if isinstance(result, BatchTransition):
        assert result.states.shape == (count, FORMAT.state_nbytes)
        assert result.states.dtype == np.uint8
    assert result.obs["x"].shape == (count, 3) and result.obs["x"].dtype == np.float32
    assert result.obs["n"].shape == (count,) and result.obs["n"].dtype == np.int64
    assert result.rewards.shape == (count,) and result.rewards.dtype == np.float64
    for flags in (result.terminateds, result.truncateds):
        assert flags.shape == (count,) and flags.dtype == bool
    assert len(result.infos) == count
    assert_same(np.array(result.infos["dt"]), np.full(count, 2, np.int64))
    assert_same(result.infos["n_step"], np.full(count, 8, np.int64))
    assert result.infos["place"].shape == (count, 2)
