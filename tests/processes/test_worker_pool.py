"""`WorkerPool`: workers that die, hang or are interrupted, whatever they do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hosted import HostedObject, wait_until_gone

from plangym_like.errors import WorkerDiedError, WorkerStartError, WorkerTimeoutError
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.pool import RetryPolicy, WorkerHandle, WorkerPool

Pool = WorkerPool[WorkerHandle]


class Counts:
    deaths = restarts = 0


@pytest.fixture
def make() -> Iterator[Callable[..., Pool]]:
    pools: list[Pool] = []

    def make(
        count: int = 2,
        constructor: Callable[[], Any] = HostedObject,
        **options: Any,
    ) -> Pool:
        handles = [WorkerHandle(ExternalProcess(constructor), index) for index in range(count)]
        pools.append(WorkerPool(handles, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close(0.0)


def wait_for(pool: Pool, condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Do what a pool's owner does until `condition` holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        pool.wait(0.1)
        pool.tend()


def all_free(pool: Pool) -> bool:
    return all(worker.free for worker in pool.workers)


def test_idle_workers_that_die_are_replaced(make: Callable[..., Pool]) -> None:
    counts = Counts()
    pool = make(counts=counts)
    wait_for(pool, lambda: all_free(pool))
    first = pool.workers[0].process.pid
    os.kill(first, signal.SIGKILL)
    assert wait_until_gone(first, 60)
    pool.prepare()
    assert pool.workers[0].process.pid != first and not pool.workers[0].ready
    wait_for(pool, lambda: all_free(pool))
    assert (counts.deaths, counts.restarts) == (1, 1)


def test_a_death_that_was_never_noted_is_found(make: Callable[..., Pool]) -> None:
    pool = make(1)
    wait_for(pool, lambda: all_free(pool))
    worker = pool.workers[0]
    # An interrupt comes after the end of the process is known, and before the pool is told.
    dead = worker.process.pid
    os.kill(dead, signal.SIGKILL)
    while worker.process.awaited():
        worker.process.drain()
    pool._changed.clear()
    wait_for(pool, lambda: worker.process.pid != dead)


def test_workers_that_never_become_ready(make: Callable[..., Pool]) -> None:
    pool = make(1, lambda: os._exit(4))
    pids: set[int] = set()
    with pytest.raises(WorkerStartError, match="died 5 times in a row before"):
        wait_for(pool, lambda: bool(pids.add(pool.workers[0].process.pid)))  # type: ignore[func-returns-value]
    assert len(pids) >= 5


def test_a_constructor_that_raises_is_tried_again_only_when_asked(
    make: Callable[..., Pool], tmp_path: Path
) -> None:
    def construct() -> HostedObject:
        if not (tmp_path / "flag").exists():
            raise FileNotFoundError("not yet")
        return HostedObject()

    pool = make(1, construct)
    with pytest.raises(FileNotFoundError, match="not yet"):
        wait_for(pool, lambda: False)
    (tmp_path / "flag").touch()
    pool.prepare()
    wait_for(pool, lambda: all_free(pool))


def test_a_constructor_that_hangs(make: Callable[..., Pool]) -> None:
    pool = make(1, lambda: time.sleep(600), start_timeout=0.3)
    with pytest.raises(WorkerStartError, match="start_timeout=0.3 seconds") as caught:
        wait_for(pool, lambda: False)
    assert isinstance(caught.value.__cause__, WorkerTimeoutError)


def test_deaths_without_progress_are_an_error_in_the_end() -> None:
    policy = RetryPolicy()
    for number in range(200):
        policy.note_death_without_progress(WorkerDiedError(f"death {number}", 1, -9))
        if number % 50 == 49:
            policy.note_progress()
    with pytest.raises(
        WorkerDiedError, match="64 workers died in succession .* finished a row"
    ) as caught:
        for number in range(64):
            policy.note_death_without_progress(WorkerDiedError(f"death {number}", 1, -9))
    assert str(caught.value.__cause__) == "death 63"
