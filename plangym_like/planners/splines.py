"""Plans that are splines: a few knots determine all actions.

The actions are linear in the knots, so a matrix computes them.
"""

from __future__ import annotations

import numpy as np

from plangym_like.errors import InputError
from plangym_like.planners.nodes import Floats

KINDS = ("zero", "linear", "cubic")


class Spline:
    """Turns D knots into T actions.

    Parameters
    ----------
    kind : {"zero", "linear", "cubic"}
        ``"zero"`` holds each knot for an equal part of the plan. ``"linear"`` and ``"cubic"``
        interpolate knots that are equally spaced from the first action to the last. Cubic
        splines have the slopes of Catmull and Rom, "A class of local interpolating splines", 1974:
        at a knot, the slope of the line from the knot before to the knot after it; at an end, that
        of the line to the only neighbour.
    knots, horizon : int
        D, from 2 to T; and T.

    Examples
    --------
    >>> Spline("linear", 2, 5).actions(np.array([[0.0, 1.0]]))
    array([[0.  , 0.25, 0.5 , 0.75, 1.  ]])
    >>> Spline("zero", 2, 5).actions(np.array([[0.0, 1.0]]))
    array([[0., 0., 0., 1., 1.]])
    """

    def __init__(self, kind: str, knots: int, horizon: int) -> None:
        if kind not in KINDS:
            raise InputError(f"spline must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
        if not 2 <= knots <= horizon:
            raise InputError(
                f"knots must be at least 2, and at most horizon = {horizon}, got {knots}"
            )
        times = np.arange(horizon, dtype=np.float64)
        places = np.linspace(0, horizon - 1, knots)
        later = np.minimum(places + 1, horizon - 1)
        if kind == "zero":
            self._actions = np.eye(knots)[np.arange(horizon) * knots // horizon]
        else:
            self._actions = _interpolation(places, times, cubic=kind == "cubic")
        if kind == "zero":
            # Held knots cannot move by one action, so each moves towards the next one. After as
            # many shifts as a knot is held for, most of the way is done.
            share = knots / horizon
            self._later = (1 - share) * np.eye(knots) + share * np.eye(knots, k=1)
            self._later[-1, -1] = 1.0
        else:
            self._later = _interpolation(places, later, cubic=kind == "cubic")

    def actions(self, knots: Floats) -> Floats:
        """Return the actions ``(N, T, ...)`` of plans with these knots ``(N, D, ...)``."""
        return _apply(self._actions, knots)

    def shifted(self, knots: Floats) -> Floats:
        """Return the knots of plans that begin one action later, and hold the last action."""
        return _apply(self._later, knots)


def _apply(matrix: Floats, knots: Floats) -> Floats:
    found: Floats = np.moveaxis(np.tensordot(matrix, knots, axes=(1, 1)), 0, 1)
    return np.ascontiguousarray(found)


def _interpolation(places: Floats, times: Floats, *, cubic: bool) -> Floats:
    """Return the matrix ``(len(times), D)`` that interpolates values at D equally spaced places."""
    count, values = len(places), np.eye(len(places))
    step = places[1] - places[0]
    left = np.clip(np.floor(times / step).astype(int), 0, count - 2)
    t = ((times - places[left]) / step)[:, None]
    if not cubic:
        found: Floats = (1 - t) * values[left] + t * values[left + 1]
        return found
    slopes = np.gradient(values, axis=0)  # for one step from knot to knot
    found = (
        (2 * t**3 - 3 * t**2 + 1) * values[left]
        + (t**3 - 2 * t**2 + t) * slopes[left]
        + (3 * t**2 - 2 * t**3) * values[left + 1]
        + (t**3 - t**2) * slopes[left + 1]
    )
    return found
