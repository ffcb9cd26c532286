"""What saving, restoring and stepping take."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from plangym_like.testing.promises import Evidence

_SECONDS = 0.3
_MOST = 200


def measure(evidence: Evidence) -> tuple[float, float, float]:
    """Return microseconds to save, to restore, and to step: medians over the chosen states.

    States are restored in an order that no episode has, and each as if it had never been reached
    before: where a search comes back to states that it has just left, it may be faster.
    """
    env = evidence.used()
    chosen = evidence.chosen
    turns = iter(range(10**9))

    def next_row() -> Any:
        return chosen[next(turns) * 7 % len(chosen)]

    def leave() -> Any:
        env.simulator.forget()
        return next_row()

    restore = _median(lambda moment: env.set_state(moment.state), leave)
    save = _median(lambda _: env.get_state(), lambda: None)

    def stand() -> Any:
        moment = next_row()
        env.set_state(moment.state)
        return moment

    step = _median(lambda moment: env.step(moment.action), stand)
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
