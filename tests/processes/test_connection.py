"""Futures: order, timeouts, interruptions, threads."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest
from hosted import HostedObject, run_script

from plangym_like.errors import ClosedError
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.wire import Channel, Deliver


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
    assert "done" in repr(failing)


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
    assert not process._connection._pending


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


def test_a_short_wait_is_not_held_up_by_a_long_one(process: ExternalProcess) -> None:
    futures = [process.call("echo", "first"), process.call("sleep", 0.4)]
    order: list[str] = []

    def wait(index: int) -> None:
        futures[index](20)
        order.append(("first", "second")[index])

    threads = [threading.Thread(target=wait, args=(index,)) for index in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert order == ["first", "second"]


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


HANDLER_THAT_CALLS = """
import signal, sys
from plangym_like.processes.external_process import ExternalProcess
from hosted import HostedObject

process = ExternalProcess(HostedObject)
process.wait_ready()
num_handled = num_refused = 0
wrong = []

def handle(number, frame):
    global num_handled, num_refused
    num_handled += 1
    try:
        if process.call("echo", ("handler", num_handled))(20) != ("handler", num_handled):
            wrong.append(num_handled)
    except RuntimeError as error:
        assert "signal handler" in str(error)
        num_refused += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0008)

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.001)
index = 0
while num_handled < 400:
    index += 1
    sent = (index, b"x" * (300_000 if index % 5 == 0 else 10))
    if process.call("echo", sent)(20) != sent:
        wrong.append(-index)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
print(num_handled >= 400, num_refused < num_handled // 2, wrong)
"""


def test_a_signal_handler_may_use_the_worker_that_it_interrupts() -> None:
    result = run_script(HANDLER_THAT_CALLS)
    assert (result.stdout, result.stderr) == ("True True []\n", "")


def test_a_signal_handler_takes_in_what_was_about_to_be_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExternalProcess(HostedObject) as process:
        process.wait_ready(100)
        heard: list[object] = []

        pass_on = Channel.pass_on

        def interrupted(channel: Channel, deliver: Deliver) -> bool:
            # As if a signal came just before, while a message is there in part.
            if channel._chunks and not heard:
                heard.append(None)
                heard[0] = process.call("echo", "handler")(10)
            return pass_on(channel, deliver)

        monkeypatch.setattr(Channel, "pass_on", interrupted)
        blob = b"x" * 3_000_000
        assert process.call("echo", blob)(10) == blob
        assert heard == ["handler"]


INTERRUPTED = """
import os, signal, threading, time
from plangym_like.processes.external_process import ExternalProcess
from hosted import HostedObject, descriptors

process = ExternalProcess(HostedObject)
process.wait_ready()
before = descriptors()
finished = threading.Event()
num_sent = 0

def interrupt():
    global num_sent
    while num_sent < 500:
        os.kill(os.getpid(), signal.SIGINT)
        num_sent += 1
        time.sleep(0.0007)
    finished.set()

blob = b"x" * 200_000
thread = threading.Thread(target=interrupt)
num_caught = num_calls = 0
wrong = []
while True:
    try:
        if not thread.ident:
            thread.start()
        while not finished.is_set():
            num_calls += 1
            sent = (num_calls, blob if num_calls % 7 == 0 else b"")
            received = process.call("echo", sent)()
            if received[0] != sent[0] or received[1] != sent[1]:
                wrong.append((sent[0], received[0]))
        break
    except KeyboardInterrupt:
        num_caught += 1
thread.join()
signal.signal(signal.SIGINT, signal.SIG_IGN)
assert process.echo("still in step") == "still in step"
assert not process._connection._pending, process._connection._pending
assert descriptors() == before
process.close()
print(num_sent, num_caught > 100, num_calls > 100, wrong)
"""


def test_interruptions_do_not_put_the_stream_out_of_step() -> None:
    result = run_script(INTERRUPTED)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["500", "True", "True", "[]"], result.stderr
