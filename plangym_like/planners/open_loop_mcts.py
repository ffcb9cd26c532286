"""Open-loop MCTS: a tree of action sequences, which holds no states."""

from __future__ import annotations

from functools import partial

import numpy as np

from plangym_like.env import PlanEnv
from plangym_like.planners.action_sets import index_of
from plangym_like.planners.nodes import ROOT
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Kept
from plangym_like.planners.search import Search
from plangym_like.planners.search_tree import SEEDS, SearchTree, TreeMemory, TreePlanner
from plangym_like.planners.uct import tree_bounds
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, as_number


class OpenLoopMCTS(TreePlanner):
    """Monte Carlo tree search over action sequences.

    D. Perez Liebana et al., "Open loop search for general video game playing", GECCO 2015: a node
    represents a sequence of actions, which may lead to different states. Every descent steps its
    actions again from the root, and then random actions up to `horizon`.

    Difference from the paper: after `advance`, the subtree of the action that was played is kept,
    if the action led to the state (this is tested with one transition). The returns in it are those
    of one action less, so the next trajectories are shorter by one action, too, and all returns
    remain comparable. When a tree has lost half of the horizon, the next search begins with a new
    one.

    This has advantages: memory does not grow with the size of states, a round is one
    `rollout_batch`, all returns end at the same step, and random steps need no chance nodes. But
    transitions above a leaf are stepped again in every descent, and actions do not depend on
    earlier outcomes. E. Lecarpentier et al., "Open loop execution of tree-search algorithms", 2018,
    show when this loses nothing.

    Selection, virtual loss and scaling work as in `UCT`.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite.
    batch, discount, virtual_loss, dt
        See `TreePlanner`.
    horizon : int
        The number of actions in a trajectory.
    explore : float
        The weight of the exploration term in the bounds; ``sqrt(2)`` gives UCB1.
    stochastic : bool
        Whether each trajectory is stepped with its own seed instead of the random numbers that the
        environment would draw next. The plan is then the luckiest trajectory.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import OpenLoopMCTS, play
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> play(OpenLoopMCTS(env, horizon=25), steps=50, budget=1_000, seed=0).score
    50.0
    """

    def __init__(
        self,
        env: PlanEnv,
        batch: int = 32,
        horizon: int = 20,
        explore: float = 1.0,
        discount: float = 1.0,
        *,
        virtual_loss: float = 1.0,
        dt: int = 1,
        stochastic: bool = False,
    ) -> None:
        super().__init__(env, batch, discount, virtual_loss, dt)
        self.horizon = as_count("horizon", horizon)
        self.explore = as_number("explore", explore, 0.0)
        self.stochastic = bool(stochastic)

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> TreeMemory:
        """Keep the subtree of the action that was played, if it led to `state`.

        The trajectories of the subtree are one action shorter than those of the last tree, and so
        are those of this search. A tree that has lost half of the horizon is not kept.
        """
        tree, horizon = None, self.horizon
        if kept is not None and kept.memory.horizon > (self.horizon + 1) // 2:
            old: SearchTree = kept.memory.tree
            action = index_of(self.actions, kept.action)
            child = int(old["child"][ROOT, action]) if action >= 0 else -1
            if child >= 0 and search.leads_to(
                kept.state, kept.action, self.dt, state, self.horizon
            ):
                tree = self._kept_tree(kept, search, child)
                horizon = self.horizon if tree is None else kept.memory.horizon - 1
        if tree is None:
            tree = SearchTree(len(self.actions), np.zeros(0, np.uint8))
        return TreeMemory(tree, horizon=horizon)

    def _search(self, state: Row, search: Search) -> Plan:
        memory: TreeMemory = search.memory
        tree, horizon = memory.tree, memory.horizon
        bounds = partial(tree_bounds, tree, search.rng, self.explore, self.virtual_loss)
        weights = self.discount ** np.arange(horizon)
        while count := self._affordable(search, memory, horizon):
            memory.descents += count
            paths = tree.descend(count, bounds, depth=horizon)
            plans = search.rng.integers(len(self.actions), size=(count, horizon))
            for depth, level in enumerate(paths.levels):
                plans[level.ids, depth] = level.actions
            seeds = search.rng.integers(SEEDS, size=count) if self.stochastic else None
            rollout = search.rollout_batch(self.actions[plans], state, self.dt, seeds=seeds)
            new = tree.expand(paths.parents, paths.actions)
            for depth, level in enumerate(paths.levels):
                returns = rollout.rewards[level.ids, depth:] @ weights[: horizon - depth]
                tree.record(level, new, returns)
            search.keep_rollout(plans, rollout, seeds)
            search.report(search.best.score, f"{tree.size:,} nodes")
        return self._plan(search, state, tree)
