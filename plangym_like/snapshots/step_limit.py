"""Limits for the steps of a trial: fewer steps if they are slow, and none that hangs.

A step that hangs in C code cannot be interrupted by Python. So the kernel ends the whole process,
which is a worker, by SIGALRM.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

# A first step may compile code, so a trial allows more time than `step_timeout`.
_LEAST_SECONDS, _FACTOR = 5.0, 2.0
# A slow episode still has so many steps.
_FEWEST_STEPS = 3
# How long a constructor may take.
CONSTRUCTOR_SECONDS = 60.0
# The exit status of a process that exceeded the limit. Windows, where there are no workers, does
# not have this signal.
EXIT_CODE = -int(getattr(signal, "SIGALRM", 0))

T = TypeVar("T")

_limit: ContextVar[float | None] = ContextVar("step_limit", default=None)


@contextlib.contextmanager
def steps_limited(step_timeout: float | None) -> Iterator[None]:
    """During the block, let `time_limit` end this process if a step takes much too long.

    Only workers may use this; ``None`` means no limit.
    """
    token = _limit.set(step_timeout)
    try:
        yield
    finally:
        _limit.reset(token)


@contextlib.contextmanager
def time_limit(num_steps: int = 1, least: float = _LEAST_SECONDS) -> Iterator[None]:
    """End this process if the block, which takes `num_steps` steps, exceeds the limit.

    The limit is `least` seconds, or more if `step_timeout` is long.
    """
    step_timeout = _limit.get()
    if step_timeout is None or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return
    seconds = max(least, _FACTOR * num_steps * step_timeout)
    before, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, before)


def while_quick(actions: Iterable[T], seconds: float) -> Iterator[T]:
    """Yield `actions`, but only the first three of them if their steps take more than `seconds`."""
    until = time.perf_counter() + seconds
    for step, action in enumerate(actions):
        if step >= _FEWEST_STEPS and time.perf_counter() > until:
            return
        yield action
