"""Batches that are given up while a row hangs, no timeout being set: later batches do not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from comparing import assert_same
from hosted import wait_until_gone
from playground import CounterEnv, Meeting, PressCtrlC, Trap, get_stuck, refuse, sending
from usual import first_of

from plangym_like.constructors import ParallelEnv

ACTIONS = np.arange(100)


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
