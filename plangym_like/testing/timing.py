"""Measure how long saving, restoring and stepping take."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from plangym_like.testing.check_context import CheckContext

_SECONDS = 0.3  # for each of the three measurements
_MOST = 200


def measure(context: CheckContext) -> tuple[float, float, float]:
    """Return the median times in microseconds to save a state, to restore one, and to step.

    The chosen states are restored in random order, and without restore caches. A search that
    returns to recent states may be faster.
    """
    env = context.used()
    chosen = itertools.cycle(context.chosen)

    def forget() -> Any:
        env.simulator.clear_caches()
        return next(chosen)

    def restored() -> Any:
        step = next(chosen)
        env.set_state(step.state)
        return step

    restore = _median(lambda step: env.set_state(step.state), forget)
    save = _median(lambda _: env.get_state(), lambda: None)
    step = _median(lambda step: env.step(step.action), restored)
    return save, restore, step


def _median(call: Callable[[Any], Any], prepare: Callable[[], Any]) -> float:
    until = time.perf_counter() + _SECONDS
    taken: list[float] = []
    while len(taken) < _MOST and (len(taken) < 2 or time.perf_counter() < until):
        prepared = prepare()
        begun = time.perf_counter()
        call(prepared)
        taken.append(time.perf_counter() - begun)
    return 1e6 * median(taken)
