"""Environments come and go, in good ways and bad, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hosted import descriptors, workers
from playground import CounterEnv, Trap, leave, sending

from plangym_like.constructors import ParallelEnv
from plangym_like.processes import start_methods

MEGABYTE = 1 << 20


def fork_server_main() -> psutil.Process:
    return psutil.Process(start_methods._current.pid)


def holdings() -> dict[str, Any]:
    """Return what this process holds, and the one that its workers are forked from."""
    gc.collect()
    here, birthplace = psutil.Process(), fork_server_main()
    return {
        "processes": [child.pid for child in workers()],
        "descriptors": sorted(words.split()[1].split(":")[0] for words in descriptors()),
        "threads": [thread.name for thread in threading.enumerate()],
        "blocks": Path("/proc/self/maps").read_text().count("/memfd:plangym_like"),
        "named": sorted(name for name in os.listdir("/dev/shm") if "plangym" in name),
        "fork_server": (birthplace.pid, birthplace.num_fds(), birthplace.num_threads()),
        "memory": [here.memory_full_info().uss, birthplace.memory_full_info().uss],
    }


def _without_memory(held: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in held.items() if name != "memory"}


def assert_nothing_more(before: dict[str, Any], after: dict[str, Any]) -> None:
    memory = list(zip(before.pop("memory"), after.pop("memory"), strict=True))
    assert after == before
    assert all(is_now - was < 5 * MEGABYTE for was, is_now in memory), memory


def use(env: ParallelEnv) -> None:
    state = env.reset(seed=0).state
    result = env.step_batch(np.arange(64), state)
    env.step_batch(np.arange(64), result.states, blocking=False)


def close_properly(number: int) -> None:
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True) as env:
        if number % 2:  # the others are closed while they start
            use(sending(env))


def drop(number: int) -> None:
    env: Any = ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=number % 2 == 0)
    if number % 3:
        use(sending(env))
        env.circle = env  # only the garbage collector finds it
    del env
    gc.collect()


def lose_workers(number: int) -> None:
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True, trap=Trap(leave, [5])) as env:
        sending(env)
        env.step_batch(np.arange(10), env.reset(seed=0).state, on_error="mask")


@pytest.fixture
def nothing_more() -> Iterator[Callable[..., None]]:
    """``nothing_more(function, times)``: the first few calls may warm things up."""

    def run(function: Callable[[int], None], times: int, first: int = 6) -> None:
        for number in range(first):
            function(number)
        before = holdings()
        for number in range(times):
            function(number)
        until = time.monotonic() + 100
        # Workers that were killed, and what the kernel keeps of them, take a moment to be gone.
        while _without_memory(after := holdings()) != _without_memory(before):
            if time.monotonic() > until:
                break
            time.sleep(0.1)
        assert_nothing_more(before, after)

    yield run


@pytest.mark.parametrize(
    ("function", "times"),
    [
        (lose_workers, 3),
        pytest.param(close_properly, 500, marks=pytest.mark.full),
        pytest.param(drop, 51, marks=pytest.mark.full),
        pytest.param(lose_workers, 30, marks=pytest.mark.full),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_nothing_is_left(
    nothing_more: Callable[..., None], function: Callable[[int], None], times: int
) -> None:
    nothing_more(function, times)
