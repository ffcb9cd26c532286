"""What befalls rows and machines of a cluster.

Actors import this file to know it; the tests themselves would bring all of pytest along.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any

import psutil
from playground import CounterEnv, kill_itself, refuse


class Pause:
    """A trap that takes its time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, action: int) -> None:
        time.sleep(self._seconds)


class Harms:
    """A trap in which some actions raise, one hangs and one kills."""

    def __call__(self, action: int) -> None:
        {0: refuse, 33: partial(hang, 600), 61: kill_itself, 90: refuse}.get(action, bool)(action)


def hang(seconds: float, action: int) -> None:
    """Take far too long."""
    time.sleep(seconds)


def kill_actor(action: int) -> None:
    """Take the actor along, as a machine does that runs out of memory."""
    for process in psutil.Process().parents():
        if process.name().startswith("ray::") or "ray::NodeActor" in " ".join(process.cmdline()):
            process.kill()
            time.sleep(60)


def fail_elsewhere(owner: int, name: str, **kwargs: Any) -> CounterEnv:
    if os.getpid() != owner:
        raise ArithmeticError("not on this machine")
    return CounterEnv(name, **kwargs)


def die_elsewhere(owner: int, name: str, **kwargs: Any) -> CounterEnv:
    if os.getpid() != owner:
        os.kill(os.getpid(), signal.SIGKILL)
    return CounterEnv(name, **kwargs)


def differ_elsewhere(owner: int, name: str, **kwargs: Any) -> CounterEnv:
    return CounterEnv(name if os.getpid() == owner else "other", **kwargs)
