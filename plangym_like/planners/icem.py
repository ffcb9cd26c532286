"""iCEM: a sample-efficient cross-entropy method."""

from __future__ import annotations

import numpy as np

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.candidates import Candidates
from plangym_like.planners.cem import CONVERGED, fitted
from plangym_like.planners.gaussian_plans import Floats, GaussianPlanner, shifted
from plangym_like.planners.plan import Plan
from plangym_like.planners.search import Search
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, as_number

# The first batch is smaller if the budget would otherwise allow for fewer iterations than this.
_ITERATIONS = 3


class ICEM(GaussianPlanner):
    """The cross-entropy method with coloured noise, and elites that are kept.

    C. Pinneri, S. Sawant, S. Blaes, J. Achterhold, J. Stueckler, M. Rolinek and G. Martius,
    "Sample-efficient cross-entropy method for real-time planning", CoRL 2020, Algorithm 1. Noise
    has a power spectrum of ``f**-beta``, and batches become smaller. Elites are kept for the next
    iteration. For the next search, the mean and the kept elites are shifted by one action. The
    result is the best plan, not the mean.

    Differences from the paper: elites that are kept within a search are not rolled out again,
    because that would give the same returns. The mean is rolled out after the last iteration
    instead of in it. The search ends before its budget is spent if all standard deviations have
    fallen to a thousandth of their initial values.

    Parameters
    ----------
    env, horizon, std, beta, dt
        See `GaussianPlanner`. `std` is the first standard deviation, `horizon` is h.
    batch : int
        The number of plans in the first iteration, N; it is smaller if the budget would otherwise
        allow for fewer than three iterations.
    elites, alpha
        As in `CEM`; `elites` is K.
    decay : float
        The number of plans is divided by this factor after each iteration, but is at least
        ``2 * elites``.
    kept : float
        The fraction of the elites that is kept, from 0 to 1.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import ICEM
    >>> env = plangym_like.make("Pendulum-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = ICEM(env, horizon=20, batch=50).plan(state, budget=10_000, seed=0)
    >>> plan.score > -100, plan.score == plan.replay(env)
    (True, True)
    """

    def __init__(
        self,
        env: PlanEnv,
        horizon: int = 30,
        batch: int = 100,
        elites: int = 10,
        std: float = 0.5,
        beta: float = 1.0,
        decay: float = 1.25,
        kept: float = 0.3,
        alpha: float = 0.1,
        dt: int = 1,
    ) -> None:
        super().__init__(env, horizon, batch, std, beta, dt)
        self.elites, self.decay = as_count("elites", elites), as_number("decay", decay, 1.0)
        self.kept = as_number("kept", kept, 0.0, 1.0)
        self.alpha = as_number("alpha", alpha, 0.0, 1.0)
        if 2 * self.elites > self.batch:
            raise InputError(f"elites must be at most batch / 2 = {batch / 2:g}, got {elites}")
        self._elites: Floats | None = None
        self._next_elites: Floats | None = None

    def advance(self) -> None:
        """Begin the next search with the last mean and kept elites, shifted by one action."""
        super().advance()
        if self._elites is not None:
            self._next_elites, self._elites = shifted(self._elites), None

    def _search(self, state: Row, search: Search) -> Plan:
        candidates = Candidates(self, search, state)
        mean, std = self._first_mean(), np.broadcast_to(self.std, (self.horizon, *self.std.shape))
        batch, elites, kept = self._sizes(candidates, 0)
        best, scores = np.empty((0, *mean.shape)), np.empty(0)
        old, self._next_elites, self._elites = self._next_elites, None, None
        old = best if old is None else old
        if search.remaining is not None:  # the last search may have had a larger budget
            old = old[: max(0, search.remaining // self.horizon - 1 - batch)]
        iteration = 0
        while candidates.affordable(batch // 2 + 1) and np.any(std > CONVERGED * self.std):
            plans = mean + std * self._noise(search.rng, batch)
            if len(old):  # the last action of shifted elites is drawn at random
                old[:, -1] = (mean + std * self._noise(search.rng, len(old)))[:, -1]
            plans, returns = candidates.roll_out(np.concatenate([plans, old]))
            wanted, elites, kept = self._sizes(candidates, iteration)
            if len(plans) > max(elites, wanted // 2):  # as in CEM
                plans = np.concatenate([best[:kept], plans])
                returns = np.concatenate([scores[:kept], returns])
                order = np.argsort(-returns, kind="stable")[:elites]
                best, scores = plans[order], returns[order]
                mean, std = fitted(best, mean, std, self.alpha)
                iteration, old = iteration + 1, old[:0]
            search.report(candidates.score, f"std {(std / self.std).mean():.3f} of the first")
            batch, elites, kept = self._sizes(candidates, iteration)
        plan = candidates.plan(mean)
        self._elites = best[:kept]
        return plan

    def _sizes(self, candidates: Candidates, iteration: int) -> tuple[int, int, int]:
        """Return how many plans a batch has, how many are elites, and how many of these to keep."""
        first = candidates.batch(_ITERATIONS)
        elites = max(1, self.elites * first // self.batch)
        batch = min(first, max(int(first * self.decay**-iteration), 2 * elites))
        return batch, elites, int(self.kept * elites)
