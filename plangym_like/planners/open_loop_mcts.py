"""Open-loop MCTS: a tree of action sequences, which holds no states."""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

import numpy as np

from plangym_like.env import PlanEnv
from plangym_like.planners.action_sets import index_of
from plangym_like.planners.games import Turns
from plangym_like.planners.nodes import Ints, Rows
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Kept
from plangym_like.planners.search import Played, Search
from plangym_like.planners.search_tree import SEEDS, Descents, Level, SearchTree, resolved
from plangym_like.planners.tree_planner import TreeMemory, TreeOptions, TreePlanner
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

    Selection, virtual loss and scaling work as in `UCT`, but no subtree is solved. The legal
    actions and the player of a node are those of the first trajectory that reached it. Where an
    action of the tree is not legal after other outcomes, a trajectory continues at random.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite.
    batch, discount, **options
        See `TreePlanner`, `TreeOptions` and `Rules`.
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
        stochastic: bool = False,
        **options: Unpack[TreeOptions],
    ) -> None:
        super().__init__(env, batch, discount, **options)
        self.horizon = as_count("horizon", horizon)
        self.explore = as_number("explore", explore, 0.0)
        self.stochastic = bool(stochastic)

    def _new_tree(self, states: Rows, turns: Turns) -> SearchTree:
        return SearchTree(len(self.actions), states[:, :0], turns)

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> TreeMemory:
        """Keep the subtree of the action that was played, if it led to the state.

        The trajectories of the subtree are one action shorter than those of the last tree, and so
        are those of this search. A tree that has lost half of the horizon is not kept.
        """
        horizon = self.horizon
        if kept is not None and kept.memory.horizon <= (self.horizon + 1) // 2:
            kept = None
        memory = super()._begin(state, search, kept)
        if kept is not None and memory.tree["passes"][: memory.tree.roots].any():
            horizon = kept.memory.horizon - 1
        memory.horizon = horizon
        return memory

    def _child(self, kept: Kept, search: Search, root: int, action: Any) -> int:
        index = index_of(self.actions, action)
        child = int(kept.memory.tree["child"][root, index]) if index >= 0 else -1
        states = kept.state.reshape(len(search.starts.states), -1)
        if child < 0:
            return -1
        after = search.starts.states[root]
        leads_there = search.leads_to(states[root], action, self.dt, after, self.horizon)
        return child if leads_there else -1

    def _search_all(self, states: Rows, search: Search) -> list[Plan]:
        memory: TreeMemory = search.memory
        tree, horizon = memory.tree, memory.horizon
        bounds = partial(tree_bounds, tree, search.rng, self.explore, self.virtual_loss)
        while len(roots := self._affordable(search, memory, horizon)):
            paths = tree.descend(roots, bounds, depth=horizon)
            plans = search.rng.integers(len(self.actions), size=(len(roots), horizon))
            for depth, level in enumerate(paths.levels):
                plans[level.ids, depth] = level.actions
            seeds = search.rng.integers(SEEDS, size=len(roots)) if self.stochastic else None
            turns = self._turns(search, tree, roots)
            played = search.play_out(
                self.actions, plans, states[roots], turns, self.dt, seeds=seeds
            )
            self._charge(memory, roots, played.lengths)
            self._record(memory, paths, plans, played)
            self._keep(memory, roots, played, seeds)
            self._report(search, memory)
        return self._plans(search, states, memory)

    def _record(self, memory: TreeMemory, paths: Descents, plans: Ints, played: Played) -> None:
        """Add the new nodes to the tree, and the returns to the actions of the descents."""
        tree, horizon = memory.tree, memory.horizon
        tree.play_for(played.gains.shape[2])
        new = tree.expand(paths.parents, paths.actions)
        weights, kept = self.discount ** np.arange(horizon), None
        if played.turns:
            self._set_turns(tree, new, paths, played)
            kept = np.logical_and.accumulate(plans == played.actions, axis=1)
        gains = np.moveaxis(played.gains, 2, 0)
        for depth, level in enumerate(paths.levels):
            movers: Any = tree["to_play"][level.nodes] if len(gains) > 1 else 0
            returns = gains[movers, level.ids, depth:] @ weights[: horizon - depth]
            kids = resolved(level.kids, new)
            if kept is not None:  # later actions of the descent were not played
                some = kept[level.ids, depth]
                level = Level(*(part[some] for part in level))
                kids, returns = kids[some], returns[some]
            if len(kids):
                tree.record(level, kids, returns)

    @staticmethod
    def _set_turns(tree: SearchTree, new: Ints, paths: Descents, played: Played) -> None:
        """Set who moves in new nodes, and which actions are legal there."""
        for leaf, node in enumerate(new.tolist()):
            row = int((paths.last == -1 - leaf).argmax())
            depth = sum(row in level.ids for level in paths.levels)
            rows, turns = played.turns[min(depth, len(played.turns)) - 1]
            (place,) = (rows == row).nonzero()
            if len(place) and depth <= len(played.turns):
                tree["to_play"][node] = turns.to_play[place[0]]
                if turns.legal is not None:
                    tree["closed"][node] = ~turns.legal[place[0]]
                    tree.has_closed = True

    def _keep(self, memory: TreeMemory, roots: Ints, played: Played, seeds: Ints | None) -> None:
        """Keep the best trajectories."""
        for row in self._improved(memory, roots, played.rewards.sum(axis=1)).tolist():
            length = int(played.lengths[row])
            row_seeds = np.full(length, -1)
            row_seeds[0] = -1 if seeds is None else seeds[row]
            rest = played.actions[row, :length], played.rewards[row, :length], row_seeds
            root = int(roots[row])
            memory.best[root] = memory.tree.trajectory(root, played.ended[row], *rest)
