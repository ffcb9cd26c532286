"""Each process verifies the states of its rows: a damaged row is reported wherever it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from comparing import assert_same, reached
from playground import AlwaysSend, CounterEnv, CounterSimulator, refuse, sending
from usual import first_of

import plangym_like
from plangym_like.constructors import ParallelEnv
from plangym_like.errors import StateFormatError
from plangym_like.execution import shared_batch

ROWS = 240
# Seconds of a row, as far as the environment knows.
SECONDS_PER_ROW = 1e-4


class CheckedSimulator(CounterSimulator):
    """A counter whose states have checksums."""

    checksum = True


class CheckedEnv(CounterEnv):
    """Plans over a `CheckedSimulator`."""

    simulator_class = CheckedSimulator


def know_costs(env: Any) -> None:
    """Have the environment believe that a row takes `SECONDS_PER_ROW`."""
    env.batch_env.costs = AlwaysSend()
    env.batch_env.costs.note(1, 1, seconds=SECONDS_PER_ROW)


@pytest.fixture(scope="module")
def serial() -> Iterator[Any]:
    with plangym_like.make("ALE/MsPacman-v5", obs_type="ram") as env:
        yield env


@pytest.fixture(scope="module")
def states(serial: Any) -> Any:
    return reached(serial, ROWS, every=1)


@pytest.fixture(scope="module", params=first_of([2, 3]))
def env(request: pytest.FixtureRequest, states: Any) -> Iterator[Any]:
    with plangym_like.make("ALE/MsPacman-v5", obs_type="ram", n_workers=request.param) as made:
        sending(made).step_batch([0] * ROWS, states)
        yield made


@pytest.mark.parametrize("on_error", ["raise", "mask"])
@pytest.mark.parametrize("row", first_of([0, 239, 100, 3, 60, 79, 119, 130], 2))
def test_a_damaged_row_is_reported_wherever_it_is(
    env: Any, serial: Any, states: Any, row: int, on_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = states.copy()
    damaged[row, 1000] ^= 4
    with pytest.raises(StateFormatError) as theirs:
        serial.step_batch([2] * ROWS, damaged, on_error=on_error)
    know_costs(env)
    monkeypatch.setattr(shared_batch, "_PART_NBYTES", 60 * states.shape[1])
    with pytest.raises(StateFormatError, match=f"row {row} ") as ours:
        env.step_batch([2] * ROWS, damaged, on_error=on_error)
    assert str(ours.value) == str(theirs.value)
    assert_same(env.step_batch([3] * ROWS, states), serial.step_batch([3] * ROWS, states))


@pytest.mark.parametrize("row", first_of([7, 0, 23]))
def test_of_a_damaged_row_and_one_that_fails_the_damaged_one_is_reported(row: int) -> None:
    def refuse_first(action: int) -> None:
        if action == 0:
            refuse(action)

    with ParallelEnv(CheckedEnv, "toy", n_workers=2, isolate=True, trap=refuse_first) as env:
        sending(env)
        damaged = np.repeat(env.reset(seed=0).state[None], 24, 0)
        damaged[row, -1] ^= 1
        for on_error in ("raise", "mask"):
            with pytest.raises(StateFormatError, match=f"row {row} "):
                env.step_batch(np.arange(24), damaged, on_error=on_error)


@pytest.mark.parametrize("kind", ["future", "one state"])
def test_where_workers_do_not_begin_before_all_is_verified(
    env: Any, serial: Any, states: Any, kind: str
) -> None:
    damaged = states.copy()
    damaged[5, 1000] ^= 4
    sent = env.stats.rows_sent
    know_costs(env)
    with pytest.raises(StateFormatError):
        if kind == "future":
            env.step_batch([2] * ROWS, damaged, blocking=False)
        else:
            env.step_batch([2] * ROWS, damaged[5])
    assert env.stats.rows_sent == sent
    assert_same(env.step_batch([3] * ROWS, states), serial.step_batch([3] * ROWS, states))
