"""A program that forks while another thread of it uses an environment: the copy never hangs."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hosted import run_script
from usual import first_of

import plangym_like
from plangym_like.errors import ClosedError

HEAD = """
import os, signal, sys, threading, time, traceback, warnings
import gymnasium
import numpy as np
import plangym_like
from gymnasium import spaces
from plangym_like.errors import ClosedError
from plangym_like.processes.external_process import ExternalProcess

# From Python 3.12 on, it warns of just what is done here.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

inside, leave = threading.Event(), threading.Event()

class Slow(gymnasium.Env):
    '''Action 1 waits, in the process that made it only.'''
    observation_space = spaces.Box(0, 1000, (1,), np.int64)
    action_space = spaces.Discrete(2)
    owner = os.getpid()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = np.zeros(1, np.int64)
        return self.count.copy(), {}

    def step(self, action):
        if action == 1 and os.getpid() == self.owner and waits:
            inside.set()
            leave.wait()
        self.count += 1
        return self.count.copy(), 1.0, False, False, {}

    def save_state(self):
        return self.count.tobytes()

    def load_state(self, state):
        self.count = np.frombuffer(state, np.int64).copy()

waits = False

def in_thread(work):
    '''Start a thread, and wait until `work` has set `inside`.'''
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert inside.wait(60)
    return thread

def in_child(work):
    '''Fork, do `work` in the copy, and wait until it has ended.'''
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    until = time.monotonic() + 90
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            print("the copy hangs")
            until = float("inf")
        time.sleep(0.01)
    assert ended[1] == 0

def refuses(use, *words):
    try:
        use()
    except (ClosedError, RuntimeError) as error:
        assert all(word in str(error) for word in words), str(error)
    else:
        raise AssertionError("it was not refused")
"""

SERIAL = (
    HEAD
    + """
busy, idle = plangym_like.make(Slow), plangym_like.make(Slow)
state = busy.reset(seed=0).state
idle.reset(seed=0)
idle.step(0)
waits = True
thread = in_thread(lambda: USE)

def work():
    for use in (
        busy.reset,
        busy.get_image,
        lambda: busy.step(0),
        lambda: busy.set_state(state),
        lambda: busy.step(0, state),
        lambda: busy.step_batch([0], state),
        lambda: busy.rollout_batch([[0]], state),
    ):
        refuses(use, "forked", "make another one")
    with plangym_like.make(Slow) as other:
        assert other.step(0, state).obs.tolist() == [1]
        assert other.step_batch([0, 1], state).obs.tolist() == [[1], [1]]
    busy.close()
    # No thread was using this one.
    assert idle.step(0).obs.tolist() == [2]

in_child(work)
in_child(lambda: in_child(work))
leave.set()
thread.join()
assert busy.step(0, state).obs.tolist() == [1]
print("fine")
"""
)


@pytest.mark.parametrize("use", first_of(["busy.step(1)", "busy.step_batch([0, 1], state)"]))
def test_a_copy_does_not_wait_for_a_thread_that_it_lacks(use: str) -> None:
    result = run_script(SERIAL.replace("USE", use), timeout=300)
    assert (result.stdout, result.returncode) == ("fine\n", 0), result.stderr


def test_a_copy_does_not_disturb_a_pending_batch() -> None:
    actions = np.zeros(2000, np.int64)
    with plangym_like.make("CartPole-v1", n_workers=2, isolate=True, audit="off") as env:
        state = env.reset(seed=0).state
        expected = env.step_batch(actions, state).states
        future = env.step_batch(actions, state, blocking=False)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with pytest.raises(ClosedError, match="forked"):
                    future.result(60)
                with pytest.raises(ClosedError, match="forked"):
                    env.step_batch(actions, state)
                env.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert np.array_equal(future.result(60).states, expected)
        assert env.stats.deaths == 0
