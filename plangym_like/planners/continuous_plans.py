"""Plans of continuous actions.

- `Spline`: turns a few knots into all actions
- `Objective`: the value of a plan; by default, the sum of its rewards
- `at_risk`: one value of several
- `power_spectrum`, `filtered`: coloured noise
- `fitted`: the normal distribution of the best plans
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plangym_like.errors import InputError
from plangym_like.planners.nodes import Floats
from plangym_like.planners.search import lengths
from plangym_like.results import Rollout
from plangym_like.support.arguments import as_number

Reward = Callable[[Any, NDArray[Any]], ArrayLike]
TerminalValue = Callable[[Any], ArrayLike]
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


class Objective:
    """The value of a plan: the discounted sum of its rewards, and the value of its last state.

    ::

        sum over t of discount**t * reward[t]  +  discount**T * terminal_value

    Here, t counts actions, whatever their `dt`.

    Parameters
    ----------
    discount : float
        From 0 to 1.
    reward : callable, optional
        ``reward(observations, actions)`` takes the place of the environment's rewards. It gets
        ``(N, T, *obs_shape)``, what was observed after each action, and the actions
        ``(N, T, *action_shape)``, and returns ``(N, T)``: one number for each action, however long
        it is held. Numbers after the end of an episode have no effect.
    terminal_value : callable, optional
        ``terminal_value(observations)`` gets the last observation of each plan,
        ``(N, *obs_shape)``, and returns its value ``(N,)``. Plans whose episode was terminated get
        none; if a time limit ends an episode, its last observation counts.

    Attributes
    ----------
    is_score : bool
        Whether the value is the sum of the environment's rewards, `Plan.score`.
    needs_observations : bool

    Notes
    -----
    If it is not the sum of rewards, `Plan.curve` has the end of the search only.

    Raises
    ------
    InputError
        An argument is invalid; or, from `values`, a function returns another shape, or NaN.
    """

    def __init__(
        self,
        discount: float = 1.0,
        reward: Reward | None = None,
        terminal_value: TerminalValue | None = None,
    ) -> None:
        for name, function in (("reward", reward), ("terminal_value", terminal_value)):
            if function is not None and not callable(function):
                raise InputError(f"{name} must be a function, got {function!r}")
        self.discount = as_number("discount", discount, 0.0, 1.0)
        self.reward, self.terminal_value = reward, terminal_value
        self.needs_observations = reward is not None or terminal_value is not None
        self.is_score = self.discount == 1.0 and not self.needs_observations

    def values(self, actions: NDArray[Any], rollout: Rollout) -> Floats:
        """Return the value ``(N,)`` of each plan; `actions` is ``(N, T, *action_shape)``."""
        if self.is_score:
            total: Floats = rollout.rewards.sum(axis=1)
            return total
        count, horizon = rollout.rewards.shape
        steps, rewards = lengths(rollout), rollout.rewards
        if self.reward is not None:
            given = self.reward(rollout.observations, actions)
            played = np.arange(horizon) < steps[:, None]
            rewards = _checked("reward", given, (count, horizon), played)
        # NumPy adds up each row in the same order, whatever the number of rows.
        values: Floats = (rewards * self.discount ** np.arange(horizon)).sum(axis=1)
        if self.terminal_value is not None:
            last = self.terminal_value(_last(rollout.observations, steps - 1))
            goes_on = ~rollout.terminateds[:, -1]
            values += self.discount**steps * _checked("terminal_value", last, (count,), goes_on)
        return values


def _last(observations: Any, at: NDArray[np.int64]) -> Any:
    """Return the observation of each row at its time in `at`; dicts and tuples keep their form."""
    if isinstance(observations, dict):
        return {name: _last(part, at) for name, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_last(part, at) for part in observations)
    return observations[np.arange(len(at)), at]


def _checked(
    name: str, given: ArrayLike, shape: tuple[int, ...], counts: NDArray[np.bool_]
) -> Floats:
    """Return what a function gave, with 0 where it does not count."""
    found = np.asarray(given)
    if found.shape != shape or found.dtype.kind not in "fiub":
        raise InputError(
            f"{name} must return numbers of shape {shape}; it returned {found.dtype} of shape "
            f"{found.shape}"
        )
    found = np.where(counts, found, 0.0)
    if not np.isfinite(found).all():
        raise InputError(f"{name} returned a value that is infinite or NaN")
    return found.astype(np.float64)


def power_spectrum(beta: float, horizon: int) -> Floats:
    """Return the power ``(T // 2 + 1,)`` of each frequency f, proportional to ``f**-beta``.

    A `beta` of 0 gives white noise, 1 pink and 2 red (J. Timmer and M. König, "On generating power
    law noise", Astronomy and Astrophysics 300, 1995). The mean power of all T frequencies is 1, so
    every sample of the noise has variance 1. Frequency 0 has the power of frequency ``1 / T``.

    Examples
    --------
    >>> power_spectrum(1.0, 4)
    array([1.14285714, 1.14285714, 0.57142857])
    """
    frequencies = np.maximum(np.abs(np.fft.fftfreq(horizon)), 1 / horizon)
    power = frequencies**-beta
    spectrum: Floats = power[: horizon // 2 + 1] / power.mean()
    return spectrum


def filtered(plans: Floats, gains: Floats) -> Floats:
    """Scale each frequency of plans ``(N, T, ...)`` by its gain in `gains` ``(T // 2 + 1,)``."""
    gains = gains.reshape(-1, *(1,) * (plans.ndim - 2))
    result: Floats = np.fft.irfft(np.fft.rfft(plans, axis=1) * gains, n=plans.shape[1], axis=1)
    return result


def shifted(plans: Floats) -> Floats:
    """Return plans ``(N, T, ...)`` without their first action, and with their last action twice.

    Examples
    --------
    >>> shifted(np.array([[1.0, 2.0, 3.0]]))
    array([[2., 3., 3.]])
    """
    return np.concatenate([plans[:, 1:], plans[:, -1:]], axis=1)


def at_risk(values: Floats, risk: float) -> Floats:
    """Return the average ``(N,)`` of the lowest of the values ``(N, K)``, a fraction `risk`.

    Examples
    --------
    >>> values = np.array([[4.0, 1.0, 2.0, 3.0]])
    >>> [at_risk(values, risk).item() for risk in (0.0, 0.5, 1.0)]
    [1.0, 1.5, 2.5]
    """
    count = max(1, math.ceil(risk * values.shape[1]))
    average: Floats = np.sort(values, axis=1)[:, :count].mean(axis=1)
    return average


def fitted(best: Floats, mean: Floats, std: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Return a new mean and standard deviation, fitted to the best plans ``(K, D, ...)``.

    Each is averaged with the old value, which has the weight `alpha`.
    """
    return (
        alpha * mean + (1 - alpha) * best.mean(axis=0),
        alpha * std + (1 - alpha) * best.std(axis=0),
    )
