"""Rows that never come back: the call does, in time, and so does `close`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from comparing import assert_same
from harm import dangerous, loop, seconds_to_start, sleep
from hosted import quickest, wait_until_gone
from playground import CounterEnv, Meeting, get_stuck, sending
from usual import first_of

from plangym_like.constructors import ParallelEnv
from plangym_like.errors import ClosedError, StepTimeoutError

COUNT = 60
STUCK = [get_stuck, sleep, loop]


@pytest.mark.parametrize("kind", first_of(range(len(STUCK))), ids=["in C", "sleep", "loop"])
@pytest.mark.parametrize(
    ("timeout", "times"),
    [
        (0.3, 2),
        pytest.param(0.3, 8, marks=pytest.mark.full),
        pytest.param(2.0, 2, marks=pytest.mark.full),
    ],
)
def test_the_row_that_hangs_is_named_in_time(
    serial: CounterEnv, kind: int, timeout: float, times: int
) -> None:
    rng = np.random.default_rng(kind)
    with ParallelEnv(dangerous(STUCK), "toy", n_workers=2, step_timeout=timeout) as env:
        sending(env)
        late: list[float] = []
        # In time at least every other time; a crowded machine gets more tries.
        while len(late) < times or (sorted(late)[(times - 1) // 2] >= 0.5 and len(late) < 20):
            actions, index = rng.integers(0, 4096, COUNT), int(rng.integers(COUNT))
            actions[index] = 4096 + kind
            begun = time.monotonic()
            with pytest.raises(StepTimeoutError) as caught:
                env.step_batch(actions, serial.get_state())
            seconds = time.monotonic() - begun
            assert seconds < timeout + 100  # whatever else the machine is doing
            assert caught.value.indices == (index,)
            assert f"row {index} took longer than step_timeout={timeout}" in str(caught.value)
            actions[index] = 0
            ours = env.step_batch(actions, serial.get_state())
            assert_same(ours, serial.step_batch(actions, serial.get_state()))
            # The row is tried once more by another worker, whose start a crowded machine draws out.
            late.append(seconds - 2 * timeout - seconds_to_start())
        assert sorted(late)[(times - 1) // 2] < 0.5


@pytest.mark.parametrize("kind", first_of(range(len(STUCK))), ids=["in C", "sleep", "loop"])
def test_close_while_all_workers_hang(serial: CounterEnv, tmp_path: Path, kind: int) -> None:
    def seconds_to_close() -> float:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return _close_while_hanging(serial, folder, kind)

    assert quickest(seconds_to_close, 3.0, tries=10) < 3.0


def _close_while_hanging(serial: CounterEnv, folder: Path, kind: int) -> float:
    meeting = Meeting(folder)
    harms: list[Callable[[int], None]] = [
        lambda action: (meeting.report(), STUCK[kind](action))  # type: ignore[func-returns-value,list-item]
    ]
    env = ParallelEnv(dangerous(harms), "toy", n_workers=2, isolate=True)
    sending(env)
    future = env.step_batch([4096, 4096], serial.get_state(), blocking=False)
    pids = [meeting.next_report()[0] for _ in range(2)]
    begun = time.monotonic()
    env.close()
    passed = time.monotonic() - begun
    assert all(wait_until_gone(pid, 0) for pid in pids)
    with pytest.raises(ClosedError):
        future()
    meeting.close()
    return passed
