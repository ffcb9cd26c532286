"""Futures of batches: what `blocking=False` returns, and when."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from playground import CounterEnv, Meeting, Trap, refuse, sending
from usual import first_of

from plangym_like.constructors import ParallelEnv
from plangym_like.errors import InputError, StateError
from plangym_like.results import BatchFuture

ACTIONS = np.arange(100)
WORKERS = {"shared": {"n_workers": 3}, "isolated": {"n_workers": 2, "isolate": True}}


@pytest.mark.parametrize("where", first_of(WORKERS))
@pytest.mark.parametrize("warm", [0, 20])
def test_the_caller_steps_no_row_before_it_asks(serial: CounterEnv, where: str, warm: int) -> None:
    owner, calling = os.getpid(), [False]

    def trap(action: int) -> None:
        if os.getpid() == owner and calling[0]:
            raise AssertionError("stepped in the call")
        time.sleep(1e-3)  # more than a message costs

    state = serial.get_state()
    with ParallelEnv(CounterEnv, "toy", trap=trap, **WORKERS[where]) as env:
        for _ in range(warm):  # so that there is something to be learnt
            env.step_batch(ACTIONS, state)
        for count in (1, 1, 2, 100, 100, 100, 100, 1000):
            actions = np.arange(count)
            calling[0] = True
            future = env.step_batch(actions, state, blocking=False)
            plans = env.rollout_batch(actions[:, None], state, blocking=False)
            future.done()
            calling[0] = False
            assert_same(future.result(60), serial.step_batch(actions, state))
            assert_same(plans.result(60), serial.rollout_batch(actions[:, None], state))


@pytest.mark.parametrize("isolate", [True, False])
def test_workers_step_it_while_the_caller_does_not_wait(
    serial: CounterEnv, meeting: Meeting, isolate: bool
) -> None:
    trap = Trap(lambda action: meeting.report(), [49, 99])
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=isolate, trap=trap) as env:
        sending(env)
        future = env.step_batch(ACTIONS, serial.get_state(), blocking=False)
        meeting.next_report()
        meeting.next_report()
        until = time.monotonic() + 30
        while not future.done():
            assert time.monotonic() < until
            time.sleep(0.01)
        assert_same(future(0), serial.step_batch(ACTIONS, serial.get_state()))


@pytest.mark.parametrize("where", WORKERS)
def test_errors_of_rows_come_with_the_result(serial: CounterEnv, where: str) -> None:
    state = serial.get_state()

    def trap(action: int) -> None:
        if action == 57:
            refuse(action)

    with ParallelEnv(CounterEnv, "toy", trap=trap, **WORKERS[where]) as env:
        for actions in ([57], ACTIONS, ACTIONS):
            future = env.step_batch(actions, state, blocking=False)
            for _ in range(2):
                assert isinstance(future.exception(60), ArithmeticError)
                with pytest.raises(ArithmeticError, match="57"):
                    future.result()
            assert future.done() and not future.cancel() and not future.cancelled()
        for actions, states, expected in (
            ([4096], state, InputError),
            ([1, 2], [state] * 3, InputError),
            ([1], state[:-1], StateError),
        ):
            with pytest.raises(expected):
                env.step_batch(actions, states, blocking=False)


@pytest.mark.parametrize("order", ["as asked", "backwards"])
@pytest.mark.parametrize("where", WORKERS)
def test_many_are_pending(serial: CounterEnv, where: str, order: str) -> None:
    state = serial.get_state()
    counts = [100, 1, 0, 700, 2, 33, 100, 5]
    with ParallelEnv(CounterEnv, "toy", **WORKERS[where]) as env:
        futures = [env.step_batch(np.arange(count), state, blocking=False) for count in counts]
        assert all(isinstance(future, BatchFuture) for future in futures)
        assert_same(env.step_batch(ACTIONS, state), serial.step_batch(ACTIONS, state))
        asked = list(zip(counts, futures, strict=True))
        for count, future in asked if order == "as asked" else reversed(asked):
            assert_same(future.result(60), serial.step_batch(np.arange(count), state))
        assert env.stats.rows == sum(counts) + 100


@pytest.mark.parametrize("isolate", [True, False])
def test_a_later_batch_does_not_wait_for_a_row_of_an_earlier_one(
    serial: CounterEnv, meeting: Meeting, isolate: bool
) -> None:
    trap = Trap(meeting, [0])
    # An audit would step the row that waits for a permit once more.
    options: dict[str, Any] = {"n_workers": 3, "isolate": isolate, "audit": "off"}
    with ParallelEnv(CounterEnv, "toy", trap=trap, **options) as env:
        sending(env)
        state = serial.get_state()
        first = env.step_batch(ACTIONS, state, blocking=False)
        meeting.next_report()
        second = env.step_batch(ACTIONS[1:], state, blocking=False)
        assert_same(second.result(60), serial.step_batch(ACTIONS[1:], state))
        assert_same(env.step_batch(ACTIONS[1:], state), serial.step_batch(ACTIONS[1:], state))
        assert not first.done()
        with pytest.raises(TimeoutError, match="a batch of 100 rows"):
            first.exception(0.05)
        meeting.let_go()
        assert_same(first.result(60), serial.step_batch(ACTIONS, state))


def test_pending_batches_of_many_threads(serial: CounterEnv) -> None:
    state = serial.get_state()
    expected = {dt: serial.step_batch(ACTIONS, state, dt) for dt in range(1, 6)}
    with ParallelEnv(CounterEnv, "toy", n_workers=3) as env:

        def use(thread: int) -> int:
            for number in range(10):
                dt = 1 + (thread + number) % 5
                future = env.step_batch(ACTIONS, state, dt, blocking=False)
                future.done()
                if number % 3 == 2:
                    del future
                else:
                    assert_same(future.result(60), expected[dt])
            return thread

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(use, range(4))) == list(range(4))


@pytest.mark.parametrize("isolate", [True, False])
def test_more_pending_batches_than_the_pipe_has_room_for(serial: CounterEnv, isolate: bool) -> None:
    state = serial.get_state()
    with ParallelEnv(CounterEnv, "toy", n_workers=3, isolate=isolate, audit="off") as env:
        sending(env)
        futures = [
            env.step_batch(np.arange(number, number + 120), state, blocking=False)
            for number in range(30)
        ]
        for number in (2, 29, *range(30)):
            expected = serial.step_batch(np.arange(number, number + 120), state)
            assert_same(futures[number].result(60), expected)
