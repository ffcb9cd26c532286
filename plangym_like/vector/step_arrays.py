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
        These arrays may hold the last observations before the step.
    rewards : array ``(n,)`` of numbers
    terminated, truncated : array ``(n,) bool``

    Examples
    --------
    >>> from plangym_like.vector.make_lanes import lanes_from
    >>> lanes = lanes_from("CartPole-v1", 4)
    >>> obs = lanes.start(seeds=range(4))
    >>> out = StepArrays(obs, np.empty(4), np.empty(4, bool), np.empty(4, bool))
    >>> lanes.step(np.array([0, 1, 0, 1]), out)
    >>> out.rewards
    array([1., 1., 1., 1.])
    """

    obs: Any
    rewards: NDArray[Any]
    terminated: Flags
    truncated: Flags
