"""`StepArrays`: the arrays into which a step of lanes writes its results."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]


class StepArrays(NamedTuple):
    """The results of one step: arrays with one row for each lane.

    Attributes
    ----------
    obs : tree of array ``(n, ...)``
        Before the step, it may hold the last observations.
    rewards : array ``(n,)`` of numbers
    terminated, truncated : array ``(n,) bool``
    """

    obs: Any
    rewards: NDArray[Any]
    terminated: Flags
    truncated: Flags
