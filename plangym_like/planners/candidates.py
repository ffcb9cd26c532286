"""`Candidates`: plans that a search rolls out from its first state, and the best of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.planners.gaussian_plans import Floats, GaussianPlanner
from plangym_like.planners.plan import Plan
from plangym_like.planners.search import Search, lengths
from plangym_like.states.rows import Row


class Candidates:
    """Rolls plans out from one state, and keeps the best one.

    Episodes may end early, but this is not known before plans are rolled out. If the budget is too
    small for all plans of a batch at full length, the batch is rolled out in parts, each as large
    as the budget allows at full length. Plans that no longer fit into the budget are left out.

    Parameters
    ----------
    planner : GaussianPlanner
    search : Search
    state : row
    """

    def __init__(self, planner: GaussianPlanner, search: Search, state: Row) -> None:
        self._planner, self._search, self._state = planner, search, state
        self._budget, self._usual = search.remaining, float(planner.horizon)
        self._best: tuple[NDArray[Any], Floats, bool] | None = None
        self._count = self._steps = 0
        self.score = -math.inf

    def batch(self, iterations: int) -> int:
        """Return the number of plans in a batch.

        It is the planner's `batch`, or less if the budget is too small for `iterations` such
        batches. Plans are assumed to be as long as the earlier ones were on average.
        """
        if self._budget is None:
            return self._planner.batch
        most = int((self._budget - self._planner.horizon) // self._usual) // iterations
        return max(1, min(self._planner.batch, most))

    def affordable(self, count: int) -> bool:
        """Return whether the budget allows for `count` more plans, and then for the mean plan."""
        horizon = self._planner.horizon
        return self._search.has(horizon + max(horizon, math.ceil(count * self._usual)))

    def roll_out(self, plans: Floats) -> tuple[Floats, Floats]:
        """Roll plans out; return the clipped plans and their returns.

        If the budget is too small for all N plans, only the first M of them are rolled out.

        Parameters
        ----------
        plans : array ``(N, T, *action_shape)``
            They are clipped to the bounds of the action space.

        Returns
        -------
        plans : array ``(M, T, *action_shape)``
        returns : array ``(M,)``
        """
        horizon, found = self._planner.horizon, [np.empty(0)]
        actions, done = self._clipped(plans), 0
        while done < len(actions) and (not done or self._search.has(2 * horizon)):
            most = self._search.fit(len(actions) - done + 1, horizon) - 1  # leave room for the mean
            found.append(self._returns(actions[done : done + most]))
            done += most
        return actions[:done].astype(np.float64), np.concatenate(found)

    def _clipped(self, plans: Floats) -> NDArray[Any]:
        planner = self._planner
        actions: NDArray[Any] = np.clip(plans, planner.low, planner.high)
        return actions.astype(planner.env.action_space.dtype)

    def _returns(self, actions: NDArray[Any]) -> Floats:
        """Roll out one batch, and return the return of each plan."""
        rollout = self._search.rollout_batch(actions, self._state, self._planner.dt)
        steps = lengths(rollout)
        self._count, self._steps = self._count + len(steps), self._steps + int(steps.sum())
        self._usual = self._steps / self._count
        returns: Floats = rollout.rewards.sum(axis=1)
        row = int(np.argmax(returns))
        score = math.fsum(rollout.rewards[row])
        if score > self.score:
            length = steps[row]
            ended = rollout.terminateds[row, -1] or rollout.truncateds[row, -1]
            rewards = rollout.rewards[row, :length].copy()
            self.score, self._best = score, (actions[row, :length].copy(), rewards, bool(ended))
        return returns

    def plan(self, mean: Floats) -> Plan:
        """Roll out the mean, and return the best of all plans that were rolled out."""
        planner = self._planner
        self._returns(self._clipped(mean[None]))
        self._search.report(self.score)
        planner._found = mean
        assert self._best is not None, "returns are finite"
        actions, rewards, ended = self._best
        return self._search.plan(self._state, actions, rewards, planner.dt, ended=ended, mean=mean)
