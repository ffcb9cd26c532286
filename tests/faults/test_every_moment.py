"""A Ctrl-C at every moment of a batch, one after the other: no later batch may notice."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from interrupting import Moment
from playground import sending

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


@pytest.fixture(params=WORKERS)
def env(request: pytest.FixtureRequest) -> Iterator[Any]:
    gc.collect()
    gc.freeze()  # what other tests have left need not be looked through each time
    try:
        with plangym_like.make("CartPole-v1", **WORKERS[request.param], audit="off") as env:
            sending(env)
            yield env
    finally:
        gc.unfreeze()


# An interrupt may also strike where Python can only ignore it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("quick_collections")
@pytest.mark.parametrize("stride", [29, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("use", [one, futures, given_up, death])
def test_ctrl_c_at_every_moment(env: Any, use: Callable[[Any, Step], None], stride: int) -> None:
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

    most = max(settle() for _ in range(5)) + 24  # blocks of another size, and of two more batches
    number, struck = 1, True
    while struck:
        moment = Moment(number)
        with moment.strikes():
            use(env, step)
        try:
            now = settle()
        except Exception as error:
            error.add_note(f"(after a Ctrl-C at moment {number}, {moment.where})")
            raise
        for region, pool in env.batch_env._pools.items():
            idle = [block.number for block in pool._idle]
            assert len(set(idle)) == len(idle), (region, number, moment.where)
        assert now <= most, (number, moment.where)
        struck, number = moment.where is not None, number + stride
    until = time.monotonic() + 60
    while not all(each.free and each.process.is_alive() for each in env.batch_env.workers):
        assert time.monotonic() < until, "a worker is lost"
        settle()
