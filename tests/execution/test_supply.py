"""Lanes begin while other lanes' states are looked at: a damaged one is told all the same."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from comparing import assert_same, reached
from playground import sending

import plangym_like
from plangym_like.errors import StateFormatError

ROWS = 240
# How long a row takes decides how many rows a lane is sent at first; here ten, on every machine.
SECONDS_PER_ROW = 1e-4


@pytest.fixture(scope="module")
def serial() -> Iterator[Any]:
    with plangym_like.make("ALE/MsPacman-v5", obs_type="ram") as env:
        yield env


@pytest.fixture(scope="module")
def states(serial: Any) -> Any:
    return reached(serial, ROWS, every=1)


@pytest.fixture(scope="module", params=[2, 3])
def env(request: pytest.FixtureRequest, states: Any) -> Iterator[Any]:
    with plangym_like.make("ALE/MsPacman-v5", obs_type="ram", n_workers=request.param) as made:
        sending(made).step_batch([0] * ROWS, states)
        yield made


@pytest.mark.parametrize("on_error", ["raise", "mask"])
@pytest.mark.parametrize("row", [0, 3, 60, 79, 100, 119, 130, 239])
def test_a_damaged_row_is_told_wherever_it_is(
    env: Any, serial: Any, states: Any, row: int, on_error: str
) -> None:
    damaged = states.copy()
    damaged[row, 1000] ^= 4
    before = env.stats.batches, env.stats.rows_sent
    with pytest.raises(StateFormatError) as theirs:
        serial.step_batch([2] * ROWS, damaged, on_error=on_error)
    env.batch_env.seconds_per_row = SECONDS_PER_ROW
    with pytest.raises(StateFormatError, match=f"row {row} ") as ours:
        env.step_batch([2] * ROWS, damaged, on_error=on_error)
    assert str(ours.value) == str(theirs.value)
    assert env.stats.batches == before[0]
    assert (env.stats.rows_sent > before[1]) == (row >= 60), "lanes had begun"
    assert_same(env.step_batch([3] * ROWS, states), serial.step_batch([3] * ROWS, states))


@pytest.mark.parametrize("kind", ["promise", "one state", "rollout", "few rows"])
def test_where_lanes_do_not_begin_before_all_is_seen(
    env: Any, serial: Any, states: Any, kind: str
) -> None:
    damaged = states.copy()
    damaged[5, 1000] ^= 4
    sent = env.stats.rows_sent
    env.batch_env.seconds_per_row = SECONDS_PER_ROW
    with pytest.raises(StateFormatError):
        if kind == "promise":
            env.step_batch([2] * ROWS, damaged, blocking=False)
        elif kind == "one state":
            env.step_batch([2] * ROWS, damaged[5])
        elif kind == "rollout":
            env.rollout_batch(np.full((6, 3), 2), damaged[:6])
        else:
            env.step_batch([2] * 12, damaged[:12])
    assert env.stats.rows_sent == sent
    assert_same(env.step_batch([3] * ROWS, states), serial.step_batch([3] * ROWS, states))


def test_workers_that_die_meanwhile(env: Any, serial: Any, states: Any) -> None:
    expected = serial.step_batch([4] * ROWS, states)
    damaged = states.copy()
    damaged[110, 1000] ^= 4
    over = threading.Event()

    def kill() -> None:
        chance = np.random.default_rng(1)
        while not over.wait(chance.uniform(0.02, 0.1)):
            standing = [lane.process.pid for lane in env.batch_env.lanes if lane.ready]
            with contextlib.suppress(ProcessLookupError):
                if standing:
                    os.kill(chance.choice(standing), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    deaths = env.stats.deaths
    killer.start()
    try:
        while env.stats.deaths < deaths + 10:
            assert_same(env.step_batch([4] * ROWS, states), expected)
            with pytest.raises(StateFormatError, match="row 110 "):
                env.step_batch([4] * ROWS, damaged)
    finally:
        over.set()
        killer.join()
