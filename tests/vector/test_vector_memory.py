"""The memory that the processes of lanes share: channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from plangym_like.processes.shared_memory import WRITES_IN_ORDER
from plangym_like.vector.memory import _WATCHING, REPLY_NBYTES, LaneChannel, lane_layout
from plangym_like.vector.tree import Leaf, zeros


def _arrays(num_lanes: int) -> Any:
    number = Leaf((), np.dtype(float))
    return zeros(lane_layout(number, number, num_lanes), ())


def test_a_channel_that_nobody_watches_requests_nothing() -> None:
    arrays = _arrays(2)
    caller, worker = LaneChannel(arrays), LaneChannel(arrays)
    assert not caller.ring("step")
    assert not worker.has_rung(True)
    assert bool(arrays.words[0][_WATCHING]) == WRITES_IN_ORDER
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
