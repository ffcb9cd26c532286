"""IW(1): breadth-first search that prunes states without a new atom."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plangym_like.planners.lookahead_tree import LookaheadTree
from plangym_like.planners.novelty import Novelty
from plangym_like.planners.search import Search
from plangym_like.planners.width_planner import WidthPlanner


class IW(WidthPlanner):
    """IW(1): search breadth-first, and prune each state whose atoms were all seen before.

    N. Lipovetzky, M. Ramirez and H. Geffner, "Classical planning with simulators: results on the
    Atari video games", IJCAI 2015. An atom is a pair of a variable and its value, such as "byte 17
    of the RAM is 3". Each kept state has a new atom, so a search keeps at most as many states as
    there are atoms. States of equal depth are expanded in descending order of their return. The
    plan is the path with the highest discounted return; ties are broken at random. The plan leads
    to a leaf of the tree. If rewards are negative, `Plan.curve` may therefore end with the higher
    score of an earlier, shorter path.

    In closed loop (`play`), `advance` keeps the subtree of the action that was taken. Its leaves
    are tested again, because they may be novel now that the states of other subtrees are gone.

    A batch has nodes of one depth, and its states are tested in order. So exactly the same states
    are pruned as in a search that expands one node after the other, with one exception. The atoms
    of the first root are not known, because its state holds no observation. A state may therefore
    be kept although its only new atoms are atoms of the root.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite.
    features : callable, optional
        A function of ``(obs, infos)`` of N transitions. It returns an array ``(N, F)`` of integers,
        whose values are the atoms of F variables (a negative value means no atom), or of bools,
        whose true entries are the atoms. The default depends on the observations; see
        `default_features`. With poor features, IW is little better than breadth-first search.
    discount : float
        The discount of the returns; the default is the discount in the paper's experiments.
    death_penalty : float
        If infos have ``"lives"``, the penalty for each lost life when paths are compared. It is
        not part of the plan's rewards.
    batch : int
        The number of nodes that are expanded at once.
    dt : int
        How long each action is held. The paper holds actions for 5 frames.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import IW
    >>> env = plangym_like.make("FrozenLake-v1", is_slippery=False)
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = IW(env).plan(state, budget=1000, seed=0)
    >>> plan.score, len(plan), plan.info["exhausted"]
    (1.0, 6, True)
    """

    def _grow(
        self, tree: LookaheadTree, novel: NDArray[np.bool_], novelty: Novelty, search: Search
    ) -> bool:
        num_actions = len(self.actions)
        returns = np.zeros(tree.size)
        for node in range(1, tree.size):
            returns[node] = returns[tree.parent[node]] + tree.gain[node]
        waiting = np.flatnonzero(tree.leaves & novel & ~tree.ended[: tree.size])
        while len(waiting):
            depths = tree.depth[waiting]
            level = waiting[depths == np.min(depths)]
            level = level[np.argsort(-returns[level], kind="stable")]
            waiting = waiting[depths > np.min(depths)]
            while len(level):
                fit = search.fit(self.batch, num_actions)
                nodes, level = level[:fit], level[fit:]
                if not search.has(len(nodes) * num_actions):
                    return False
                parents = np.repeat(nodes, num_actions).astype(np.int32)
                actions = np.tile(np.arange(num_actions), len(nodes))
                children, is_novel = self._step(tree, novelty, search, parents, actions)
                returns = np.append(returns, returns[parents] + tree.gain[children])
                is_novel &= ~tree.ended[children]
                waiting = np.append(waiting, children[is_novel])
        return True
