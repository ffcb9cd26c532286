"""Results that unpack, and infos by row or by key."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from comparing import assert_same

from plangym_like.results import (
    BatchInfo,
    BatchStep,
    BatchTransition,
    ResetObservation,
    ResetResult,
    Rollout,
    Step,
    Transition,
)

COLUMNS = {"n_step": np.array([4, 3, 4]), "place": np.arange(6.0).reshape(3, 2)}
PLAIN: list[dict[str, Any]] = [
    {"lives": 3, "bonus": 1.5, "map": np.zeros(2)},
    {"lives": 2, "bonus": 2, "map": np.ones(2), "won": True},
    {"lives": 3, "bonus": 0.5, "map": np.ones(2), "name": "end"},
]
INFOS = BatchInfo(3, COLUMNS, PLAIN)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ResetResult, "state obs info"),
        (ResetObservation, "obs info"),
        (Transition, "state obs reward terminated truncated info"),
        (Step, "obs reward terminated truncated info"),
        (BatchTransition, "states obs rewards terminateds truncateds infos"),
        (BatchStep, "obs rewards terminateds truncateds infos"),
        (Rollout, "states observations rewards terminateds truncateds infos"),
    ],
)
def test_results_unpack_in_the_documented_order(kind, fields):
    assert kind._fields == tuple(fields.split())
    assert tuple(kind(*range(len(kind._fields)))) == tuple(range(len(kind._fields)))


def test_rows_are_numbered_from_both_ends_and_sliced():
    assert_same(INFOS[-1], INFOS[2])
    assert_same(INFOS[np.int64(1)], INFOS[1])
    assert_same(INFOS[1:], [INFOS[1], INFOS[2]])
    assert_same(INFOS[::-1], [INFOS[2], INFOS[1], INFOS[0]])
    assert_same(list(INFOS), INFOS[:])
    assert len(INFOS) == 3 and isinstance(INFOS, Sequence)


def test_a_key_that_some_row_has_is_in_the_batch():
    for key in ("n_step", "lives", "name"):
        assert key in INFOS
    assert "nothing" not in INFOS
    assert {"n_step": 4} in BatchInfo(1, {"n_step": np.array([4])})


def test_columns_of_one_kind_are_arrays():
    assert_same(INFOS["lives"], np.array([3, 2, 3]))
    assert_same(INFOS["map"], np.array([[0.0, 0], [1, 1], [1, 1]]))


def test_columns_of_several_kinds_hold_objects():
    column = INFOS["bonus"]
    assert column.dtype == object and column.tolist() == [1.5, 2, 0.5]
    assert type(column[1]) is int
    unequal = BatchInfo(2, {}, [{"a": np.zeros(2)}, {"a": np.zeros(3)}])["a"]
    assert unequal.dtype == object and unequal.shape == (2,)
    assert_same(unequal[1], np.zeros(3))


def test_columns_with_gaps_hold_none_in_them():
    assert_same(INFOS["won"], np.array([None, True, None], object))
    assert_same(INFOS.mask("won"), np.array([False, True, False]))
    gaps = BatchInfo(2, {}, [{"a": np.zeros(2)}, {}])["a"]
    assert gaps.shape == (2,) and gaps[1] is None
    assert_same(gaps[0], np.zeros(2))


def test_unknown_keys_are_key_errors():
    for infos in (INFOS, BatchInfo(3, COLUMNS), BatchInfo(0, {}, [])):
        with pytest.raises(KeyError, match="nothing"):
            infos["nothing"]


@pytest.mark.parametrize("value", ["room\0", b"\x07\0\0", ["a\0", "b"]])
def test_a_column_of_text_keeps_null_characters_at_its_end(value: Any) -> None:
    infos = BatchInfo(2, {}, [{"a": value}, {"a": value}])
    assert infos["a"].tolist() == [value, value] == [info["a"] for info in infos]
