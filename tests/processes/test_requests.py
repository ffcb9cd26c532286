"""Futures: order, timeouts, interruptions, threads."""

from __future__ import annotations

import gc
import os
import signal
import threading

import pytest
from hosted import HostedObject, wait_until_gone

from plangym_like.errors import WorkerDiedError
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.wire import Channel


def test_each_future_gets_its_own_reply_in_any_order(hosted: ExternalProcess) -> None:
    futures = [hosted.call("echo", index) for index in range(50)]
    assert [future(100) for future in reversed(futures)] == list(reversed(range(50)))


def test_calling_it_again_gives_the_same_again(hosted: ExternalProcess) -> None:
    future = hosted.call("echo", [1, 2])
    assert future(100) is future(100)
    failing = hosted.call("fail", ValueError("once", "more"))
    for _ in range(2):
        with pytest.raises(ValueError, match="once") as caught:
            failing(10)
        assert caught.value.args == ("once", "more")
    assert "finished" in repr(failing)


def test_done_does_not_block(hosted: ExternalProcess) -> None:
    read_end, write_end = hosted.apply(_make_pipe)(10)
    waiting = hosted.apply(_wait_on, read_end)
    assert not waiting.done()
    with pytest.raises(TimeoutError, match="is not done within"):
        waiting(0.0)
    assert "pending" in repr(waiting)
    # The worker waits on a pipe of its own, which only its own descriptor leads to.
    descriptor = os.open(f"/proc/{hosted.pid}/fd/{write_end}", os.O_WRONLY)
    os.write(descriptor, b"x")
    os.close(descriptor)
    assert waiting(10) == b"x"
    assert waiting.done()


def _make_pipe(hosted: object) -> tuple[int, int]:
    return os.pipe()


def _wait_on(hosted: object, descriptor: int) -> bytes:
    return os.read(descriptor, 1)


def test_a_reply_to_a_dropped_future_is_nobody_elses(hosted: ExternalProcess) -> None:
    for index in range(20):
        hosted.call("echo", f"dropped {index}")
    gc.collect()
    assert hosted.echo("mine") == "mine"
    assert not hosted._pending


def test_a_timeout_leaves_the_future_good_and_the_order_intact(hosted: ExternalProcess) -> None:
    slow = hosted.call("sleep", 0.3)
    with pytest.raises(TimeoutError, match=f"pid {hosted.pid}"):
        slow(0.01)
    assert hosted.call("echo", "after")(10) == "after"
    assert slow(10) is None


def test_futures_of_one_worker_may_be_waited_on_by_many_threads(
    hosted: ExternalProcess,
) -> None:
    results: dict[int, list[int]] = {}

    def use(number: int) -> None:
        results[number] = [hosted.call("echo", number * 1000 + k)(20) for k in range(100)]

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert results == {n: [n * 1000 + k for k in range(100)] for n in range(8)}


class AlarmError(Exception):
    """What a signal handler raises."""


def test_an_exception_within_an_exchange_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data may be lost, so a later reply could be taken for another one's."""
    with ExternalProcess(HostedObject) as process:
        process.wait_ready(100)
        pending = process.call("sleep", 600)

        def interrupted(*_: object) -> bool:
            raise AlarmError

        with monkeypatch.context() as patched:
            patched.setattr(Channel, "receive", interrupted)
            with pytest.raises(AlarmError):
                pending.done()
        for future in (pending, process.call("echo", 1)):
            with pytest.raises(WorkerDiedError, match=r"such as Ctrl-C, .*restart\(\) starts"):
                future(100)
        assert wait_until_gone(process.pid, 100)
        process.restart()
        assert process.echo(2) == 2


def test_an_interrupted_wait_leaves_the_request_pending(hosted: ExternalProcess) -> None:
    def handle(*_: object) -> None:
        raise AlarmError

    before = signal.signal(signal.SIGALRM, handle)
    try:
        future = hosted.call("sleep", 0.5)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(AlarmError):
            future(100)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert future(100) is None
    assert hosted.echo(3) == 3
