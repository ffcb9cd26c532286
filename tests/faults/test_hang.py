"""Rows that never come back, and workers that are stopped: the call does, and so does `close`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from harm import dangerous, loop, seconds_to_start, sleep
from hosted import quickest, wait_until_gone
from playground import CounterEnv, Meeting, PressCtrlC, Trap, get_stuck, refuse, sending
from usual import first_of

from plangym_like.constructors import ParallelEnv
from plangym_like.errors import ClosedError, StepTimeoutError

COUNT = 60
ACTIONS = np.arange(100)
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


# Workers that are stopped


def stop(env: Any, number: int) -> int:
    """Stop a worker as a shell's Ctrl-Z does; return its pid."""
    pid = int(env.batch_env[number].pid)
    os.kill(pid, signal.SIGSTOP)
    return pid


@pytest.mark.parametrize("count", first_of([60, 1, 2]))
@pytest.mark.parametrize("on_error", first_of(["raise", "mask"]))
def test_an_idle_worker_is_stopped(serial: CounterEnv, count: int, on_error: str) -> None:
    actions, state = np.arange(count), serial.get_state()
    expected = serial.step_batch(actions, state)
    with ParallelEnv(CounterEnv, "toy", n_workers=2, step_timeout=0.3) as env:
        sending(env)
        pids = [stop(env, number) for number in range(2)]
        assert_same(env.step_batch(actions, state, on_error=on_error), expected)
        assert env.stats.timeouts == 2
        assert_same(env.step_batch(actions, state), expected)
        assert env.batch_env[0].pid != pids[0]


# Batches that are given up while a row hangs, no timeout being set


def stuck(meeting: Meeting) -> Callable[[int], None]:
    """Return harm: say that this worker is here, and stay in C with the GIL held."""
    return lambda action: (meeting.report(), get_stuck(action))  # type: ignore[func-returns-value,return-value]


@pytest.mark.parametrize("isolate", first_of([True, False]))
@pytest.mark.parametrize("on_error", first_of(["raise", "mask"]))
def test_ctrl_c_while_a_row_hangs(
    serial: CounterEnv, tmp_path: Path, isolate: bool, on_error: str
) -> None:
    press, owner = PressCtrlC(tmp_path), os.getpid()  # nothing lets the worker go on
    pressing = Trap(press, [0])

    def trap(action: int) -> None:
        if action == 0 and os.getpid() == owner:
            time.sleep(100)  # until a worker has pressed
        pressing(action)

    actions = ACTIONS[1:]
    expected = serial.step_batch(actions, serial.get_state())
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=isolate, trap=trap) as env:
        sending(env)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                # Without isolation, the only worker presses in its first row, whichever it is.
                first = ACTIONS if isolate else 0 * ACTIONS
                env.step_batch(first, serial.get_state(), on_error=on_error)
            pid, _ = press.next_report()
            assert_same(env.step_batch(actions, serial.get_state()), expected)
            while not wait_until_gone(pid, 0.05):  # it is replaced while other batches run
                assert_same(env.step_batch(actions, serial.get_state()), expected)
            sending(env)
        # On a slow machine, the other worker may still be in a row, too, when its time is over.
        assert env.stats.restarts >= 2
    press.close()


@pytest.mark.full
def test_a_row_that_raises_is_told_while_a_later_one_hangs(
    serial: CounterEnv, meeting: Meeting
) -> None:
    def trap(action: int) -> None:
        if action == 99:
            stuck(meeting)(action)
        elif action == 3:
            refuse(action)

    expected = serial.step_batch(ACTIONS[4:99], serial.get_state())
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True, trap=Trap(trap, [3, 99])) as env:
        sending(env)
        with pytest.raises(ArithmeticError, match="action 3 is refused"):
            env.step_batch(np.r_[3, np.full(98, 50), 99], serial.get_state())
        assert_same(env.step_batch(ACTIONS[4:99], serial.get_state()), expected)
