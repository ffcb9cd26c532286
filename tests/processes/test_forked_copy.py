"""A function in a short-lived copy of this process: its result, and every way to have none."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from plangym_like.processes.child import ForkedCopy


def result_in_copy(function: Callable[[], bytes], seconds: float) -> bytes | None:
    return ForkedCopy(function, seconds).result()


def test_the_copy_has_the_memory_of_this_process_and_changes_nothing() -> None:
    held = [1]

    def extend() -> bytes:
        held.append(2)
        print("not shown")
        return bytes(held) + str(os.getpid()).encode()

    result = result_in_copy(extend, 60)
    assert result is not None
    assert result[:2] == b"\x01\x02"
    assert int(result[2:]) != os.getpid()
    assert held == [1]


def test_a_large_result() -> None:
    assert result_in_copy(lambda: bytes(10_000_000), 60) == bytes(10_000_000)


def test_what_the_copy_prints_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    print("once")
    result_in_copy(lambda: os.write(1, b"never").to_bytes(1, "little"), 60)
    assert capfd.readouterr().out == "once\n"


def _raise() -> bytes:
    raise KeyError("a key")


def _die() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


@pytest.mark.parametrize("function", [_raise, _die, lambda: os._exit(0)])
def test_there_is_no_result_if_the_copy_fails(function: Callable[[], bytes]) -> None:
    assert result_in_copy(function, 60) is None


def test_a_copy_that_hangs_is_killed(tmp_path: Path) -> None:
    def hang() -> bytes:
        (tmp_path / str(os.getpid())).touch()
        while True:
            time.sleep(1)

    seconds = 0.5
    while not list(tmp_path.iterdir()):
        assert result_in_copy(hang, seconds) is None
        seconds *= 2
    assert not any(psutil.pid_exists(int(path.name)) for path in tmp_path.iterdir())


def test_a_copy_that_is_closed_early_is_killed(tmp_path: Path) -> None:
    def hang() -> bytes:
        (tmp_path / str(os.getpid())).touch()
        while True:
            time.sleep(1)

    copy = ForkedCopy(hang, 60)
    while not list(tmp_path.iterdir()):
        time.sleep(0.01)
    copy.close()
    copy.close()
    assert copy.result() is None
    assert not any(psutil.pid_exists(int(path.name)) for path in tmp_path.iterdir())
