"""What batches on many processes cost: memory, descriptors, threads, processes, time to start."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from comparing import content
from hosted import descriptors, run_script, script_environ, wait_until_gone, workers
from playground import CounterEnv, refuse, sending
from usual import first_of

import plangym_like as pl
from plangym_like.constructors import ParallelEnv
from plangym_like.errors import ClosedError

MEGABYTE = 1 << 20


def private_nbytes(pid: int | str = "self") -> int:
    """Return how much memory a process has to itself."""
    words = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(word[1]) << 10 for word in words if word[0].startswith("Private_"))


def mapped_blocks(pid: int | str = "self") -> int:
    """Return how many blocks of shared memory a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("/memfd:plangym_like")


def footprint(env: ParallelEnv) -> dict[str, Any]:
    """Return what a parallel environment holds, here and in its workers; memory comes last."""
    gc.collect()
    pids = [process.pid for process in env.batch_env]
    return {
        "descriptors": sorted(descriptor.split()[1] for descriptor in descriptors()),
        "threads": threading.active_count(),
        "blocks": mapped_blocks(),
        "workers": pids,
        "workers' descriptors": [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids],
        "workers' blocks": [mapped_blocks(pid) for pid in pids],
        "memory": [private_nbytes(), *map(private_nbytes, pids)],
    }


def assert_no_growth(
    before: dict[str, Any], after: dict[str, Any], slack: int, *, blocks: int = 0
) -> None:
    """Fail if anything became more, memory by more than `slack` bytes in any process.

    `blocks`: how many more blocks there may be by chance, with a descriptor for each.
    """
    memory = zip(before.pop("memory"), after.pop("memory"), strict=True)
    if blocks:
        for held in (before, after):
            held["descriptors"] = len(held["descriptors"])
        for key in ("descriptors", "blocks", "workers' descriptors", "workers' blocks"):
            was, is_now = np.array(before.pop(key)), np.array(after.pop(key))
            assert (is_now <= was + blocks).all(), (key, was, is_now)
    assert after == before
    for was, is_now in memory:
        assert is_now - was < slack


def assert_comes_to_rest(
    env: ParallelEnv, run: Callable[[int], None], times: int, slack: int, *, blocks: int = 0
) -> None:
    """Fail if `run` takes more each time; what a worker needs once, it may need at any time."""
    for attempt in range(3):
        before = footprint(env)
        run(times)
        try:
            assert_no_growth(before, footprint(env), slack, blocks=blocks)
        except AssertionError:
            if attempt == 2:
                raise
        else:
            return


# A steady loop


@pytest.mark.parametrize(
    "way", first_of(["isolated", "failures", "with the caller", "futures", "dropped"])
)
def test_hundreds_of_batches_leave_nothing(way: str) -> None:
    def refuse_some(action: int) -> None:
        if action == 99 and way == "failures":
            refuse(action)

    isolate = way != "with the caller"
    with ParallelEnv(CounterEnv, "toy", n_workers=3, isolate=isolate, trap=refuse_some) as env:
        sending(env)
        state = env.reset(seed=0).state
        actions = np.arange(100 if way == "failures" else 64)

        def run(times: int) -> None:
            states: Any = state
            for _ in range(times):
                if way == "futures":
                    states = env.step_batch(actions, states, blocking=False)().states
                elif way == "dropped":
                    env.step_batch(actions, states, blocking=False)
                elif way == "failures":
                    with pytest.raises(ArithmeticError):
                        env.step_batch(actions, states)
                else:
                    states = env.step_batch(actions, states).states

        run(100)
        # Workers may be in a row of a dropped batch, so its blocks are not used again at once.
        blocks = 4 * len(env.batch_env) if way == "dropped" else 0
        assert_comes_to_rest(env, run, 500, MEGABYTE, blocks=blocks)


@pytest.mark.parametrize(
    ("obs_type", "times", "count"),
    [
        pytest.param("ram", 60, 32, marks=pytest.mark.full),
        pytest.param("ram", 1000, 64, marks=pytest.mark.full),
        pytest.param("rgb", 1000, 64, marks=pytest.mark.full),
    ],
)
def test_a_thousand_batches_of_a_real_game(obs_type: str, times: int, count: int) -> None:
    pytest.importorskip("ale_py")
    kwargs = {"obs_type": obs_type, "frameskip": 1, "isolate": True}
    with pl.make("ALE/MsPacman-v5", n_workers=2, **kwargs) as env:
        states: Any = env.reset(seed=0).state
        rng = np.random.default_rng(0)

        def run(times: int) -> None:
            nonlocal states
            for _ in range(times):
                states = env.step_batch(rng.integers(0, 9, count), states).states

        run(20)
        assert_comes_to_rest(env, run, times, 2 * MEGABYTE)


@pytest.mark.full
def test_sizes_that_change_leave_nothing_either() -> None:
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True) as env:
        state = env.reset(seed=0).state
        rng = np.random.default_rng(0)

        def run(times: int) -> None:
            for _ in range(times):
                env.step_batch(rng.integers(0, 4096, int(rng.integers(1, 4000))), state)

        run(100)
        # How many blocks are kept varies with their sizes, but it is bounded.
        assert_comes_to_rest(env, run, 200, 2 * MEGABYTE, blocks=20)
        after = footprint(env)
    assert after["blocks"] < 20
    assert max(after["workers' blocks"]) < 20


# Rows that are kept

KEEPER = """
import resource
import sys
import numpy as np
import plangym_like as pl

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
name, times = sys.argv[1], int(sys.argv[2])
kwargs = {"obs_type": "ram", "frameskip": 1} if name.startswith("ALE") else {}
rng = np.random.default_rng(0)
with pl.make(name, n_workers=2, isolate=True, **kwargs) as env, pl.make(name, **kwargs) as one:
    state = env.reset(seed=0).state
    kept, wanted = [], []
    for index in range(times):
        actions = rng.integers(0, env.action_space.n, 4)
        result = env.step_batch(actions, state)
        row = int(rng.integers(4))
        kept.append((result.states[row], result.obs[row], result.rewards[row:]))
        if index % 50 == 0:
            wanted.append((index, row, actions))
        state = result.states[0] if index % 40 else one.reset(seed=index).state
        if index % 50 == 0:
            before = one.step_batch(actions, kept[-1][0])
            wanted[-1] += (before.rewards, kept[-1][0].tobytes(), kept[-1][1].tobytes())
    for index, row, actions, rewards, state, obs in wanted:
        assert kept[index][0].tobytes() == state
        assert kept[index][1].tobytes() == obs
        assert (one.step_batch(actions, kept[index][0]).rewards == rewards).all()
print(len(kept))
"""


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("CartPole-v1", 1000),
        pytest.param("ALE/MsPacman-v5", 200, marks=pytest.mark.full),
        pytest.param("ALE/MsPacman-v5", 5000, marks=pytest.mark.full),
    ],
)
def test_a_caller_may_keep_rows_of_many_batches(name: str, times: int, tmp_path: Path) -> None:
    if name.startswith("ALE"):
        pytest.importorskip("ale_py")
    path = tmp_path / "keeper.py"
    path.write_text(KEEPER)
    result = subprocess.run(
        [sys.executable, "-W", "error", str(path), name, str(times)],
        capture_output=True,
        text=True,
        timeout=600,
        env=script_environ(),
        check=False,
    )
    assert (result.returncode, result.stdout.split()[-1:]) == (0, [str(times)]), result.stderr


def test_one_kept_row_pins_no_shared_memory_beyond_a_few_blocks() -> None:
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True) as env:
        state = env.reset(seed=0).state
        kept = [env.step_batch(np.arange(2000), state).states[7] for _ in range(60)]
        assert mapped_blocks() < 20
        assert len({row.tobytes() for row in kept}) == 1
        del kept
        gc.collect()
        env.step_batch(np.arange(2000), state)
        assert mapped_blocks() < 20


# Processes


@pytest.mark.full
def test_cycles_of_making_and_closing() -> None:
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True):
        pass
    gc.collect()
    before = descriptors(), len(workers()), threading.active_count(), mapped_blocks()
    for index in range(50):
        env = ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=bool(index % 2))
        if index % 3:
            env.step_batch(np.arange(8), env.reset().state)
        env.close()
    del env
    gc.collect()
    assert (descriptors(), len(workers()), threading.active_count(), mapped_blocks()) == before


def test_an_env_that_is_dropped_takes_its_processes_along() -> None:
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True):
        pass
    gc.collect()
    before = descriptors(), mapped_blocks()
    gc.disable()
    try:
        env = ParallelEnv(CounterEnv, "toy", n_workers=3, isolate=True)
        result = env.step_batch(np.arange(90), env.reset(seed=1).state)
        env.step_batch(np.arange(90), result.states, blocking=False)
        pids = [process.pid for process in env.batch_env]
        del env
        assert all(wait_until_gone(pid, 0) for pid in pids)
        total = int(result.rewards.sum())
        del result
    finally:
        gc.enable()
    assert total > 0
    assert (descriptors(), mapped_blocks()) == before


def test_errors_keep_nothing_alive() -> None:
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True):
        pass
    gc.collect()
    before = descriptors(), mapped_blocks()
    gc.disable()
    try:
        env = ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True, trap=refuse)
        sending(env)
        state, pids = env.reset(seed=1).state, [process.pid for process in env.batch_env]
        errors = []
        for blocking in (True, False):
            try:
                result = env.step_batch(np.arange(50), state, blocking=blocking)
                result()
            except ArithmeticError as error:
                errors.append(error)
        assert len(errors) == 2
        errors.clear()
        del env, result
        assert all(wait_until_gone(pid, 0) for pid in pids)
    finally:
        gc.enable()
    assert (descriptors(), mapped_blocks()) == before


def test_kept_errors_pin_no_results() -> None:
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True, trap=refuse) as env:
        state, errors = env.reset(seed=1).state, []
        for _ in range(30):
            with pytest.raises(ArithmeticError) as caught:
                env.step_batch(np.arange(50), state)
            errors.append(caught.value)
            rows = env.batch_env.pool
            while rows._leftover:  # the other worker may still be stepping a row
                rows.wait(0.01, None)
                rows.release_unused()
            for pool in env.batch_env._pools.values():
                pool.give(pool.take(1))  # this looks which arrays have been dropped
                assert not pool._lent


def test_a_constructor_that_fails_here_leaves_no_process() -> None:
    def construct(name: str, **kwargs: Any) -> CounterEnv:
        raise LookupError("not here")

    before = len(workers())
    with pytest.raises(LookupError, match="not here"):
        ParallelEnv(construct, "toy", n_workers=2)
    assert len(workers()) == before


@pytest.mark.parametrize("isolate", [True, False])
def test_a_forked_copy_of_the_program_keeps_its_results(isolate: bool) -> None:
    options: dict[str, Any] = {"n_workers": 2, "isolate": isolate}
    with CounterEnv("toy") as one, ParallelEnv(CounterEnv, "toy", **options) as env:
        state = one.reset(seed=1).state
        actions = np.arange(500)
        expected = content(one.step_batch(actions, state))
        result: Any = env.step_batch(actions, state)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.read(read, 1)
                status = _look_in_copy(env, actions, state, result, expected)
            finally:
                os._exit(status)
        del result
        for index in range(20):
            env.step_batch(actions + index, state)
        os.write(write, b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert content(env.step_batch(actions, state)) == expected
        os.close(read)
        os.close(write)


def _look_in_copy(env: ParallelEnv, actions: Any, state: Any, result: Any, expected: bytes) -> int:
    if content(result) != expected:
        return 2
    for some in (actions, actions[:1]):
        try:
            env.step_batch(some, state)
        except ClosedError as error:
            if "forked" not in str(error):
                return 4
        else:
            return 3
    with env.clone() as other:
        if content(other.step_batch(actions, state)) != expected:
            return 5
    env.close()
    return 0


def test_a_worker_that_was_restarted_by_hand_is_sent_everything_again() -> None:
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True) as env:
        state = env.reset(seed=1).state
        expected = content(env.step_batch(np.arange(90), state))
        env.batch_env[0].restart()
        assert content(env.step_batch(np.arange(90), state)) == expected


CTRL_C = """
import numpy as np
import plangym_like as pl

env = pl.make("CartPole-v1", n_workers=2, isolate=True)
state = env.reset(seed=0).state
env.step_batch(np.zeros(64, int), state)
print(*(process.pid for process in env.batch_env), flush=True)
while True:
    env.step_batch(np.zeros(64, int), state)
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    """A program that steps batches until it is stopped, in its own process group."""
    with subprocess.Popen(
        [sys.executable, "-c", CTRL_C],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=script_environ(),
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_ctrl_c_on_the_terminal_ends_everything_with_one_traceback(
    program: subprocess.Popen[str],
) -> None:
    assert program.stdout is not None
    pids = [int(word) for word in program.stdout.readline().split()]
    assert len(pids) == 2
    os.killpg(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=100)
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert all(wait_until_gone(pid, 100) for pid in pids)


def test_no_worker_outlives_a_killed_program(program: subprocess.Popen[str]) -> None:
    assert program.stdout is not None
    pids = [int(word) for word in program.stdout.readline().split()]
    fork_server = psutil.Process(program.pid).children()
    program.kill()
    assert all(wait_until_gone(pid, 100) for pid in pids)
    assert all(wait_until_gone(child.pid, 100) for child in fork_server)


# Memory of a worker, and time to start


# A separate program, since workers of this one start with what earlier tests preloaded.
GAME = """
import json
import numpy as np
import psutil
import plangym_like as pl

with pl.make("ALE/MsPacman-v5", n_workers=2, isolate=True) as env:
    state = env.reset(seed=0).state
    for _ in range(3):
        env.step_batch(np.arange(128) % 9, state)
    for process in env.batch_env:
        loaded = process.apply(lambda env: list(__import__("sys").modules))(100)
        print(json.dumps([psutil.Process(process.pid).memory_full_info().uss, loaded]))
"""


def test_a_worker_needs_little_memory_of_its_own() -> None:
    pytest.importorskip("ale_py")
    result = run_script(GAME)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        own_nbytes, loaded = json.loads(line)
        assert own_nbytes < 90 * MEGABYTE
        assert "ale_py" in loaded
        assert not {"torch", "ray", "pygame", "matplotlib", "cv2", "pytest"} & set(loaded)


STOPWATCH = """
import time
start = time.perf_counter()
import numpy as np
import plangym_like as pl

def first_batch():
    begun = time.perf_counter()
    env = pl.make({name!r}, n_workers=2, isolate={isolate})
    state = env.reset(seed=0).state
    env.step_batch(np.zeros(16, int), state)
    return env, time.perf_counter() - begun

one, _ = first_batch()
cold = time.perf_counter() - start
other, warm = first_batch()

# How much longer everything takes because others use the machine as well.
wall, own = time.perf_counter(), time.process_time()
while time.process_time() - own < 0.1:
    pass
print(cold, warm, (time.perf_counter() - wall) / 0.1)
"""


@pytest.mark.full
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("name", first_of(["ALE/MsPacman-v5", "CartPole-v1"]))
def test_the_first_batch_comes_soon(name: str, isolate: bool) -> None:
    if name.startswith("ALE"):
        pytest.importorskip("ale_py")
    measured = []
    for _ in range(5):
        result = run_script(STOPWATCH.format(name=name, isolate=isolate))
        assert result.returncode == 0, result.stderr
        cold, warm, slowdown = (float(word) for word in result.stdout.split())
        measured.append([cold / max(1.0, slowdown), warm / max(1.0, slowdown)])
        cold, warm = np.min(measured, axis=0)
        if cold < 1.5 and warm < 0.5:
            break
    assert cold < 1.5
    assert warm < 0.5


# Scripts without a guard

SESSION = """
import gymnasium
import numpy as np
import plangym_like

class Doubled(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2 * float(reward)

class Lamp(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.glow = 0.0
        return self.look(), {}

    def look(self):
        return np.array([self.glow, self.glow / 2], np.float32)

    def step(self, action):
        self.glow = (self.glow + action / 7 + self.np_random.random()) % 1
        return self.look(), self.glow, self.glow > 0.95, False, {}

print("session")
for name, kwargs in (("CartPole-v1", {"wrappers": [Doubled]}), (Lamp, {}), (lambda: Lamp(), {})):
    env = plangym_like.make(name, n_workers=2, isolate=True, **kwargs)
    state, obs, info = env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, env.action_space.n, 256)
    states, obs, rewards, terminateds, truncateds, infos = env.step_batch(actions, state, dt=4)
    with plangym_like.make(name, **kwargs) as one:
        assert (one.step_batch(actions, state, dt=4).obs == obs).all()
    best = int(rewards.argmax())
    state, obs, reward, terminated, truncated, info = env.step(actions[0], state=states[best])
    print(env.stats.rows_sent >= 256, infos[0]["n_step"] <= 4)
    env.close()
"""


@pytest.mark.parametrize("way", first_of(["stdin", "file"]))
def test_a_session_needs_no_guard(way: str, tmp_path: Path) -> None:
    result = run_script(SESSION, path=tmp_path / "session.py" if way == "file" else None)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "session\n" + "True True\n" * 3
    # Whether `make` suggests a faster way to save the state depends on the machine's speed.
    told = [line for line in result.stderr.splitlines() if "state_attributes" not in line]
    assert told == []
