"""`Future` is a `concurrent.futures.Future`, whatever is waited for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

import plangym_like
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.results import Future


class Task:
    """Something pending that the test finishes."""

    what = "the test's task"

    def __init__(self) -> None:
        self.settled = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.timeouts: list[float | None] = []

    def finish(self, result: Any = None, error: BaseException | None = None) -> None:
        self.settled, self.result, self.error = True, result, error

    def settle(self, timeout: float | None) -> bool:
        self.timeouts.append(timeout)
        return self.settled

    def outcome(self) -> tuple[Any, BaseException | None]:
        return self.result, self.error

    def cancel(self, error: BaseException) -> bool:
        self.finish(error=error)
        return True


def test_a_result() -> None:
    task = Task()
    future: Future[int] = Future(task)
    assert not future.done() and task.timeouts == [0.0]
    assert "pending" in repr(future)
    with pytest.raises(TimeoutError, match=r"the test's task is not done within 0\.5 s"):
        future.result(0.5)
    task.finish(7)
    assert future.result() == future() == 7
    assert future.done() and future.exception() is None
    assert not future.cancel() and not future.cancelled()
    assert "finished" in repr(future)


def test_cancelling() -> None:
    future: Future[int] = Future(Task())
    assert future.cancel() and future.cancelled() and future.done()
    for use in (future.result, future.exception):
        with pytest.raises(CancelledError):
            use()
    assert future.cancel()
    assert "cancelled" in repr(future)


def test_a_check_comes_before_the_first_result() -> None:
    checked: list[int] = []
    future = Future.of(lambda: 7)
    future.check(checked.append)
    assert (future.result(), future.result(), checked) == (7, 7, [7])

    def refuse(result: int) -> None:
        raise ValueError(result)

    future = Future.of(lambda: 8)
    future.check(refuse)
    assert isinstance(future.exception(), ValueError)
    with pytest.raises(ValueError, match="8"):
        future.result()


def _several(source: Any, hosted: ExternalProcess) -> list[Future[Any]]:
    """Return three futures: of requests, or of batches."""
    if source == "requests":
        return [hosted.call("echo", number) for number in range(3)]
    state = source.reset(seed=0).state
    return [source.step_batch([0, 1] * 40, state, blocking=False) for _ in range(3)]


@pytest.fixture(scope="module", params=["requests", None, 2])
def source(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "requests":
        yield "requests"
        return
    options: dict[str, Any] = {"n_workers": request.param, "isolate": bool(request.param)}
    with plangym_like.make("CartPole-v1", **options) as env:
        yield env


def test_they_can_be_waited_for(source: Any, hosted: ExternalProcess) -> None:
    futures = _several(source, hosted)
    done, left = concurrent.futures.wait(futures)
    assert done == set(futures) and not left
    assert all(future.done() for future in futures)


def test_they_come_as_they_are_completed(source: Any, hosted: ExternalProcess) -> None:
    futures = _several(source, hosted)
    found = [future.result() for future in concurrent.futures.as_completed(futures)]
    assert len(found) == 3


def test_they_can_be_awaited(source: Any, hosted: ExternalProcess) -> None:
    async def all_of_them() -> list[Any]:
        futures = _several(source, hosted)
        return await asyncio.gather(*map(asyncio.wrap_future, futures))

    results = asyncio.run(all_of_them())
    if source == "requests":
        assert results == [0, 1, 2]
    else:
        assert [result.rewards.sum() for result in results] == [80.0] * 3


def test_callbacks_are_called_once_it_is_over(hosted: ExternalProcess) -> None:
    called: queue.Queue[Any] = queue.Queue()
    future = hosted.call("echo", 5)
    future.add_done_callback(called.put)
    assert called.get(timeout=600) is future
    assert future.result() == 5


def test_a_request_that_was_sent_cannot_be_cancelled(hosted: ExternalProcess) -> None:
    future = hosted.call("sleep", 0.1)
    assert not future.cancel() and not future.cancelled()
    assert future.result(60) is None
    error = hosted.call("fail", ValueError("no")).exception(60)
    assert isinstance(error, ValueError)
