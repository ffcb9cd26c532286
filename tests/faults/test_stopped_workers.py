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
from playground import CounterEnv, Letter, sending
from usual import first_of

import plangym_like
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


@pytest.mark.full
def test_a_stopped_worker_holds_nobody_up() -> None:
    letters = [(1, 2, 3) * 5000 for _ in range(8)]
    with (
        plangym_like.make(Letter) as alone,
        plangym_like.make(Letter, n_workers=2, step_timeout=5.0) as env,
    ):
        state = alone.reset(seed=1).state
        env.set_state(state)
        sending(env)
        expected = alone.step_batch(letters, state)
        assert_same(env.step_batch(letters, state), expected)
        stop(env, 0)
        assert_same(env.step_batch(letters, state, blocking=False).result(600), expected)
        assert_same(env.step_batch(letters, state), expected)
        assert env.stats.timeouts == 0, "the other worker takes all rows"


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
