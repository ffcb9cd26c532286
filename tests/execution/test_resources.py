"""What batches on many processes cost: memory, descriptors, threads, processes, time to start."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import content
from hosted import descriptors, script_environ, wait_until_gone, workers
from playground import CounterEnv, refuse, sending
from usual import first_of

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


# Rows that are kept


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
