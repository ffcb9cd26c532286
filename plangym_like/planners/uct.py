"""UCT: Monte Carlo tree search with upper confidence bounds."""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

import numpy as np

from plangym_like.env import PlanEnv
from plangym_like.planners.nodes import Floats, Ints, Rows
from plangym_like.planners.plan import Plan
from plangym_like.planners.search import Search
from plangym_like.planners.search_tree import FIRST, SEEDS, SearchTree
from plangym_like.planners.tree_planner import ClosedLoopOptions, TreeMemory, TreePlanner, spread
from plangym_like.support.arguments import as_count, as_number


class UCT(TreePlanner):
    """Monte Carlo tree search with upper confidence bounds (UCB1) in every node.

    L. Kocsis and C. Szepesvari, "Bandit based Monte-Carlo planning", ECML 2006, as in algorithm 2
    of C. Browne et al., "A survey of Monte Carlo tree search methods", 2012: descend to an action
    that was not tried yet, step it, roll out random actions, and add the return to all actions on
    the way. Differences:

    - A round has `batch` descents, stepped by one `step_batch` (with chance nodes, by one for each
      depth) and one `rollout_batch`. Descents under way count as visits with low returns: the
      virtual loss of G. Chaslot, M. Winands and J. van den Herik, "Parallel Monte-Carlo tree
      search", 2008. A new node that several descents reach is stepped once, but each of them makes
      a rollout from it.
    - The number of visits to a node, in the logarithm of the bounds, includes all descents of the
      round that reach the node.
    - A rollout ends after `rollout` actions. Deeper leaves therefore have longer horizons and, if
      rewards are positive, larger returns.
    - `explore` is 1 by default, less than in UCB1.
    - Mean returns are scaled to [0, 1] by their range so far, as in equation 5 of J. Schrittwieser
      et al., "Mastering Atari, Go, chess and shogi by planning with a learned model", 2020.
    - Without chance nodes, actions whose whole subtree is known are not tried again. Their best
      return is certain, so no descent through their node returns less.

    States hold random generators. Without chance nodes, the search therefore uses the random
    numbers that the environment will draw next. With ``outcomes=K``, the search has chance nodes:
    each descent draws the outcomes of its actions with new seeds. Outcomes with equal observation,
    reward and flags are one node. At most K outcomes of an action are distinguished, and sampling
    goes on when K are known, so that their frequencies become exact. For actions
    with many outcomes there is progressive widening (A. Couetoux et al., "Continuous upper
    confidence trees", 2011): with `widening` less than 1, most descents pass through known
    outcomes, which costs no transitions.

    The plan is the trajectory with the best score; with chance nodes, it is the luckiest one.
    `Plan.next_action`, for closed-loop control, is the most visited action of the root. Actions
    whose whole subtree is known are compared by their return instead.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite.
    batch, discount, **options
        See `TreePlanner`.
    rollout : int
        The number of random actions after a new node.
    explore : float
        The weight of the exploration term in the bounds; ``sqrt(2)`` gives UCB1.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import UCT, play
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> play(UCT(env, rollout=20), steps=50, budget=1_000, seed=0).score
    50.0

    Slippery ice, one step from the goal, where the best policy is worth 0.42:

    >>> lake = plangym_like.make("FrozenLake-v1")
    >>> state, obs, info = lake.reset(seed=0)
    >>> planner = UCT(lake, outcomes=4, discount=0.5)
    >>> plan = planner.plan(lake.make_state(s=14), budget=5_000, seed=0)
    >>> round(plan.info["value"], 1)
    0.4
    """

    def __init__(
        self,
        env: PlanEnv,
        batch: int = 32,
        rollout: int = 10,
        explore: float = 1.0,
        discount: float = 1.0,
        **options: Unpack[ClosedLoopOptions],
    ) -> None:
        super().__init__(env, batch, discount, **options)
        self.rollout = as_count("rollout", rollout, 0)
        self.explore = as_number("explore", explore, 0.0)

    def _search_all(self, states: Rows, search: Search) -> list[Plan]:
        memory: TreeMemory = search.memory
        tree = memory.tree
        while len(roots := self._affordable(search, memory, 1 + self.rollout)):
            bounds = partial(tree_bounds, tree, search.rng, self.explore, self.virtual_loss)
            draw = partial(self._draw, memory, search, len(roots) * self.rollout, [])
            paths = tree.descend(roots, bounds, draw if self.outcomes > 1 else None)
            new = self._expand(memory, search, paths.parents, paths.actions)
            values = self._evaluate(memory, search, paths.ends(new))
            tree.back_up(paths, new, values, self.discount)
            self._close(memory, paths, new)
            self._report(search, memory)
        return self._plans(search, states, memory)

    def _expand(self, memory: TreeMemory, search: Search, parents: Ints, actions: Ints) -> Ints:
        """Step the leaves, and return their nodes."""
        if not len(parents):
            return parents
        _, fields = self._step(search, memory, parents, actions)
        return memory.tree.expand(parents, actions, **fields)

    def _evaluate(self, memory: TreeMemory, search: Search, nodes: Ints) -> Floats:
        """Roll out from new nodes; keep the best trajectories, and return values ``(n, P)``."""
        tree = memory.tree
        visits, ended = tree["visits"][nodes].sum(axis=1), tree["ended"][nodes]
        means: Floats = tree["total"][nodes].sum(axis=1) / np.maximum(visits, 1)
        values = spread(means, tree["to_play"][nodes], tree.players)
        (new,) = (~ended & (visits == 0)).nonzero()
        complete = ended | (visits == 0)  # the others were cut off by the budget
        scores, rewards = tree["score"][nodes], np.zeros((len(nodes), self.rollout))
        plans = search.rng.integers(len(self.actions), size=rewards.shape)
        seeds, steps = np.full(rewards.shape, -1), np.zeros(len(nodes), np.intp)
        if len(new) and self.rollout:
            if self.outcomes > 1:
                seeds[new, 0] = search.rng.integers(SEEDS, size=len(new))
            turns = self._turns(search, tree, nodes[new])
            first = seeds[new, 0] if self.outcomes > 1 else None
            states = tree["state"][nodes[new]]
            played = search.play_out(self.actions, plans[new], states, turns, self.dt, seeds=first)
            self._charge(memory, nodes[new], played.lengths)
            plans[new], rewards[new], steps[new] = played.actions, played.rewards, played.lengths
            ended[new], values[new] = played.ended, self._returns(tree, played)
        totals = np.where(complete, scores + rewards.sum(axis=1), -np.inf)
        for row in self._improved(memory, nodes, totals).tolist():
            node, rest = nodes[row], (part[row, : steps[row]] for part in (plans, rewards, seeds))
            memory.best[tree["root"][node]] = tree.trajectory(int(node), ended[row], *rest)
        return values


def ucb1(
    totals: Floats,
    visits: Floats,
    explore: float,
    parent_visits: Any,
    *,
    pending: Any = 0,
    virtual_loss: float = 0.0,
) -> Floats:
    """Return the upper confidence bound of each action in each of n nodes.

    The bounds are ``totals / visits + explore * sqrt(log(parent_visits) / visits)``. ``explore`` is
    ``sqrt(2)`` in P. Auer, N. Cesa-Bianchi and P. Fischer, "Finite-time analysis of the multiarmed
    bandit problem", 2002, and ``2 * C_p`` in Kocsis and Szepesvari 2006.

    Parameters
    ----------
    totals, visits : array ``(n, A)``
        Sum and number of the returns of each action; returns are in [0, 1].
    explore : float
    parent_visits : array ``(n, 1)``
    pending : array ``(n, 1)`` or ``(n, A)``
        Descents under way, which count as visits.
    virtual_loss : float
        From 0 to 1. In the mean return, each descent under way counts as this many returns of 0.

    Returns
    -------
    array ``(n, A)``
        Infinite for actions with neither a visit nor a descent under way.

    >>> ucb1(np.array([[1.0, 3.0, 0.0]]), np.array([[2.0, 4.0, 0.0]]), 1.0, 6).round(3)
    array([[1.447, 1.419,   inf]])
    """
    tried = visits + pending
    means = totals / np.maximum(visits + virtual_loss * pending, 1e-9)
    log = np.log(np.maximum(parent_visits, 1))
    bounds = means + explore * np.sqrt(log / np.maximum(tried, 1))
    return np.where(tried > 0, bounds, np.inf)


def tree_bounds(
    tree: SearchTree,
    rng: np.random.Generator,
    explore: float,
    virtual_loss: float,
    nodes: Ints,
    ranks: Ints,
    counts: Ints,
) -> Floats:
    """Return the scores of actions. With its first four arguments bound, this is a `ScoreFn`.

    Untried actions come first, in random order; closed actions come last.
    """
    totals, visits = tree.scaled(nodes)
    bounds = ucb1(
        totals,
        visits,
        explore,
        np.add.reduce(visits, axis=1, keepdims=True) + counts,
        pending=ranks,
        virtual_loss=virtual_loss,
    )
    if tree.has_closed:
        bounds[tree.values_of("closed", nodes)] = -np.inf
    untried = bounds == np.inf
    if untried.any():
        bounds[untried] = FIRST * (1 + rng.random(np.count_nonzero(untried)))
    return bounds
