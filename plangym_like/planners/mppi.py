"""MPPI: model predictive path integral control."""

from __future__ import annotations

import numpy as np

from plangym_like.env import PlanEnv
from plangym_like.planners.candidates import Candidates
from plangym_like.planners.gaussian_plans import Floats, GaussianPlanner, filtered
from plangym_like.planners.plan import Plan
from plangym_like.planners.search import Search
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_number


class MPPI(GaussianPlanner):
    """Add noise to the mean plan, weight the noise by the returns, and add its average to the mean.

    G. Williams, N. Wagener, B. Goldfain, P. Drews, J. M. Rehg, B. Boots and E. A. Theodorou,
    "Information theoretic MPC for model-based reinforcement learning", ICRA 2017, Algorithm 2;
    G. Williams, P. Drews, B. Goldfain, J. M. Rehg and E. A. Theodorou, "Information-theoretic model
    predictive control: theory and applications to autonomous driving", IEEE Transactions on
    Robotics 34, 2018.

    Differences from the papers:

    - Rewards take the place of costs.
    - All plans are drawn around the mean. (The second paper draws a fraction of them around 0.)
    - By default, `temperature` is relative to the spread of the returns.
    - The noise of a plan is the difference between the clipped plan and the mean.
    - The first plan of each batch is the mean without noise.
    - The mean is not smoothed afterwards. Instead, noise may be coloured (`beta`), and the control
      cost uses the covariance of the coloured noise.
    - The mean is updated as often as the budget allows, and rolled out at the end. The best of all
      plans is returned (the papers play the mean).

    Parameters
    ----------
    env, horizon, std, beta, dt
        See `GaussianPlanner`.
    batch : int
        The number of plans in each batch, K; it is reduced if the budget is too small.
    temperature : float
        λ, in units of the standard deviation of the batch's returns. The lower it is, the more the
        best plans count.
    alpha : float
        From 0 to 1: the control cost is ``(1 - alpha) * λ * u^T Σ^-1 ε``. With 1, it is 0.
    relative : bool
        If False, `temperature` is λ in units of the rewards.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import MPPI
    >>> env = plangym_like.make("Pendulum-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = MPPI(env, horizon=20, batch=100).plan(state, budget=20_000, seed=0)
    >>> plan.score > -100, plan.score == plan.replay(env)
    (True, True)
    """

    def __init__(
        self,
        env: PlanEnv,
        horizon: int = 30,
        batch: int = 128,
        std: float = 0.5,
        temperature: float = 0.1,
        alpha: float = 1.0,
        beta: float = 1.0,
        relative: bool = True,
        dt: int = 1,
    ) -> None:
        super().__init__(env, horizon, batch, std, beta, dt)
        self.temperature = as_number("temperature", temperature, 1e-6)
        self.alpha, self.relative = as_number("alpha", alpha, 0.0, 1.0), bool(relative)

    def _search(self, state: Row, search: Search) -> Plan:
        candidates = Candidates(self, search, state)
        mean = self._first_mean()
        while candidates.affordable(1):
            noise = self.std * self._noise(search.rng, candidates.batch(iterations=1))
            noise[0] = 0.0
            plans, returns = candidates.roll_out(mean + noise)
            noise = plans - mean  # of the plans that the budget allowed, after clipping
            mean = mean + np.tensordot(self.weights(returns, mean, noise), noise, axes=1)
            search.report(candidates.score)
        return candidates.plan(mean)

    def weights(self, returns: Floats, mean: Floats, noise: Floats) -> Floats:
        """Return the weights ``(K,)`` of plans; their sum is 1.

        The formula is that of Algorithm 2 in the first paper, where η normalises the weights. The
        factor ``1 - alpha`` is from the second paper::

            S = -returns + (1 - alpha) * λ * u^T Σ^-1 ε
            w = exp(-(S - min(S)) / λ) / η

        Parameters
        ----------
        returns : array ``(K,)``
        mean : array ``(T, *action_shape)``
            u.
        noise : array ``(K, T, *action_shape)``
            ε.
        """
        spread = float(returns.std()) if self.relative else 1.0
        temperature = self.temperature * max(spread, 1e-9)
        # Σ is the product of a covariance in time, which the spectrum defines, and one of actions.
        scaled = filtered(mean[None], 1 / self._power)[0] / self.std**2
        cost = (1 - self.alpha) * np.tensordot(noise, scaled, axes=mean.ndim)
        exponents = returns / temperature - cost
        weights: Floats = np.exp(exponents - np.max(exponents))
        weights /= weights.sum()
        return weights
