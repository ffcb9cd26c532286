"""The cross-entropy method."""

from __future__ import annotations

import numpy as np

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.candidates import Candidates
from plangym_like.planners.gaussian_plans import Floats, GaussianPlanner
from plangym_like.planners.plan import Plan
from plangym_like.planners.search import Search
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, as_number

# The search ends when no standard deviation exceeds this fraction of its initial value.
CONVERGED = 1e-3
# Batches become smaller if the budget would otherwise allow for fewer iterations than this.
_ITERATIONS = 5


class CEM(GaussianPlanner):
    """Draw plans from a normal distribution, fit it to the best of them, and repeat.

    R. Y. Rubinstein and D. P. Kroese, "The Cross-Entropy Method", 2004; P.-T. de Boer, D. P.
    Kroese, S. Mannor and R. Y. Rubinstein, "A tutorial on the cross-entropy method", Annals of
    Operations Research 134, 2005 (continuous optimisation with smoothed updates); for model
    predictive control as in K. Chua, R. Calandra, R. McAllister and S. Levine, "Deep reinforcement
    learning in a handful of trials using probabilistic dynamics models", NeurIPS 2018.

    Differences from these works: plans are clipped to the bounds (Chua et al. draw from a truncated
    normal distribution, and make it narrower near the bounds). The mean is rolled out at the end,
    and the best of all plans is returned (Chua et al. play the mean). `advance` fills the end of
    the shifted mean with the last action instead of 0. The search ends before its budget is spent
    if all standard deviations have fallen to a thousandth of their initial values.

    Parameters
    ----------
    env, horizon, std, dt
        See `GaussianPlanner`. `std` is the first standard deviation.
    batch : int
        The number of plans in each iteration; it is smaller if the budget would otherwise allow for
        fewer than five iterations.
    elites : int
        The number of best plans to which the distribution is fitted, less than `batch`; in smaller
        batches, it is reduced in proportion.
    alpha : float
        The weight of the old mean and standard deviation in the new ones, from 0 to 1.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import CEM
    >>> env = plangym_like.make("Pendulum-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = CEM(env, horizon=20, batch=100).plan(state, budget=20_000, seed=0)
    >>> plan.score > -100, plan.score == plan.replay(env)
    (True, True)
    """

    def __init__(
        self,
        env: PlanEnv,
        horizon: int = 30,
        batch: int = 200,
        elites: int = 20,
        std: float = 0.5,
        alpha: float = 0.1,
        dt: int = 1,
    ) -> None:
        super().__init__(env, horizon, batch, std, 0.0, dt)
        self.elites, self.alpha = as_count("elites", elites), as_number("alpha", alpha, 0.0, 1.0)
        if self.elites >= self.batch:
            raise InputError(f"elites must be less than batch = {self.batch}, got {self.elites}")

    def _search(self, state: Row, search: Search) -> Plan:
        candidates = Candidates(self, search, state)
        mean, std = self._first_mean(), np.broadcast_to(self.std, (self.horizon, *self.std.shape))
        batch = candidates.batch(_ITERATIONS)
        while candidates.affordable(batch // 2 + 1) and np.any(std > CONVERGED * self.std):
            plans, returns = candidates.roll_out(mean + std * self._noise(search.rng, batch))
            elites = max(1, self.elites * len(plans) // self.batch)
            # If episodes are shorter than assumed, this batch is too small, and the next is larger.
            batch = candidates.batch(_ITERATIONS)
            if len(plans) > max(elites, batch // 2):
                best = plans[np.argsort(-returns, kind="stable")[:elites]]
                mean, std = fitted(best, mean, std, self.alpha)
            search.report(candidates.score, f"std {(std / self.std).mean():.3f} of the first")
        return candidates.plan(mean)


def fitted(best: Floats, mean: Floats, std: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Return a new mean and standard deviation, fitted to the best plans ``(K, T, ...)``.

    Each is averaged with the old value, which has the weight `alpha`.
    """
    return (
        alpha * mean + (1 - alpha) * best.mean(axis=0),
        alpha * std + (1 - alpha) * best.std(axis=0),
    )
