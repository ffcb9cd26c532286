"""`Step` and `StepArrays`: a step of lanes, and the arrays into which it writes its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
# The last observation and info of each episode that ended in a step, by lane.
Finals = dict[int, tuple[Any, dict[str, Any]]]


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


@dataclass(slots=True)
class Step:
    """A step that `Lanes.submit` begins and `Lanes.collect` completes.

    Attributes
    ----------
    method : {"step", "step_next", "step_same"}
        The method of `Lanes` that does this.
    actions : tree of array ``(n, ...)``
        They must not change until the step is collected.
    out : StepArrays
    lanes : sequence of int, optional
        Which lanes are stepped; by default all.
    ended : array ``(n,) bool``, optional
        For ``"step_next"``: which lanes are reset instead of stepped.
    finals : dict of int to (observation, info)
        What `Lanes.step_same` returned; empty for other methods.
    """

    method: str
    actions: Any
    out: StepArrays
    lanes: Sequence[int] | NDArray[np.intp] | None = None
    ended: Flags | None = None
    finals: Finals = field(default_factory=dict)
