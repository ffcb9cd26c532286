"""UCT: Monte Carlo tree search with upper confidence bounds."""

from __future__ import annotations

import hashlib
import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.planners.nodes import Floats, Ints
from plangym_like.planners.plan import Plan
from plangym_like.planners.search import Best, Search, lengths
from plangym_like.planners.search_options import digests, make_key
from plangym_like.planners.search_tree import FIRST, SEEDS, SearchTree, TreeMemory, TreePlanner
from plangym_like.results import BatchTransition
from plangym_like.states.rows import Row
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
    batch, discount, virtual_loss, dt
        See `TreePlanner`.
    rollout : int
        The number of random actions after a new node.
    explore : float
        The weight of the exploration term in the bounds; ``sqrt(2)`` gives UCB1.
    outcomes : int
        The largest number of outcomes of an action that are distinguished. If more are possible,
        samples of the others count as known outcomes.
    widening : float
        After n visits, an action has at most ``ceil(n ** widening)`` samples of its outcome.

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
        *,
        virtual_loss: float = 1.0,
        dt: int = 1,
        outcomes: int = 1,
        widening: float = 1.0,
    ) -> None:
        super().__init__(env, batch, discount, virtual_loss, dt)
        self.rollout = as_count("rollout", rollout, 0)
        self.explore = as_number("explore", explore, 0.0)
        self.outcomes = as_count("outcomes", outcomes)
        self.widening = as_number("widening", widening, 0.0, 1.0)

    def _new_tree(self, state: Row) -> SearchTree:
        return SearchTree(len(self.actions), state, self.outcomes, self.widening)

    def _search(self, state: Row, search: Search) -> Plan:
        memory: TreeMemory = search.memory
        tree = memory.tree
        while count := self._affordable(search, memory, 1 + self.rollout):
            memory.descents += count
            bounds = partial(tree_bounds, tree, search.rng, self.explore, self.virtual_loss)
            draw = partial(self._draw, tree, search, count * self.rollout)
            paths = tree.descend(count, bounds, draw if self.outcomes > 1 else None)
            new = self._expand(tree, search, paths.parents, paths.actions)
            ends = paths.ends(new)
            values = self._evaluate(tree, search, ends)
            tree.back_up(paths, new, values, self.discount)
            if self.outcomes == 1 and tree["ended"][ends].any():
                tree.close(paths, new, self.discount)
            search.report(search.best.score, f"{tree.size:,} nodes")
        return self._plan(search, state, tree)

    def _expand(self, tree: SearchTree, search: Search, parents: Ints, actions: Ints) -> Ints:
        """Step the leaves, and return their nodes."""
        if not len(parents):
            return parents
        step = search.step_batch(self.actions[actions], tree["state"][parents], self.dt)
        ended = step.terminateds | step.truncateds
        return tree.expand(parents, actions, state=step.states, reward=step.rewards, ended=ended)

    def _draw(
        self, tree: SearchTree, search: Search, reserve: int, parents: Ints, actions: Ints
    ) -> Ints | None:
        """Return an outcome of each action; None if less budget than `reserve` would be left."""
        if not search.affords(len(parents) + reserve):
            return None
        seeds = search.rng.integers(SEEDS, size=len(parents))
        states = tree["state"][parents]
        step = search.step_batch(self.actions[actions], states, self.dt, seeds=seeds)
        return tree.add_outcomes(
            parents,
            actions,
            _outcome_keys(step),
            state=step.states,
            reward=step.rewards,
            ended=step.terminateds | step.truncateds,
            seed=seeds,
        )

    def _evaluate(self, tree: SearchTree, search: Search, nodes: Ints) -> Floats:
        """Roll out from new nodes; keep the best trajectory, and return the values of `nodes`."""
        visits, ended = tree["visits"][nodes].sum(axis=1), tree["ended"][nodes]
        values: Floats = tree["total"][nodes].sum(axis=1) / np.maximum(visits, 1)
        (new,) = (~ended & (visits == 0)).nonzero()
        complete = ended | (visits == 0)  # the others were cut off by the budget
        scores, rewards = tree["score"][nodes], np.zeros((len(nodes), self.rollout))
        plans = search.rng.integers(len(self.actions), size=rewards.shape)
        seeds, steps = np.full(rewards.shape, -1), np.zeros(len(nodes), np.intp)
        if len(new) and self.rollout:
            if self.outcomes > 1:
                seeds[new, 0] = search.rng.integers(SEEDS, size=len(new))
            rollout = search.rollout_batch(
                self.actions[plans[new]],
                tree["state"][nodes[new]],
                self.dt,
                seeds=seeds[new, 0] if self.outcomes > 1 else None,
            )
            rewards[new], steps[new] = rollout.rewards, lengths(rollout)
            ended[new] = rollout.terminateds[:, -1] | rollout.truncateds[:, -1]
            values[new] = rollout.rewards @ self.discount ** np.arange(self.rollout)
        totals = np.where(complete, scores + rewards.sum(axis=1), -np.inf)
        row = search.better(totals)
        if row is not None:
            path, length = tree.path(int(nodes[row])), steps[row]
            all_rewards = np.append(tree["reward"][path], rewards[row, :length])
            search.best = Best(
                math.fsum(all_rewards),
                bool(ended[row]),
                (
                    np.append(tree["action"][path], plans[row, :length]),
                    all_rewards,
                    np.append(tree["seed"][path], seeds[row, :length]),
                ),
            )
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
        visits.sum(axis=1, keepdims=True) + counts,
        pending=ranks,
        virtual_loss=virtual_loss,
    )
    bounds[tree["closed"][nodes]] = -np.inf
    untried = bounds == np.inf
    if untried.any():
        bounds[untried] = FIRST * (1 + rng.random(np.count_nonzero(untried)))
    return bounds


def _outcome_keys(step: BatchTransition) -> NDArray[np.int64]:
    """Return a number for each row, ``(N,)``, that identifies its observation, reward and flags.

    The state is left out, because it holds the random generator.
    """
    observed = digests(make_key("obs")(step.obs, step.infos, step.states), len(step.rewards))
    columns = (step.rewards, step.terminateds, step.truncateds)
    rows = zip(observed, *(column.tolist() for column in columns), strict=True)
    keys = [hashlib.blake2b(repr(row).encode(), digest_size=8).digest() for row in rows]
    return np.array([int.from_bytes(key, signed=True) for key in keys], np.int64)
