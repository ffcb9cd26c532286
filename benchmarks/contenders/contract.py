"""The interface of contenders, and how all of them are timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class CannotDo(Exception):
    """The contender has no way of doing this job at all; the message says which part of it."""


@dataclass(frozen=True)
class Job:
    """What has to be stepped.

    Attributes
    ----------
    env_id : str
        A registered Gymnasium id.
    obs_type : str or None
        ``"rgb"`` or ``"ram"`` on Atari.
    count : int
        Rows of one batch, for contenders that step from given states.
    """

    env_id: str
    obs_type: str | None
    count: int

    @property
    def atari(self) -> bool:
        """Whether an emulator does the work."""
        return self.env_id.startswith("ALE/")


@dataclass
class Work:
    """A job that is open and ready to be timed.

    Attributes
    ----------
    step : callable
        ``step(count)`` does one batch and returns how many transitions that was; contenders
        whose batch is fixed ignore ``count``.
    close : callable
        Ends whatever was started.
    evidence : dict
        Sums over one batch, equal for all contenders that start from the same states.
    """

    step: Callable[[int], int]
    close: Callable[[], object]
    evidence: dict[str, float] = field(default_factory=dict)

    def measure(self, seconds: float, count: int) -> tuple[int, float]:
        """Step for ``seconds``, at least one batch; return transitions and seconds taken.

        One batch runs first and does not count: it wakes what slept while others were measured.
        """
        self.step(count)
        transitions = 0
        start = time.perf_counter()
        end = start
        while end - start < seconds or transitions == 0:
            transitions += self.step(count)
            end = time.perf_counter()
        return transitions, end - start


def summarise(observations: Any, rewards: Any) -> dict[str, float]:
    """Return the sums by which contenders show that they did the same work."""
    import numpy as np

    stacked = np.asarray(observations)
    return {
        "observations": round(float(stacked.sum(dtype=np.float64)), 3),
        "rewards": round(float(np.sum(rewards)), 3),
    }
