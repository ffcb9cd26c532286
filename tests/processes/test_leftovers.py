"""What workers leave behind: nothing."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest
from hosted import HostedObject, Noted, descriptors, run_script, wait_until_gone, workers
from usual import first_of

from plangym_like.processes.external_process import ExternalProcess

METHODS = ("forkserver", "spawn", "fork")


@pytest.fixture(autouse=True)
def nothing_left() -> object:
    with ExternalProcess(HostedObject) as process:  # the fork server may stay
        process.wait_ready(100)
    gc.collect()
    before = descriptors(), [child.pid for child in workers()], threading.active_count()
    yield
    gc.collect()
    after = descriptors(), [child.pid for child in workers()], threading.active_count()
    assert after == before


@pytest.mark.parametrize(
    ("method", "num_cycles"), first_of([("forkserver", 20), ("fork", 10), ("spawn", 3)])
)
def test_cycles(method: str, num_cycles: int) -> None:
    for index in range(num_cycles):
        with ExternalProcess(HostedObject, start_method=method) as process:
            if index % 2:
                assert process.echo(index) == index
        assert wait_until_gone(process.pid, 0)


@pytest.mark.parametrize("method", first_of(METHODS))
def test_dropped_without_close(method: str, tmp_path: Path) -> None:
    process = ExternalProcess(lambda: Noted(tmp_path / "note"), start_method=method)
    process.wait_ready(100)
    pid = process.pid
    reference = weakref.ref(process)
    del process
    assert reference() is None
    assert wait_until_gone(pid, 0)
    assert (tmp_path / "note").read_text() == "closed"


def test_a_future_keeps_its_worker() -> None:
    assert ExternalProcess(HostedObject).call("echo", 5)(10) == 5


def test_errors_keep_nothing_alive() -> None:
    process = ExternalProcess(HostedObject)
    reference = weakref.ref(process)
    gc.disable()
    try:
        future = process.call("fail", ValueError("kept"))
        try:
            future(100)
        except ValueError as error:
            kept = error
        del process, future
        assert reference() is None
    finally:
        gc.enable()
    assert kept.args == ("kept",)


UNCLOSED = """
from plangym_like.processes.external_process import ExternalProcess
from hosted import HostedObject
processes = [ExternalProcess(HostedObject, start_method=m) for m in ("forkserver", "spawn", "fork")]
print(*(process.call("pid")() for process in processes))
busy = ExternalProcess(HostedObject)
future = busy.call("sleep", 60)
print(busy.pid)
"""


def test_end_of_the_program() -> None:
    result = run_script(UNCLOSED)
    assert (result.returncode, result.stderr) == (0, "")
    pids = result.stdout.split()
    assert len(pids) == 4
    assert all(wait_until_gone(int(pid), 0) for pid in pids)


INTERRUPTED = """
import gc, os, random, signal, sys, threading, time, warnings
# What an interrupt in the middle of a start leaves is closed by the garbage collector.
warnings.simplefilter("ignore", ResourceWarning)
from plangym_like.processes.external_process import ExternalProcess
from hosted import HostedObject, descriptors, workers

method, num_interrupts = sys.argv[1], int(sys.argv[2])
armed = False

def interrupt(number, frame):
    global armed
    if armed:  # not while the test itself catches one
        armed = False
        raise KeyboardInterrupt

def send():
    rng = random.Random(0)
    for _ in range(num_interrupts):
        time.sleep(rng.random() * 0.01)
        os.kill(os.getpid(), signal.SIGINT)
    over.set()

with ExternalProcess(HostedObject) as process:
    process.wait_ready()
del process
before = descriptors()
over = threading.Event()
signal.signal(signal.SIGINT, interrupt)
sender = threading.Thread(target=send)
sender.start()
num_caught = 0
while not over.is_set():
    try:
        armed = True
        with ExternalProcess(HostedObject, start_method=method) as process:
            process.wait_ready()
            process.restart()
            process.wait_ready()
    except KeyboardInterrupt:
        num_caught += 1
armed = False
sender.join()
process = None
gc.collect()
while workers():  # a worker that was dropped ends by itself
    time.sleep(0.01)
print(num_caught > 5, descriptors() - before)
"""


@pytest.mark.parametrize(
    ("method", "num_interrupts"), first_of([("forkserver", 150), ("fork", 150)])
)
def test_interrupted_starts_and_ends(method: str, num_interrupts: int, tmp_path: Path) -> None:
    arguments = f"import sys; sys.argv[1:] = [{method!r}, {num_interrupts}]\n"
    result = run_script(arguments + INTERRUPTED, path=tmp_path / "script.py")
    # An interrupt may come in the callback of a weak reference, which prints it.
    told = [line for line in result.stderr.splitlines() if line.startswith("Exception ignored")]
    assert all("_remove" in line or "finalize" in line for line in told), result.stderr
    assert (result.stdout, bool(result.stderr)) == ("True set()\n", bool(told)), result.stderr
