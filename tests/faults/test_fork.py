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
        busy.get_state,
        busy.get_image,
        lambda: busy.step(0),
        lambda: busy.set_state(state),
        lambda: busy.step(0, state),
        lambda: busy.step_batch([0], state),
        lambda: busy.rollout_batch([[0]], state),
        lambda: busy.simulator,
    ):
        refuses(use, "Slow", "forked", "clone")
    with busy.clone() as other:
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

PARALLEL = (
    HEAD
    + """
env = plangym_like.make(Slow, n_workers=1)
state = env.reset(seed=0).state
waits = True
# This process steps rows as well, with the environment's lock held.
thread = in_thread(lambda: env.step(1, state))

def work():
    refuses(lambda: env.step(0, state), "forked", "clone")
    refuses(env.reset, "Slow", "forked", "clone")
    refuses(lambda: env.step_batch([0, 0], state), "forked")
    with env.clone() as other:
        assert other.step(0, state).obs.tolist() == [1]
        assert other.step_batch([0, 1] * 20, state).obs.tolist() == [[1]] * 40
    env.close()

in_child(work)
leave.set()
thread.join()
env.close()
print("fine")
"""
)

VECTORISED = (
    HEAD
    + """
from plangym_like.vector.process_lanes import ProcessLanes
from plangym_like.vector.vector_env import PlanVectorEnv

envs = PlanVectorEnv(ProcessLanes("FrozenLake-v1", 4, 2), copy=False)
observations, _ = envs.reset(seed=0)

def work():
    refuses(lambda: envs.step([0] * 4), "forked", "others")
    refuses(envs.reset, "forked", "others")
    refuses(envs.get_states, "forked", "others")
    envs.close()

in_child(work)
assert observations.tolist() == [0] * 4
assert envs.step([2] * 4)[0].shape == (4,)
assert envs.stats.deaths == 0
envs.close()
print("fine")
"""
)

HELD_LOCKS = (
    HEAD
    + """
from plangym_like.processes import start_methods
from plangym_like.cluster import ray_session

process = ExternalProcess(lambda: [1, 2, 3])
process.wait_ready()

def hold_all():
    locks = (process._restarting, process._child._lock, start_methods._lock, ray_session._lock)
    for lock in (*locks, process._lock):
        lock.acquire()
    inside.set()
    leave.wait()

thread = in_thread(hold_all)

def work():
    refuses(lambda: process.index(3), "forked")
    process.exitcode, process.is_alive(), repr(process)
    process.close()
    with ExternalProcess(lambda: [1, 2, 3]) as other:
        assert other.index(3) == 2
    with ray_session._lock:
        pass

try:
    in_child(work)
    os.write(1, b"fine\\n")
finally:
    os._exit(0)  # the thread holds what an orderly end would take
"""
)

ARCHIVES = (
    HEAD
    + """
import tempfile
from plangym_like import StateArchive

env = plangym_like.make("CartPole-v1")
rows = np.tile(env.reset(seed=0)[0], (100, 1))
in_memory = StateArchive(env, {"tag": int})
in_files = StateArchive(env, {"tag": int}, directory=tempfile.gettempdir())
for archive in (in_memory, in_files):
    archive.add(rows, tag=1)

def hold():
    with in_memory._lock, in_files._lock:
        inside.set()
        leave.wait()

thread = in_thread(hold)

def work():
    for archive in (in_memory, in_files):
        assert np.array_equal(archive.get(np.arange(100)), rows)
        assert archive.find(rows[:1]) == 0
    in_memory.add(rows, tag=2)
    in_memory["tag"][:] = 2
    refuses(lambda: in_files.add(rows), "forked", "save it")
    assert not in_files["tag"].flags.writeable

in_child(work)
leave.set()
thread.join()
for archive in (in_memory, in_files):
    archive.add(rows, tag=1)
    archive["tag"][0] = 1
    assert (archive["tag"] == 1).all() and len(archive) == 200
os.write(1, b"fine\\n")
"""
)


@pytest.mark.parametrize("use", first_of(["busy.step(1)", "busy.step_batch([0, 1], state)"]))
def test_a_copy_does_not_wait_for_a_thread_that_it_lacks(use: str) -> None:
    result = run_script(SERIAL.replace("USE", use), timeout=300)
    assert (result.stdout, result.returncode) == ("fine\n", 0), result.stderr


def test_a_copy_of_a_program_with_lanes(tmp_path: object) -> None:
    path = tmp_path / "program.py"  # type: ignore[operator]
    result = run_script(PARALLEL, path=path, timeout=300)
    assert (result.stdout, result.returncode) == ("fine\n", 0), result.stderr


@pytest.mark.full
def test_a_copy_of_a_program_with_environments_in_processes(tmp_path: object) -> None:
    path = tmp_path / "program.py"  # type: ignore[operator]
    result = run_script(VECTORISED, path=path, timeout=300)
    assert (result.stdout, result.returncode) == ("fine\n", 0), result.stderr


@pytest.mark.full
def test_no_lock_of_the_package_stays_locked_in_a_copy() -> None:
    result = run_script(HELD_LOCKS, timeout=300)
    assert (result.stdout, result.returncode) == ("fine\n", 0), result.stderr


@pytest.mark.full
def test_a_copy_of_a_program_with_archives_does_not_write_to_its_files() -> None:
    result = run_script(ARCHIVES, timeout=300)
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


FORKED_IN_C = """
import atexit, ctypes, os, sys
from plangym_like.errors import ClosedError
from plangym_like.processes.external_process import ExternalProcess

method, ending = sys.argv[1:]
process = ExternalProcess(lambda: [1, 2, 3], start_method=method)
process.wait_ready()
pid = ctypes.PyDLL(None).fork()  # Python's own hooks do not run
if pid == 0:
    status = 1
    try:
        if ending == "used":
            assert not process.is_alive() and process.exitcode is None
            try:
                process.index(3)
            except ClosedError as error:
                assert "forked" in str(error)
                process.kill()
                process.close()
                status = 0
        else:
            atexit._run_exitfuncs()  # what the end of a program does
            status = 0
    finally:
        os._exit(status)
print(os.waitpid(pid, 0)[1], process.index(3))
with ExternalProcess(lambda: [1, 2, 3], start_method=method) as other:
    print(other.index(2))
process.apply(lambda numbers: os._exit(4))
try:
    process.index(1)
except Exception as error:
    print(type(error).__name__, error.exitcode)
"""


@pytest.mark.parametrize("method", first_of(["forkserver", "spawn", "fork"]))
@pytest.mark.parametrize("ending", first_of(["used", "ended"]))
def test_a_copy_that_was_forked_in_c_ends_no_worker(method: str, ending: str) -> None:
    arguments = f"import sys; sys.argv[1:] = [{method!r}, {ending!r}]\n"
    result = run_script(arguments + FORKED_IN_C)
    assert result.stdout == "0 2\n1\nWorkerDiedError 4\n", result.stderr
