"""Predictive sampling: the best of several noisy plans becomes the next plan."""

from __future__ import annotations

import numpy as np

from plangym_like.env import PlanEnv
from plangym_like.planners.gaussian_plans import Candidates, GaussianPlanner
from plangym_like.planners.objective import Reward, TerminalValue
from plangym_like.planners.plan import Plan
from plangym_like.planners.search import Search
from plangym_like.states.rows import Row


class PredictiveSampling(GaussianPlanner):
    """Add noise to the best plan so far, and keep the best of the results.

    T. Howell, N. Gileadi, S. Tunyasuvunakool, K. Zakka, T. Erez and Y. Tassa, "Predictive sampling:
    real-time behaviour synthesis with MuJoCo", 2022, section 3: plans are splines, noise is added
    to their knots, and the first of each batch has none.

    Differences from the report: the number of batches follows from the budget (there, it is one).
    Knots are clipped to the bounds of the actions, as in the authors' program.

    Parameters
    ----------
    env, horizon, batch, std, beta, dt, knots, spline, discount, reward, terminal_value
        See `GaussianPlanner`.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import PredictiveSampling
    >>> env = plangym_like.make("Pendulum-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> planner = PredictiveSampling(env, horizon=20, batch=32, knots=5, spline="linear")
    >>> plan = planner.plan(state, budget=10_000, seed=0)
    >>> plan.score > -100, plan.score == plan.replay(env)
    (True, True)
    """

    def __init__(
        self,
        env: PlanEnv,
        horizon: int = 30,
        batch: int = 32,
        std: float = 0.5,
        beta: float = 0.0,
        dt: int = 1,
        knots: int | None = None,
        spline: str = "linear",
        discount: float = 1.0,
        reward: Reward | None = None,
        terminal_value: TerminalValue | None = None,
    ) -> None:
        goal = discount, reward, terminal_value
        super().__init__(env, horizon, batch, std, beta, dt, knots, spline, *goal)

    def _search(self, state: Row, search: Search) -> Plan:
        candidates, memory = Candidates(self, search, state), search.memory
        while candidates.affordable(1):
            noise = self.std * self._noise(search.rng, candidates.batch(iterations=1))
            noise[0] = 0.0
            plans, returns = candidates.roll_out(memory.mean + noise)
            memory.mean = plans[np.argmax(returns)]
            candidates.report()
        return candidates.plan(memory.mean)
