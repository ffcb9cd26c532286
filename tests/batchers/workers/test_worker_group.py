"""Workers for a batcher: who hosts what, and every way in which it can go wrong."""

import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from usual import first_of

from plangym_like.batchers import Workers
from plangym_like.batchers.workers.hosted import GroupContext
from plangym_like.batchers.workers.remote import start_workers
from plangym_like.errors import (
    ClosedError,
    InputError,
    RemoteTraceback,
    WorkerDiedError,
    WorkerTimeoutError,
)


class Hosted:
    def __init__(self, context: GroupContext) -> None:
        self.context = context

    def where(self) -> tuple[int, int, int]:
        return self.context.group, os.getpid(), torch.get_num_threads()

    def fill(self, value: int, length: int) -> Any:
        return {"rows": np.full((2, length), value), "value": value}

    def read(self, known: int) -> Any:
        loaded = self.context.load(known)
        return loaded if loaded is None else (loaded[0], loaded[1]["x"].tolist())

    def fail(self) -> None:
        raise ZeroDivisionError("no rows")

    def hang(self) -> None:
        while True:
            time.sleep(0.01)

    def work(self, seconds: float) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.context.beat()
            time.sleep(0.01)
        return "done"


WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


class Settings:
    """What decides which environments a factory makes, and how an actor computes."""

    def __init__(self, context: GroupContext) -> None:
        self.made = gymnasium.make("CartPole-v1")

    def read(self) -> tuple[Any, ...]:
        spec = self.made.spec
        assert spec is not None
        return spec.max_episode_steps, torch.ones(1).dtype, torch.get_float32_matmul_precision()


@WORKERS
@pytest.mark.usefixtures("gymnasium_registry")
@pytest.mark.filterwarnings("ignore:.*Overriding environment")
def test_objects_are_made_with_the_settings_of_the_caller(num_workers: int) -> None:
    entry_point = gymnasium.registry["CartPole-v1"].entry_point
    gymnasium.register("CartPole-v1", entry_point, max_episode_steps=2)
    precision = torch.get_float32_matmul_precision()
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("high")
    try:
        with start_workers(Settings, 2, Workers(num_workers)) as workers:
            for group in range(2):
                assert workers.run(group, "read") == (2, torch.float64, "high")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision(precision)


@WORKERS
def test_every_group_is_hosted_somewhere(num_workers: int) -> None:
    with start_workers(Hosted, 4, Workers(num_workers)) as workers:
        places = [workers.run(group, "where") for group in range(4)]
    assert [group for group, _, _ in places] == [0, 1, 2, 3]
    assert len({pid for _, pid, _ in places}) == max(num_workers, 1)
    assert ({pid for _, pid, _ in places} == {os.getpid()}) == (num_workers == 0)
    assert {threads for _, _, threads in places} == {1}


@WORKERS
def test_results_stay_as_they_are_until_they_are_released(num_workers: int) -> None:
    """Small ones are sent; large ones, after the first, come through lent memory."""
    with start_workers(Hosted, 3, Workers(num_workers)) as workers:
        for length in (4, 20_000, 20_000, 50_000, 1_000, 50_000):
            jobs = [workers.submit(value % 3, "fill", value, length) for value in range(7)]
            assert {workers.wait() for _ in jobs} == {*jobs} and workers.wait() is None
            for value, job in enumerate(jobs):
                assert job.result["value"] == value and job.result["rows"].shape == (2, length)
                assert (job.result["rows"] == value).all()
                job.result["rows"] += 1
            for job in jobs:
                workers.release(job)


@WORKERS
@pytest.mark.parametrize("size", [2, 20_000], ids=["sent", "in shared memory"])
def test_a_job_loads_what_was_published_before_it(num_workers: int, size: int) -> None:
    with start_workers(Hosted, 2, Workers(num_workers)) as workers:
        jobs, expected = [workers.submit(0, "read", -1)], [None]
        tree = {"x": torch.ones(size)}
        assert workers.publish(tree) == 0
        jobs += [
            workers.submit(group, "read", known) for group, known in ((0, -1), (1, -1), (1, 0))
        ]
        tree["x"] += 1
        assert workers.publish(tree) == 1
        jobs.append(workers.submit(0, "read", 0))
        assert workers.publish({"x": torch.zeros(3)}) == 2
        jobs.append(workers.submit(1, "read", 1))
        while workers.wait():
            pass
        expected += [(0, [1.0] * size)] * 2 + [None, (1, [2.0] * size), (2, [0.0] * 3)]
        assert [job.result for job in jobs] == expected


@WORKERS
def test_jobs_of_a_group_keep_their_order(num_workers: int) -> None:
    with start_workers(Hosted, 2, Workers(num_workers)) as workers:
        first, other = workers.submit(1, "fill", 1, 1), workers.submit(0, "fill", 2, 1)
        assert workers.run(1, "where")[0] == 1
        assert first.call.done()
        assert {workers.wait() for _ in range(2)} == {first, other}


def test_weights_of_changing_shapes_leave_no_descriptors() -> None:
    with start_workers(Hosted, 1, Workers(1)) as workers:
        counts = []
        for size in range(20_000, 20_005):
            version = workers.publish({"x": torch.ones(size)})
            assert workers.run(0, "read", -1) == (version, [1.0] * size)
            counts.append([psutil.Process(pid).num_fds() for pid in (os.getpid(), *workers.pids)])
    assert counts[1:] == counts[1:2] * 4


def test_the_first_error_is_raised_even_if_closing_fails_too() -> None:
    class Stubborn(Hosted):
        def close(self) -> None:
            raise ValueError("cannot be closed")

    with start_workers(Stubborn, 1, Workers(0)) as workers:
        workers.submit(0, "fail")
        with pytest.raises(ZeroDivisionError, match="no rows") as caught:
            workers.wait()
    assert any("cannot be closed" in note for note in caught.value.__notes__)


@WORKERS
def test_an_error_keeps_its_type_and_says_where(num_workers: int) -> None:
    with start_workers(Hosted, 2, Workers(num_workers), name="tester") as workers:
        pids = workers.pids
        workers.submit(1, "fail")
        with pytest.raises(ZeroDivisionError, match="no rows") as caught:
            while workers.wait():
                pass
        (note,) = caught.value.__notes__
        assert "group 1" in note
        if num_workers:
            assert isinstance(caught.value.__cause__, RemoteTraceback)
            assert "in fail" in str(caught.value.__cause__)
            assert f"tester-{1 % num_workers} (pid {pids[1 % num_workers]})" in note
        with pytest.raises(ClosedError, match="no rows"):
            workers.wait()
    assert not any(map(psutil.pid_exists, pids))


@WORKERS
def test_a_resident_that_cannot_be_made(num_workers: int) -> None:
    def make(context: GroupContext) -> Any:
        if context.group == 1:
            raise LookupError("no game of that name")
        return Hosted(context)

    with start_workers(make, 2, Workers(num_workers)) as workers:
        pids = workers.pids
        workers.submit(0, "where")
        workers.submit(1, "where")
        with pytest.raises(LookupError, match="no game"):
            while workers.wait():
                pass
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.parametrize("error", [WorkerDiedError, WorkerTimeoutError])
def test_a_worker_that_dies_or_hangs(error: type[Exception]) -> None:
    patience = 600.0 if error is WorkerDiedError else 3.0
    with start_workers(Hosted, 2, Workers(2, timeout=patience)) as workers:
        pids = workers.pids
        workers.run(0, "where"), workers.run(1, "where")
        workers.submit(0, "work", 600.0)
        workers.submit(1, "hang")
        if error is WorkerDiedError:
            os.kill(pids[1], signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(error, match="collector-1") as caught:
            workers.wait()
        assert time.monotonic() - start < 100
        assert f"pid {pids[1]}" in caught.value.__notes__[0]
    assert not any(map(psutil.pid_exists, pids))


def test_weights_for_a_worker_that_hangs_do_not_stop_their_owner() -> None:
    with start_workers(Hosted, 1, Workers(1, timeout=3.0)) as workers:
        workers.submit(0, "hang")
        for _ in range(20):  # more than the connection holds
            workers.publish({"x": torch.zeros(12_000)})
            workers.submit(0, "where")
        with pytest.raises(WorkerTimeoutError):
            workers.wait()


@pytest.mark.full
def test_slow_is_not_hung() -> None:
    with start_workers(Hosted, 1, Workers(1, timeout=3.0)) as workers:
        assert workers.run(0, "work", 7.0) == "done"
        job = workers.submit(0, "work", 4.0)
        assert workers.wait(0.05) is None
        assert workers.wait() is job


@pytest.mark.parametrize("method", first_of(["hang", "work"]))
def test_closing_is_quick_in_the_middle_of_anything(method: str) -> None:
    workers = start_workers(Hosted, 2, Workers(2))
    pids = workers.pids
    for group in range(2):
        workers.submit(group, method, *([600.0] if method == "work" else []))
    start = time.monotonic()
    workers.close()
    workers.close()
    assert time.monotonic() - start < 100
    assert not any(map(psutil.pid_exists, pids))
    with pytest.raises(ClosedError):
        workers.submit(0, "where")


def test_numbers_that_make_no_sense() -> None:
    with pytest.raises(InputError):
        start_workers(Hosted, 0)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"n": -1}, "number of workers"),
        ({"n": 1.0}, "number of workers"),
        ({"timeout": 0.0}, "timeout"),
        ({"start_method": "thread"}, "start_method must be one of 'forkserver'"),
        ({"ray": {"adress": "10.0.0.1:6379"}}, "ray takes address, .*'adress'"),
        ({"ray": {"resources": ["num_gpus"]}}, "a dict such as"),
        ({"n": 0, "ray": True}, "at least 1 worker"),
        ({"ray": "auto"}, "ray must be True, False or a dict"),
    ]
    for options, message in wrong:
        with pytest.raises(InputError, match=message):
            Workers(**options)
