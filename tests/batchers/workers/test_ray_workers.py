"""Workers that are actors of a real cluster: the same guarantees, though no memory is shared."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from suite import assert_gone

from plangym_like.batchers.workers.group import WorkerGroup, Workers
from plangym_like.batchers.workers.hosted import GroupContext
from plangym_like.batchers.workers.remote import start_workers
from plangym_like.errors import (
    ClosedError,
    WorkerTimeoutError,
)

ray = pytest.importorskip("ray", reason="Ray is not installed")


class Hosted:
    def __init__(self, context: GroupContext) -> None:
        self.context = context
        self.thread = threading.get_ident()

    def where(self) -> tuple[int, int, int]:
        # Some simulators belong to the thread that made them.
        assert threading.get_ident() == self.thread
        return self.context.group, os.getpid(), torch.get_num_threads()

    def read(self, known: int) -> Any:
        loaded = self.context.load(known)
        return loaded if loaded is None else (loaded[0], loaded[1].tolist())

    def fill(self, value: float, length: int) -> Any:
        return {"rows": np.full((4, length), value)}

    def hang(self) -> None:
        while True:
            time.sleep(0.01)

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.context.beat()
            time.sleep(0.04)


def workers_of(
    num_groups: int, num_workers: int, make: Any = Hosted, **options: Any
) -> WorkerGroup:
    on_ray = Workers(num_workers, ray={"resources": {"num_cpus": 0}}, **options)
    return start_workers(make, num_groups, on_ray)


@pytest.fixture(scope="module")
def workers(cluster: Any) -> Iterator[WorkerGroup]:
    """Three groups on two nodes, to which nothing happens."""
    with workers_of(3, 2) as workers:
        yield workers
        pids = workers.pids
    assert_gone(pids)
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2


def test_groups_live_in_actors_all_over_the_cluster(workers: WorkerGroup) -> None:
    jobs = [workers.submit(group, "where") for group in (0, 1, 2, 1)]
    done = [workers.wait() for _ in jobs]
    assert {job.group for job in done if job} == {0, 1, 2}
    (first, second, third, again) = [job.result for job in jobs]
    assert [place[0] for place in (first, second, third, again)] == [0, 1, 2, 1]
    assert first[1] == third[1] != second[1] == again[1]
    assert {first[1], second[1]} == set(workers.pids)
    assert {place[2] for place in (first, second, third)} == {1}
    assert workers.wait() is None


def test_what_is_published_travels_once(
    workers: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: sent.append(value) or put(value))
    weights = torch.ones(3)
    workers.publish(weights)
    for _ in range(2):
        assert [workers.run(group, "read", -1) for group in range(3)] == [(0, [1.0] * 3)] * 3
    assert workers.run(0, "read", 0) is None
    assert len(sent) == 1
    weights.fill_(2.0)
    workers.publish(weights)
    assert [workers.run(group, "read", 0) for group in range(3)] == [(1, [2.0] * 3)] * 3
    assert len(sent) == 2


def test_large_results_arrive_whole(workers: WorkerGroup) -> None:
    jobs = [workers.submit(index % 3, "fill", float(index), 30_000) for index in range(6)]
    while workers.wait():
        pass
    for index, job in enumerate(jobs):
        rows = job.result["rows"]
        assert rows.shape == (4, 30_000) and (rows == index).all()
        # Too large for a message, so it was in the object store; and is its reader's to write to.
        rows += 1


@pytest.mark.full
def test_who_works_is_heard_of_and_who_hangs_is_found_out(cluster: Any) -> None:
    with workers_of(1, 1, timeout=6.0) as workers:
        pid = workers.run(0, "where")[1]
        workers.submit(0, "work", 40)
        workers.submit(0, "hang")
        heard = set()
        with pytest.raises(WorkerTimeoutError, match=rf"worker collector-0 \(pid {pid} on node"):
            while True:
                workers.wait(0.05)
                heard.add(workers._beats(0))
        assert 40 in heard and heard & set(range(1, 40))
        with pytest.raises(ClosedError, match="no progress"):
            workers.wait()
        assert_gone([pid])
