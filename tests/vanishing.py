"""Processes that have been told to end."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil


def assert_gone(pids: Iterable[int], *, seconds: float = 100.0) -> None:
    """Check that none of `pids` lives; the cluster kills without being waited for."""
    left = set(pids)
    until = time.monotonic() + seconds
    while left and time.monotonic() < until:
        left = {pid for pid in left if psutil.pid_exists(pid)}
        time.sleep(0.02)
    assert not left
