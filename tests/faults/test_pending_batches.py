"""`blocking=False` while workers hang: calls return at once, and errors come with the results."""

from __future__ import annotations

import time

import numpy as np
from comparing import assert_same
from playground import CounterEnv, Meeting, Trap, refuse, sending

from plangym_like.constructors import ParallelEnv

COUNTS = (1, 2, 60)


def test_calls_return_while_every_worker_hangs(serial: CounterEnv, meeting: Meeting) -> None:
    state = serial.get_state()

    def harm(action: int) -> None:
        if action == 70:
            refuse(action)
        meeting(action)

    trap = Trap(harm, [0, 1, 70])
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True, trap=trap) as env:
        sending(env)
        first = env.step_batch([0, 1], state, blocking=False)
        for _ in range(2):
            meeting.next_report()
        pending, seconds = [], []
        for number in range(18):
            actions = np.arange(2, 2 + COUNTS[number % 3])
            begun = time.thread_time()
            future = env.step_batch(actions, state, blocking=False)
            seconds.append(time.thread_time() - begun)
            pending.append((actions, future))
        refused = env.step_batch([69, 70, 71], state, blocking=False)
        # What is under test is that these lines are reached: nothing has let the workers go on.
        assert not first.done() and not refused.done()
        assert not any(future.done() for _, future in pending)
        meeting.let_go(2)
        assert isinstance(refused.exception(100), ArithmeticError)
        for actions, future in reversed(pending):
            assert_same(future.result(100), serial.step_batch(actions, state))
        assert_same(first.result(100), serial.step_batch([0, 1], state))
    assert min(seconds) < 1e-3  # of this thread's CPU time
