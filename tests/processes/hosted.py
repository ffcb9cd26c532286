"""Objects for workers to host, and ways to look at what processes leave behind."""

from __future__ import annotations

import ctypes
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil


class HostedObject:
    """A toy that does whatever a test needs to happen in a worker."""

    def __init__(self, label: str = "hosted") -> None:
        self.label = label
        self.calls = 0

    def echo(self, value: Any) -> Any:
        self.calls += 1
        return value

    def fail(self, error: BaseException) -> None:
        raise error

    def pid(self) -> int:
        return os.getpid()

    def unpicklable(self) -> Any:
        return (i for i in range(3))

    def end(self, status: int) -> None:
        os._exit(status)

    def crash(self) -> None:
        ctypes.string_at(0)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def announce_and_block(self, descriptor: int) -> None:
        """Hold the GIL in C for ten minutes, having said so on `descriptor`."""
        os.write(descriptor, f"blocked {os.getpid()}\n".encode())
        ctypes.PyDLL(None).sleep(600)

    def modules(self) -> list[str]:
        import sys

        return list(sys.modules)

    def environ(self, name: str) -> str | None:
        return os.environ.get(name)


class Noted:
    """Writes a line when it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def close(self) -> None:
        self.path.write_text("closed")


class TwoArguments(Exception):
    """An exception that pickles but cannot be loaded again."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Stubborn(Exception):
    """An exception with an attribute that does not pickle."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.generator = (i for i in range(3))
        self.number = 7


def quickest(measure: Callable[[], float], enough: float, tries: int = 30) -> float:
    """Return the least that `measure` returned, tried again until it is less than `enough`.

    What is promised to be quick is so on a machine that has nothing else to do; on a crowded one,
    it is so once in a while.
    """
    least = math.inf
    while tries and least >= enough:
        least, tries = min(least, measure()), tries - 1
    return least


def wait_until_gone(pid: int, timeout: float) -> bool:
    """Return whether process `pid` has ended within `timeout` seconds."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(timeout * 1000))
    finally:
        os.close(pidfd)


def descriptors() -> set[str]:
    """Return the open descriptors of this process and what they lead to."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
        except OSError:  # the one that lists them
            continue
    return found


def workers() -> list[psutil.Process]:
    """Return all live and undead descendants of this process, fork servers left out."""
    here = psutil.Process()
    return [
        child for child in here.children(recursive=True) if not _is_fork_server(child, here.pid)
    ]


def _is_fork_server(process: psutil.Process, owner: int) -> bool:
    try:
        return process.ppid() == owner and any("fork_server_main" in p for p in process.cmdline())
    except psutil.Error:  # a zombie, or gone meanwhile
        return False


def run_script(
    script: str, *, path: Path | None = None, timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run a Python script from a file, or from standard input, and return what it printed."""
    arguments = [sys.executable, "-W", "error", "-"]
    if path is not None:
        path.write_text(script)
        arguments[-1] = str(path)
    return subprocess.run(
        arguments,
        input=script if path is None else None,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=script_environ(),
        check=False,
    )


def script_environ() -> dict[str, str]:
    """Return environment variables with which a script finds this package and these tests."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
