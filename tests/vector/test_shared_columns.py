"""Info columns in memory that the processes of lanes share."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from playing import plain

from plangym_like.vector.hosted_lanes import StepReply
from plangym_like.vector.shared_columns import COLUMNS_NBYTES, SharedColumns


def test_what_is_written_is_read() -> None:
    memory = np.zeros((3, COLUMNS_NBYTES), np.uint8)
    writer, reader = SharedColumns(memory), SharedColumns(memory)
    several: list[dict[str, Any]] = [
        {"flag": np.array([True, False, True]), "speed": np.arange(3.0)},
        {"speed": np.arange(3.0, 6.0), "place": np.arange(12, dtype=np.float32).reshape(3, 2, 2)},
        {"speed": np.arange(3, dtype=np.int8)},
    ]
    for columns in (*several, *several[::-1]):
        form = writer.write(columns)
        assert form is not None
        assert plain(reader.read(pickle.loads(pickle.dumps(form)))) == plain(columns)


@pytest.mark.parametrize(
    "column", [np.array(["a", "b", "c"]), np.zeros((3, COLUMNS_NBYTES // 8 + 1))]
)
def test_other_columns_are_not_written(column: Any) -> None:
    columns = SharedColumns(np.zeros((3, COLUMNS_NBYTES), np.uint8))
    assert columns.write({"speed": np.zeros(3), "other": column}) is None
    assert columns.write({"speed": np.zeros(3)})


def test_usual_replies_hold_nothing_but_a_form() -> None:
    form = (("speed", np.dtype(float), ()),)
    assert StepReply({}, None, form, {}, None).is_usual
    for reply in (
        StepReply({}, None, (), {}, None),
        StepReply({}, None, form, {1: (np.zeros(2), {})}, None),
        StepReply({}, None, form, {}, np.zeros(2)),
    ):
        assert not reply.is_usual
