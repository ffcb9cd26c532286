"""Environments made and used in odd places: busy threads, daemons, pools, forks, with torch."""

from __future__ import annotations

import pytest
from hosted import run_script

AFTER_FORK = """
import os, traceback
import numpy as np
import plangym_like
from plangym_like.errors import ClosedError

env = plangym_like.make("CartPole-v1", n_workers=2, isolate=True)
state = env.reset(seed=0).state
expected = env.step_batch(np.arange(50) % 2, state)
for _ in range({times}):
    future = env.step_batch(np.arange(50) % 2, state, blocking=False)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for use in (lambda: env.step_batch([0, 1], state), future):
                try:
                    use()
                except ClosedError:
                    continue
                raise AssertionError("a copy must not use its parent's workers")
            assert env.step(0).reward == 1.0  # the simulator is its own
            with plangym_like.make("CartPole-v1", n_workers=2, isolate=True) as own:
                ours = own.step_batch(np.arange(50) % 2, state)
                assert ours.states.tobytes() == expected.states.tobytes()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    again = env.step_batch(np.arange(50) % 2, state)
    assert again.states.tobytes() == expected.states.tobytes()
assert future().states.tobytes() == expected.states.tobytes()
env.close()
print("fine")
"""


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.full)])
def test_after_a_fork_of_the_users_program(times: int) -> None:
    result = run_script(AFTER_FORK.format(times=times))
    assert (result.stdout, result.returncode) == ("fine\n", 0), result.stderr
