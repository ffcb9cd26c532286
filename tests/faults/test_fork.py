"""A program that forks while another thread of it uses an environment: the copy never hangs."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from hosted import run_script
from usual import first_of

import plangym_like
from plangym_like.errors import ClosedError

SERIAL = """
import os, threading, warnings
import gymnasium
import numpy as np
import plangym_like
from plangym_like.errors import ClosedError

# From Python 3.12 on, it warns of just what is done here.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
inside, leave = threading.Event(), threading.Event()
waits = False

class Slow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1000, (1,), np.int64)
    action_space = gymnasium.spaces.Discrete(2)
    owner = os.getpid()
    state_attributes = ("count",)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.int64), {}

    def step(self, action):
        if action == 1 and os.getpid() == self.owner and waits:
            inside.set()
            leave.wait()
        self.count += 1
        return np.array([self.count]), 1.0, False, False, {}

busy, idle = plangym_like.make(Slow), plangym_like.make(Slow)
state = busy.reset(seed=0).state
idle.reset(seed=0)
idle.step(0)
waits = True
thread = threading.Thread(target=lambda: USE, daemon=True)
thread.start()
assert inside.wait(60)
if (pid := os.fork()) == 0:
    for use in (
        busy.reset,
        busy.get_image,
        lambda: busy.step(0),
        lambda: busy.set_state(state),
        lambda: busy.step_batch([0], state),
        lambda: busy.rollout_batch([[0]], state),
    ):
        try:
            use()
        except (ClosedError, RuntimeError) as error:
            assert "forked" in str(error) and "make another one" in str(error), error
        else:
            os._exit(2)
    with plangym_like.make(Slow) as other:
        assert other.step(0, state).obs.tolist() == [1]
        assert other.step_batch([0, 1], state).obs.tolist() == [[1], [1]]
    busy.close()
    assert idle.step(0).obs.tolist() == [2]  # no thread was using this one
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
leave.set()
thread.join()
assert busy.step(0, state).obs.tolist() == [1]
print("fine")
"""


THREADS = """
import os, sys, warnings
import numpy as np
import plangym_like

# From Python 3.12 on, it warns of just what is done here.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
os.sched_getaffinity = lambda pid: {0, 1}
env = plangym_like.make("HalfCheetah-v5", n_workers=2)
state = env.reset(seed=0).state
env.step_batch(np.zeros((300, 6)), state)
pid = os.fork()
if pid == 0:
    del env
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
env.step_batch(np.zeros((300, 6)), state)
assert env.stats.rows_sent == 0
print("fine")
"""


def test_a_copy_ends_without_the_threads_of_mujoco() -> None:
    pytest.importorskip("mujoco.batch")
    result = run_script(THREADS, timeout=300)
    assert (result.stdout, result.returncode) == ("fine\n", 0), result.stderr


@pytest.mark.parametrize("use", first_of(["busy.step(1)", "busy.step_batch([0, 1], state)"]))
def test_a_copy_does_not_wait_for_a_thread_that_it_lacks(use: str) -> None:
    result = run_script(SERIAL.replace("USE", use), timeout=300)
    assert (result.stdout, result.returncode) == ("fine\n", 0), result.stderr


def test_a_copy_does_not_disturb_a_pending_batch() -> None:
    actions = np.zeros(2000, np.int64)
    with plangym_like.make("CartPole-v1", n_workers=2, isolate=True, audit="off") as env:
        state = env.reset(seed=0).state
        expected = env.step_batch(actions, state).states
        pids = [worker.pid for worker in env.executor]
        for each in pids:  # so that the batch is pending until the copy has ended
            os.kill(each, signal.SIGSTOP)
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
        for each in pids:
            os.kill(each, signal.SIGCONT)
        assert np.array_equal(future.result(60).states, expected)
        assert env.stats.deaths == 0


def test_a_copy_does_not_write_to_pending_environments() -> None:
    actions = np.zeros(4, np.int64)
    with plangym_like.make_vec("ALE/Pong-v5", 4, n_workers=2, batch_size=4) as envs:
        envs.reset(seed=0)
        envs.send(actions)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with pytest.raises(ClosedError, match="forked"):
                    envs.recv()
                envs.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert envs.recv()[0].shape == (4, 210, 160, 3)
