"""Ctrl-C at random times: the next batches are right, and nothing is left over."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from hosted import workers
from playground import sending
from usual import first_of

import plangym_like

MANY, FEW = np.arange(40) % 2, np.arange(30) // 3 % 2
WORKERS = {"shared": {"n_workers": 2}, "isolated": {"n_workers": 2, "isolate": True}}
Step = Callable[..., Any]


def one(env: Any, step: Step) -> None:
    step(MANY)


def futures(env: Any, step: Step) -> None:
    first, second = step(MANY, blocking=False), step(FEW, blocking=False)
    second.result(60)
    first.result(60)


def given_up(env: Any, step: Step) -> None:
    first, second = step(MANY, blocking=False), step(FEW, blocking=False)
    first.cancel()
    del first
    second.result(60)


def death(env: Any, step: Step) -> None:
    # So many in a row would be an error, also of workers that were not ready yet.
    env.batch_env.pool.policy.note_progress()
    env.batch_env.pool.policy.note_ready()
    env.batch_env[0].kill()
    step(MANY)


@pytest.fixture(params=first_of(WORKERS))
def env(request: pytest.FixtureRequest) -> Iterator[Any]:
    with plangym_like.make("CartPole-v1", **WORKERS[request.param], audit="off") as env:
        sending(env)
        yield env


@pytest.fixture
def strike() -> Iterator[Callable[[float], None]]:
    """Set a time, in seconds, after which Ctrl-C is pressed."""
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("ignored_errors")
@pytest.mark.parametrize("wanted", [6, pytest.param(200, marks=pytest.mark.full)])
@pytest.mark.parametrize("use", first_of([one, death, futures, given_up], 2))
def test_ctrl_c_at_random_times(
    env: Any, use: Callable[[Any, Step], None], wanted: int, strike: Callable[[float], None]
) -> None:
    with plangym_like.make("CartPole-v1") as serial:
        state = serial.reset(seed=3).state
        many, few = serial.step_batch(MANY, state), serial.step_batch(FEW, state)

    def step(actions: Any, **options: Any) -> Any:
        return env.step_batch(actions, state, **options)

    def settle() -> int:
        # Two at once, so that a block that both have would show.
        first, second = step(MANY, blocking=False), step(FEW, blocking=False)
        assert_same(second.result(60), few)
        assert_same(first.result(60), many)
        assert_same(step(MANY), many)
        del first, second
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    rng = random.Random(wanted)
    others = {child.pid for child in workers()} - {process.pid for process in env.batch_env}
    most = max(settle() for _ in range(5)) + 24  # blocks of another size, and of two more batches
    begun = time.perf_counter()
    use(env, step)
    longest = time.perf_counter() - begun
    interrupted = 0
    while interrupted < wanted:
        try:
            strike(rng.uniform(1e-5, longest))
            use(env, step)
            strike(0)
        except KeyboardInterrupt:
            interrupted += 1
        assert settle() <= most
        idle = [block.number for block in env.batch_env._blocks._idle]
        assert len(set(idle)) == len(idle)
    until = time.monotonic() + 60
    while not all(each.free and each.process.is_alive() for each in env.batch_env.workers):
        assert time.monotonic() < until, "a worker is lost"
        settle()
    ours = {process.pid for process in env.batch_env}
    assert {child.pid for child in workers()} - others == ours
