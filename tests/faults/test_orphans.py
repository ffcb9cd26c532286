"""Workers that cannot or will not hear of their parent's end: SIGKILL reaches them all the same."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hosted import script_environ, wait_until_gone
from usual import first_of

# Longer than any machine takes, however busy it is; nothing here waits for it to pass.
PATIENCE = 100.0

PARENT = """
import ctypes, os, signal, sys, threading, time
from plangym_like.processes.external_process import ExternalProcess

class Refuser:
    def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def ignore(self):
        for number in signal.valid_signals() - {{signal.SIGKILL, signal.SIGSTOP}}:
            if number < 32 or number > 34:  # the others are the C library's
                signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            pass

    def close_all(self):
        os.closerange(0, 1 << 16)
        while True:
            time.sleep(600)

    def do_all(self):
        os.setsid()
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.closerange(0, 1 << 16)
        os.kill(os.getpid(), signal.SIGSTOP)

harms = ["stop", "ignore", {closing}]
workers, futures = [], []

def start():
    for harm in harms:
        workers.append(ExternalProcess(Refuser, start_method={method!r}))
    for worker, harm in zip(workers, harms):
        worker.wait_ready()
        futures.append(worker.call(harm))
    # One hangs in C with the GIL held, and one is still making its object.
    workers.append(ExternalProcess(Refuser))
    workers[-1].wait_ready()
    futures.append(workers[-1].apply(lambda hosted: ctypes.PyDLL(None).sleep(600)))
    workers.append(ExternalProcess(lambda: time.sleep(600), start_method={method!r}))
    print(*(worker.pid for worker in workers), flush=True)
    while True:  # without a look at the workers, some of which have cut their connection
        time.sleep(600)

{start}
"""
IN_THREAD = "threading.Thread(target=start).start()"
CLOSING = '"close_all", "do_all"'


def _refuses(worker: psutil.Process, harm: str) -> bool:
    stopped = worker.status() == psutil.STATUS_STOPPED
    closed = not os.listdir(f"/proc/{worker.pid}/fd")
    return {
        "stop": stopped,
        "ignore": _blocks(worker.pid, signal.SIGTERM),
        "close_all": closed,
        "others": True,
        "do_all": closed and stopped and _blocks(worker.pid, signal.SIGTERM),
    }[harm]


def _blocks(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = int(next(line for line in lines if line.startswith("SigBlk:")).split()[1], 16)
    return bool(mask >> (number - 1) & 1)


def _await(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("method", "start", "closing"),
    first_of(
        [
            ("forkserver", "start()", CLOSING),
            ("forkserver", IN_THREAD, CLOSING),
            ("spawn", "start()", CLOSING),
            ("spawn", IN_THREAD, '"stop", "ignore"'),
            ("fork", "start()", CLOSING),
        ]
    ),
)
def test_no_worker_that_refuses_outlives_its_parent(method: str, start: str, closing: str) -> None:
    """Those stopped, those that block or ignore signals, those without descriptors; all at once."""
    script = PARENT.format(method=method, start=start, closing=closing)
    harms = ["stop", "ignore", *eval(f"[{closing}]"), "others", "others"]
    command = [sys.executable, "-c", script]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=script_environ())
    with parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(workers) == len(harms)
        try:
            for worker, harm in zip(workers, harms, strict=True):
                _await(lambda worker=worker, harm=harm: _refuses(worker, harm))  # type: ignore[misc]
            others = {child.pid for child in psutil.Process(parent.pid).children(recursive=True)}
            parent.kill()
            parent.wait(PATIENCE)
            begun = time.monotonic()
            for pid in others.union(worker.pid for worker in workers):
                assert wait_until_gone(pid, begun + PATIENCE - time.monotonic()), pid
        finally:
            parent.kill()
            for worker in workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
