"""Workers that die, hang, or outlive their owner, and what is noticed of it."""

from __future__ import annotations

import logging
import os
import signal
import time

import pytest
from hosted import HostedObject, quickest, wait_until_gone

from plangym_like.errors import WorkerDiedError
from plangym_like.processes.external_process import ExternalProcess

METHODS = ("forkserver", "spawn")


@pytest.mark.parametrize("method", METHODS)
def test_a_kill_is_noticed_at_once_and_named(method: str, caplog: pytest.LogCaptureFixture) -> None:
    def seconds_to_notice() -> float:
        caplog.clear()
        with ExternalProcess(HostedObject, start_method=method, name="victim") as process:
            process.wait_ready(100)
            futures = [process.call("sleep", 600), process.call("echo", 1)]
            start = time.monotonic()
            os.kill(process.pid, signal.SIGKILL)
            told = r"'victim'.*SIGKILL \(9\).*memory"
            for future in futures:
                with pytest.raises(WorkerDiedError, match=told) as caught:
                    future(100)
                assert (caught.value.pid, caught.value.exitcode) == (process.pid, -9)
            passed = time.monotonic() - start
            assert process.exitcode == -9
            assert not process.is_alive()
            with pytest.raises(WorkerDiedError):
                process.echo(2)
            assert "dead" in repr(process)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "victim" in caplog.text
        assert f"pid {process.pid}" in caplog.text
        return passed

    assert quickest(seconds_to_notice, 1.0) < 1.0


@pytest.mark.parametrize(
    ("use", "exitcode", "text"),
    [
        (lambda process: process.crash(), -signal.SIGSEGV, r"SIGSEGV.*native code"),
        (lambda process: process.end(7), 7, r"status 7.*os\._exit"),
    ],
)
def test_other_deaths(use: object, exitcode: int, text: str) -> None:
    with ExternalProcess(HostedObject) as process:
        with pytest.raises(WorkerDiedError, match=text) as caught:
            use(process)  # type: ignore[operator]
        assert caught.value.exitcode == process.exitcode == exitcode


def test_replies_that_were_sent_before_the_death_count() -> None:
    with ExternalProcess(HostedObject) as process:
        futures = [process.call("echo", b"x" * 50_000) for _ in range(3)]
        dying = process.call("end", 0)
        assert wait_until_gone(process.pid, 100)
        assert [len(future(100)) for future in futures] == [50_000] * 3
        with pytest.raises(WorkerDiedError):
            dying(100)


def test_a_worker_that_loses_its_connection_is_dead_too() -> None:
    with ExternalProcess(HostedObject) as process:
        future = process.apply(_close_everything)
        with pytest.raises(WorkerDiedError):
            future(100)
        assert wait_until_gone(process.pid, 100)


def _close_everything(hosted: object) -> None:
    os.closerange(3, 1000)


def test_restart_of_a_hung_worker_fails_what_it_owed(caplog: pytest.LogCaptureFixture) -> None:
    with ExternalProcess(HostedObject) as process:
        process.wait_ready(100)
        hung, queued = process.call("announce_and_block", 1), process.call("echo", 1)
        old = process.pid
        process.restart()
        assert wait_until_gone(old, 100)
        for future in (hung, queued):
            with pytest.raises(WorkerDiedError, match="replaced") as caught:
                future(100)
            assert caught.value.pid == old
        assert process.echo(2) == 2
    assert not caplog.records


@pytest.mark.parametrize("method", METHODS)
def test_close_of_a_hung_worker_is_bounded(method: str) -> None:
    read, write = os.pipe()
    process = ExternalProcess(HostedObject, start_method=method)
    process.wait_ready(100)
    process.apply(_block_on, fds=[write])
    os.close(write)
    assert os.read(read, 7) == b"blocked"
    os.close(read)
    start = time.monotonic()
    process.close(timeout=0.5)
    assert 0.4 < time.monotonic() - start < 100
    assert process.exitcode == -9
    assert wait_until_gone(process.pid, 0)


def _block_on(hosted: HostedObject, fds: list[int]) -> None:
    hosted.announce_and_block(fds[0])


def test_close_takes_the_time_that_a_busy_worker_needs() -> None:
    process = ExternalProcess(HostedObject)
    future = process.call("sleep", 0.2)
    process.close(100)
    assert future(0) is None
    assert process.exitcode == 0


def test_workers_of_workers_end_with_them() -> None:
    class Outer:
        def __init__(self) -> None:
            self.inner = ExternalProcess(HostedObject)
            self.inner_pid = self.inner.call("pid")(100)

    with ExternalProcess(Outer) as process:
        pid = process.inner_pid
        assert not wait_until_gone(pid, 0)
        process.kill()
        assert wait_until_gone(pid, 100)
