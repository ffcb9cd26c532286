"""Futures: order, timeouts, interruptions, threads."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterator

import pytest
from hosted import HostedObject, run_script, wait_until_gone

from plangym_like.errors import ClosedError, WorkerDiedError
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.wire import (
    RESULT,
    Channel,
    Message,
    outgoing,
)


@pytest.fixture(scope="module")
def process() -> Iterator[ExternalProcess]:
    with ExternalProcess(HostedObject) as process:
        yield process


def test_each_future_gets_its_own_reply_in_any_order(process: ExternalProcess) -> None:
    futures = [process.call("echo", index) for index in range(50)]
    assert [future(100) for future in reversed(futures)] == list(reversed(range(50)))


def test_calling_it_again_gives_the_same_again(process: ExternalProcess) -> None:
    future = process.call("echo", [1, 2])
    assert future(100) is future(100)
    failing = process.call("fail", ValueError("once", "more"))
    for _ in range(2):
        with pytest.raises(ValueError, match="once") as caught:
            failing(10)
        assert caught.value.args == ("once", "more")
    assert "finished" in repr(failing)


def test_done_does_not_block(process: ExternalProcess) -> None:
    read_end, write_end = process.apply(_make_pipe)(10)
    waiting = process.apply(_wait_on, read_end)
    assert not waiting.done()
    with pytest.raises(TimeoutError, match="is not done within"):
        waiting(0.0)
    assert "pending" in repr(waiting)
    # The worker waits on a pipe of its own, which only its own descriptor leads to.
    descriptor = os.open(f"/proc/{process.pid}/fd/{write_end}", os.O_WRONLY)
    os.write(descriptor, b"x")
    os.close(descriptor)
    assert waiting(10) == b"x"
    assert waiting.done()


def _make_pipe(hosted: object) -> tuple[int, int]:
    return os.pipe()


def _wait_on(hosted: object, descriptor: int) -> bytes:
    return os.read(descriptor, 1)


def test_a_reply_to_a_dropped_future_is_nobody_elses(process: ExternalProcess) -> None:
    for index in range(20):
        process.call("echo", f"dropped {index}")
    gc.collect()
    assert process.echo("mine") == "mine"
    assert not process._pending


def test_a_timeout_leaves_the_future_good_and_the_order_intact(process: ExternalProcess) -> None:
    slow = process.call("sleep", 0.3)
    with pytest.raises(TimeoutError, match=f"pid {process.pid}"):
        slow(0.01)
    assert process.call("echo", "after")(10) == "after"
    assert slow(10) is None


def test_futures_of_one_worker_may_be_waited_on_by_many_threads(
    process: ExternalProcess,
) -> None:
    results: dict[int, list[int]] = {}

    def use(number: int) -> None:
        results[number] = [process.call("echo", number * 1000 + k)(20) for k in range(100)]

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert results == {n: [n * 1000 + k for k in range(100)] for n in range(8)}


def test_closing_while_another_thread_waits() -> None:
    process = ExternalProcess(HostedObject)
    process.wait_ready(100)
    future = process.call("sleep", 60)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            future(50)
        except ClosedError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    process.close(timeout=0.2)
    thread.join(100)
    assert [type(error) for error in caught] == [ClosedError]


INTERRUPTED = """
import gc, os, signal, threading, time, warnings
from plangym_like.errors import WorkerDiedError
from plangym_like.processes.external_process import ExternalProcess
from hosted import HostedObject, descriptors, workers

# What an interrupt in the middle of a start leaves is closed by the garbage collector.
warnings.simplefilter("ignore", ResourceWarning)
process = ExternalProcess(HostedObject)
process.wait_ready()
before = descriptors()
finished = threading.Event()
num_sent = num_caught = num_calls = 0

def interrupt():
    global num_sent
    while num_sent < 500 or num_caught <= 100 or num_calls <= 100:
        os.kill(os.getpid(), signal.SIGINT)
        num_sent += 1
        time.sleep(0.0007)
    finished.set()

armed = False

def handle(number, frame):
    global armed
    if armed:  # not while the test itself catches one
        armed = False
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, handle)
blob = b"x" * 200_000
thread = threading.Thread(target=interrupt)
thread.start()
wrong = []
while True:
    try:
        armed = True
        while not finished.is_set():
            num_calls += 1
            sent = (num_calls, blob if num_calls % 7 == 0 else b"")
            try:
                received = process.call("echo", sent)()
            except WorkerDiedError as error:
                assert "such as Ctrl-C" in str(error), error
                process.restart()
                continue
            if received[0] != sent[0] or received[1] != sent[1]:
                wrong.append((sent[0], received[0]))
        break
    except KeyboardInterrupt:
        num_caught += 1
thread.join()
signal.signal(signal.SIGINT, signal.SIG_IGN)
if not process.is_alive():
    process.restart()
process.wait_ready()
assert process.echo("still in step") == "still in step"
assert not process._pending, process._pending
gc.collect()
assert len(descriptors()) == len(before)
while [worker.pid for worker in workers()] != [process.pid]:  # the others end by themselves
    time.sleep(0.01)
process.close()
print(wrong)
"""


def test_interruptions_do_not_put_the_stream_out_of_step() -> None:
    result = run_script(INTERRUPTED)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["[]"], result.stderr


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


def test_an_interrupted_wait_leaves_the_request_pending(process: ExternalProcess) -> None:
    def handle(*_: object) -> None:
        raise AlarmError

    before = signal.signal(signal.SIGALRM, handle)
    try:
        future = process.call("sleep", 0.5)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(AlarmError):
            future(100)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert future(100) is None
    assert process.echo(3) == 3


def test_the_descriptors_of_each_message_arrive_with_it() -> None:
    here, there = socket.socketpair()
    with here, there:
        sender, receiver = Channel(there), Channel(here)
        delivered = deque[Message]()
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
        for number, (size, fds) in enumerate([(0, files[:1]), (5, []), (70_000, files[1:])]):
            sender.send(outgoing(RESULT, number, b"y" * size, fds))
        while len(delivered) < 3:
            receiver.receive(delivered.append)
        assert [len(message.descriptors or ()) for message in delivered] == [1, 0, 2]
        for message in delivered:
            files += message.descriptors or ()
        for descriptor in files:
            os.close(descriptor)
