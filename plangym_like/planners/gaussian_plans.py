"""The base class of planners that draw normally distributed plans, and its helpers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.planners.action_sets import bounds
from plangym_like.planners.planner import Planner
from plangym_like.support.arguments import as_count, as_number

Floats = NDArray[np.float64]

# With a larger exponent, noise is almost constant; with a much larger one, powers overflow.
_LARGEST_BETA = 10.0


class GaussianPlanner(Planner):
    """A planner that draws plans from a normal distribution around a mean plan.

    Parameters
    ----------
    env : PlanEnv
        Its action space is a bounded box of floats.
    horizon : int
        The number of actions in a plan, T.
    batch : int
        The number of plans in a batch, N.
    std : float
        The standard deviation of the noise, in units of half the range of each action.
    beta : float
        The exponent of the noise's spectrum, from 0 to 10. 0 is white noise; with larger values,
        noise changes more slowly. See `power_spectrum`.
    dt : int
        How long each action is held.

    Attributes
    ----------
    std : array ``(*action_shape) float64``
        The standard deviation of the noise, in units of the actions.

    Raises
    ------
    InputError
        An option is out of range, or the action space is not a bounded box of floats.
    """

    def __init__(
        self, env: PlanEnv, horizon: int, batch: int, std: float, beta: float, dt: int
    ) -> None:
        super().__init__(env)
        self.low, self.high = bounds(env, self.name)
        self.horizon, self.batch = as_count("horizon", horizon), as_count("batch", batch)
        self.dt, self.beta = as_count("dt", dt), as_number("beta", beta, 0.0, _LARGEST_BETA)
        ranges = self.high - self.low
        # Where bounds are equal, plans are clipped to them, and any deviation above 0 will do.
        self.std: Floats = as_number("std", std, 1e-6) * np.where(ranges > 0, ranges, 1.0) / 2
        self._power = power_spectrum(self.beta, self.horizon)
        self._found: Floats | None = None
        self._next: Floats | None = None

    def advance(self) -> None:
        """Begin the next search with the mean of the last search, shifted by one action."""
        if self._found is not None:
            self._next, self._found = shifted(self._found[None])[0], None

    def _first_mean(self) -> Floats:
        """Return the mean ``(T, *action_shape)`` to begin with; by default, the middle action."""
        mean, self._next, self._found = self._next, None, None
        if mean is None:
            middle = (self.low + self.high) / 2
            mean = np.broadcast_to(middle, (self.horizon, *middle.shape)).copy()
        return mean

    def _noise(self, rng: np.random.Generator, count: int) -> Floats:
        """Return noise ``(count, T, *action_shape)`` with a standard deviation of 1."""
        white = rng.standard_normal((count, self.horizon, *self.low.shape))
        return filtered(white, np.sqrt(self._power)) if self.beta else white


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
