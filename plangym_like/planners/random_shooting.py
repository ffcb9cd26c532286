"""Random shooting: the best of many random plans."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.planners.action_sets import ActionSampler, all_actions, bounds
from plangym_like.planners.continuous_plans import Spline
from plangym_like.planners.games import Rules
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Kept, Planner
from plangym_like.planners.search import Search, ended, lengths
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count


class RandomShooting(Planner):
    """Draw random plans, roll them out, and keep the best one.

    A. Nagabandi, G. Kahn, R. S. Fearing and S. Levine, "Neural network dynamics for model-based
    deep reinforcement learning with model-free fine-tuning", ICRA 2018, section IV-C, use this
    method for model predictive control. It is a baseline for other planners.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite or a bounded box.
    horizon : int
        The number of actions in a plan.
    batch : int
        The number of plans that are rolled out at once.
    dt : int
        How long each action is held.
    knots : int, optional
        Plans are splines through so many random knots; for a bounded box only. By default, every
        action is drawn.
    spline : {"zero", "linear", "cubic"}
        The kind of spline; see `Spline`. Without `knots`, it has no effect.
    **rules
        See `Rules`.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = RandomShooting(env, horizon=20).plan(state, budget=10_000, seed=0)
    >>> plan.score, plan.replay(env)
    (20.0, 20.0)
    """

    def __init__(
        self,
        env: PlanEnv,
        horizon: int = 30,
        batch: int = 256,
        dt: int = 1,
        knots: int | None = None,
        spline: str = "linear",
        **rules: Unpack[Rules],
    ) -> None:
        super().__init__(env, **rules)
        self.horizon, self.batch = as_count("horizon", horizon), as_count("batch", batch)
        self.dt = as_count("dt", dt)
        self._sample = ActionSampler(env, self.name)
        self.knots = None if knots is None else as_count("knots", knots)
        if knots is not None:
            self._low, self._high = bounds(env, self.name)
            self._spline = Spline(spline, knots, self.horizon)

    def _draw(self, search: Search, count: int) -> NDArray[Any]:
        """Return random plans ``(count, T, *action_shape)``."""
        if self.knots is None:
            return self._sample(search.rng, count, self.horizon)
        shape = (count, self.knots, *self._low.shape)
        actions = self._spline.actions(search.rng.uniform(self._low, self._high, shape))
        # Between its knots, a cubic spline may leave the bounds.
        clipped: NDArray[Any] = np.clip(actions, self._low, self._high)
        return clipped.astype(self.env.action_space.dtype)

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> dict[str, Any]:
        return {}  # only the best plan is kept

    def _search(self, state: Row, search: Search) -> Plan:
        while search.has((batch := search.fit(self.batch, self.horizon)) * self.horizon):
            if search.turns.legal is None:
                plans = self._draw(search, batch)
                rollout = search.rollout_batch(plans, state, dt=self.dt)
                search.keep_rollout(plans, rollout.rewards, lengths(rollout), ended(rollout))
            else:
                actions = all_actions(self.env, self.name)
                plans = search.rng.integers(len(actions), size=(batch, self.horizon))
                states = np.repeat(state[None], batch, axis=0)
                turns = search.turns.take(np.zeros(batch, np.intp))
                played = search.play_out(actions, plans, states, turns, self.dt)
                plans = actions[played.actions]
                search.keep_rollout(plans, played.rewards, played.lengths, played.ended)
            search.report(search.best.score)
        assert search.best.found is not None, "`has` raises if the budget is too small for a batch"
        actions, rewards = search.best.found
        return search.plan(state, actions, rewards, self.dt, ended=search.best.ended)
