"""Workers that are stopped, and workers whose constructor hangs: noticed with a timeout set."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from harm import Fuses, seconds_to_start
from playground import CounterEnv, sending
from usual import first_of

from plangym_like.constructors import ParallelEnv
from plangym_like.env import PlanEnv

ACTIONS = np.arange(60)


def stop(env: Any, number: int) -> int:
    """Stop a worker as a shell's Ctrl-Z does; return its pid."""
    pid = int(env.batch_env[number].pid)
    os.kill(pid, signal.SIGSTOP)
    return pid


@pytest.mark.parametrize("count", first_of([60, 1, 2]))
@pytest.mark.parametrize("on_error", first_of(["raise", "mask"]))
def test_an_idle_worker_is_stopped(serial: CounterEnv, count: int, on_error: str) -> None:
    actions, state = ACTIONS[:count], serial.get_state()
    expected = serial.step_batch(actions, state)
    with ParallelEnv(CounterEnv, "toy", n_workers=2, step_timeout=0.3) as env:
        sending(env)
        pids = [stop(env, number) for number in range(2)]
        assert_same(env.step_batch(actions, state, on_error=on_error), expected)
        assert env.stats.timeouts == 2
        assert_same(env.step_batch(actions, state), expected)
        assert env.batch_env[0].pid != pids[0]


class HangingAtStart:
    """Makes a counter, except in as many workers as fuses are laid: there it never returns."""

    def __init__(self, folder: Path) -> None:
        self.fuses, self._owner = Fuses(folder), os.getpid()

    def __call__(self, name: str, **kwargs: Any) -> PlanEnv:
        if os.getpid() != self._owner and self.fuses.goes_off():
            time.sleep(600)
        return CounterEnv(name, **kwargs)


def test_the_constructor_of_a_restarted_worker_hangs(serial: CounterEnv, tmp_path: Path) -> None:
    make, state = HangingAtStart(tmp_path / "fuses"), serial.get_state()
    expected = serial.step_batch(ACTIONS, state)
    limit = 3.0 + 10 * seconds_to_start()
    with ParallelEnv(make, "toy", n_workers=1, step_timeout=5.0, start_timeout=limit) as env:
        sending(env)
        make.fuses.lay()
        env.batch_env[0].kill()
        assert_same(env.step_batch(ACTIONS, state), expected)
        assert make.fuses.left() == 0
        assert env.stats.restarts == 2
