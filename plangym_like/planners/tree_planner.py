"""`TreePlanner`: the base class of tree searches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.planners.action_sets import all_actions
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Planner
from plangym_like.planners.search import Search
from plangym_like.planners.search_tree import Floats, Ints, SearchTree
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, as_number

# Seeds of steps and rollouts are less than this.
SEEDS = 2**31


@dataclass(frozen=True)
class Trajectory:
    """Action indices, rewards and seeds, each ``(T,)``, and whether the episode has ended."""

    actions: Ints
    rewards: Floats
    seeds: Ints
    ended: bool
    score: float


class TreePlanner(Planner):
    """The base class of tree searches that run many descents at a time.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite.
    batch : int
        The number of descents in a round.
    discount : float
        The factor for the return after a step, from 0 to 1.
    virtual_loss : float
        From 0 to 1. In the mean return of an action, each descent under way counts as this many
        returns of 0. In the number of visits, it counts as 1.
    dt : int
        How long each action is held.

    Attributes
    ----------
    actions : array ``(A, *action_shape)``
        All actions, in the order used by the arrays of shape ``(A,)`` in `Plan.info`.
    """

    def __init__(
        self, env: PlanEnv, batch: int, discount: float, virtual_loss: float, dt: int
    ) -> None:
        super().__init__(env)
        self.actions: NDArray[Any] = all_actions(env, self.name)
        self.batch, self.dt = as_count("batch", batch), as_count("dt", dt)
        self.discount = as_number("discount", discount, 0.0, 1.0)
        self.virtual_loss = as_number("virtual_loss", virtual_loss, 0.0, 1.0)
        self._last: tuple[SearchTree, Trajectory, int] | None = None
        self._kept: tuple[SearchTree, Trajectory, int] | None = None
        self._best: Trajectory | None = None

    def advance(self) -> None:
        """Keep the subtree of the action that was played, for the next search."""
        self._kept = self._last

    def _begin(self, tree: SearchTree) -> SearchTree:
        """Return the kept subtree if its root has the same state as `tree`; otherwise `tree`."""
        kept, self._kept, self._last, self._best = self._kept, None, None, None
        if kept is None:
            return tree
        old, best, chosen = kept
        child = int(old["child"][0, chosen, 0])
        if old["state"].size:
            children = old["child"][0].ravel()
            children = children[children >= 0]
            same = (old["state"][children] == tree["state"][0]).all(axis=1)
            child = int(children[same.argmax()]) if same.any() else -1
            first = best.actions[0], best.seeds[0]
            leads_there = child >= 0 and first == (old["action"][child], old["seed"][child])
            if leads_there and len(best.actions) > 1:
                self._keep(best.actions[1:], best.rewards[1:], best.seeds[1:], best.ended)
        if child < 0 or old["ended"][child] or old["closed"][child].all():
            return tree
        return old.subtree(child)

    def _keep(self, actions: Ints, rewards: Floats, seeds: Ints, ended: Any) -> Trajectory:
        """Keep a trajectory if its score is the best so far; return the best one."""
        score = math.fsum(rewards)
        if self._best is None or score > self._best.score:
            self._best = Trajectory(actions, rewards, seeds, bool(ended), score)
        return self._best

    def _affordable(self, search: Search, tree: SearchTree, descents: int, cost: int) -> int:
        """Return the number of descents in the next round; each costs at most `cost` transitions.

        Descents to ended states may cost nothing, so the search has at most as many descents as its
        budget has transitions. The result is 0 when the search must end.
        """
        if tree["closed"][0].all() or (descents and search.progress().done == 1.0):
            return 0
        count = self.batch
        if search.remaining is not None:
            total = search.remaining + search.spent().transitions
            count = min(count, search.remaining // cost, max(total - descents, 0))
            if descents and not count:
                return 0
        return count if search.has(max(count, 1) * cost) else 0

    def _plan(self, search: Search, state: Row, tree: SearchTree, **info: Any) -> Plan:
        """Return the best trajectory, with statistics of the root's actions."""
        assert self._best is not None, "the first round keeps a trajectory"
        best = self._best
        visits, totals = tree["visits"][0].copy(), tree["total"][0].copy()
        values = np.divide(totals, visits, np.full(len(visits), -np.inf), where=visits > 0)
        closed = tree["closed"][0]
        chosen = int(np.lexsort((values, np.where(closed, -1, visits)))[-1])
        exact = np.where(closed, values, -np.inf)
        if closed.any() and exact.max() >= values[chosen]:
            chosen = int(np.argmax(exact))
        value = values.max() if closed.all() else max(totals.sum() / visits.sum(), exact.max())
        self._last = tree, best, chosen
        return search.plan(
            state,
            self.actions[best.actions],
            best.rewards,
            self.dt,
            ended=best.ended,
            seeds=best.seeds if (best.seeds >= 0).any() else None,
            action=self.actions[chosen],
            visits=visits.astype(np.int64),
            values=np.where(visits > 0, values, np.nan),
            value=float(value),
            nodes=tree.size,
            **info,
        )
