"""The memory that the processes of lanes share: channels and info columns."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from playing import plain

from plangym_like.processes.shared_memory import WRITES_IN_ORDER
from plangym_like.vector.memory import COLUMNS_NBYTES, REPLY_NBYTES, LaneChannel, lane_layout
from plangym_like.vector.tree import Leaf, zeros


def _arrays(num_lanes: int) -> Any:
    number = Leaf((), np.dtype(float))
    return zeros(lane_layout(number, number, num_lanes), ())


def test_what_is_written_is_read() -> None:
    arrays = _arrays(3)
    writer, reader = LaneChannel(arrays), LaneChannel(arrays)
    several: list[dict[str, Any]] = [
        {"flag": np.array([True, False, True]), "speed": np.arange(3.0)},
        {"speed": np.arange(3.0, 6.0), "place": np.arange(12, dtype=np.float32).reshape(3, 2, 2)},
        {"speed": np.arange(3, dtype=np.int8)},
    ]
    for columns in (*several, *several[::-1]):
        form = writer.write_columns(columns)
        assert form is not None
        assert plain(reader.read_columns(pickle.loads(pickle.dumps(form)))) == plain(columns)


@pytest.mark.parametrize(
    "column", [np.array(["a", "b", "c"]), np.zeros((3, COLUMNS_NBYTES // 8 + 1))]
)
def test_other_columns_are_not_written(column: Any) -> None:
    channel = LaneChannel(_arrays(3))
    assert channel.write_columns({"speed": np.zeros(3), "other": column}) is None
    assert channel.write_columns({"speed": np.zeros(3)})


def test_a_channel_that_nobody_watches_requests_nothing() -> None:
    arrays = _arrays(2)
    caller, worker = LaneChannel(arrays), LaneChannel(arrays)
    assert not caller.ring("step")
    assert not worker.has_rung(True)
    assert caller.is_watched == WRITES_IN_ORDER
    if not WRITES_IN_ORDER:
        return
    assert caller.ring("step_same", "wide_actions")
    assert not caller.is_done()
    assert worker.has_rung(False)
    assert worker.arguments() == ("step_same", "wide_actions")
    worker.answer(b"sixteen bytes...")
    assert caller.is_done()
    assert bytes(caller.reply() or b"") == b"sixteen bytes..."
    assert not caller.ring("step")
    worker.has_rung(True)
    for answer in (bytes(2 * REPLY_NBYTES + 1), None):  # too long, or an error
        assert caller.ring("step")
        worker.answer(answer)
        assert caller.is_done()
        assert caller.reply() is None
    assert caller.ring("step")
    worker.begin()  # a new process
    assert caller.is_done()
    assert not worker.has_rung(False)
