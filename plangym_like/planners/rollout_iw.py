"""Rollout-IW(1): IW(1) with rollouts, which give good plans at any time."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from plangym_like.planners.lookahead_tree import LookaheadTree
from plangym_like.planners.novelty import Novelty
from plangym_like.planners.search import Search
from plangym_like.planners.width_planner import WidthPlanner

# Random numbers are drawn for this many levels of the tree at once.
_LEVELS = 32


class RolloutIW(WidthPlanner):
    """Rollout-IW(1): random rollouts that end at the first state that is not novel.

    W. Bandres, B. Bonet and H. Geffner, "Planning with pixels in (almost) real time", AAAI 2018. A
    rollout starts at the root, and takes random actions that lead to unsolved states. A new state
    is novel if one of its atoms was never seen at the same or a smaller depth. If a new state is
    not novel, or if it ends the episode, it is solved and the rollout ends. A state is also solved
    if all its atoms were later seen at a smaller depth, or if all its children are solved. The
    search ends when the root is solved. In the end, the same states are kept as in `IW` (up to ties
    between states of equal depth), but deep states are reached early.

    The plan is the path with the highest discounted return; ties are broken at random.
    `advance` keeps the subtree of the action that was taken, as in `IW`.

    Differences from the paper: `batch` rollouts run at the same time, and each of them steps
    a different transition of a batch. So a rollout chooses its action before the atoms of the
    batch's other transitions are known. The new states of a batch are tested in ascending order of
    depth. The atoms of the first root are not known; see `IW`. The features of screens are the
    basic ones of B-PROST (`tile_colors`), without the features of pairs of tiles.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite.
    features, discount, death_penalty
        As for `IW`.
    batch : int
        The number of rollouts that run at the same time.
    dt : int
        How long each action is held. The paper holds actions for 15 frames.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import RolloutIW
    >>> env = plangym_like.make("FrozenLake-v1", is_slippery=False)
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = RolloutIW(env).plan(state, budget=1000, seed=0)
    >>> plan.score, len(plan), plan.info["exhausted"]
    (1.0, 6, True)
    """

    def _grow(
        self, tree: LookaheadTree, novel: NDArray[np.bool_], novelty: Novelty, search: Search
    ) -> bool:
        rollouts = _Rollouts(tree, novel, novelty, self.batch)
        while not rollouts.solved[0]:
            most = search.fit(self.batch)
            if not search.has(most):
                return False
            walkers, parents, actions = rollouts.choose(search.rng, most)
            if len(parents):
                nodes, is_novel = self._step(tree, novelty, search, parents, actions)
                rollouts.go_on(walkers, nodes, is_novel & ~tree.ended[nodes])
        return True


class _Rollouts:
    """The positions of the rollouts, and which nodes are solved."""

    def __init__(
        self, tree: LookaheadTree, novel: NDArray[np.bool_], novelty: Novelty, count: int
    ) -> None:
        self.tree, self._novelty = tree, novelty
        self._places = np.zeros(count, np.int64)
        # Whether a child is unsolved, or was not tried yet.
        self._open = np.ones((len(tree.parent), tree.children.shape[1]), np.bool_)
        self.solved = np.zeros(len(tree.parent), np.bool_)
        for node in np.flatnonzero(tree.ended[: tree.size] | tree.leaves & ~novel)[::-1].tolist():
            self._solve(node)
        self._solve_old()

    def _solve(self, node: int) -> None:
        """Mark a node as solved, and all nodes above it that then have no unsolved child."""
        while not self.solved[node]:
            self.solved[node] = True
            parent = int(self.tree.parent[node])
            if parent < 0:
                return
            self._open[parent, self.tree.action[node]] = False
            if self._open[parent].any():
                return
            node = parent

    def choose(
        self, rng: np.random.Generator, most: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """Move rollouts down the tree to untried actions.

        Return the rollouts, the nodes that they have reached, and an untried action of each node.
        Rollouts that find no untried action are left out of this batch; they will start again from
        the root.
        """
        size, num_actions = self.tree.size, self.tree.children.shape[1]
        free = self._open[:size].copy()
        # The child of each action, -1 if there is none, and -2 if the action is not to be taken.
        below = np.where(free, self.tree.children[:size], -2)
        free_edges, below_edges = free.ravel(), below.ravel()
        here = self._places[:most]
        walkers = np.arange(len(here))
        chosen: list[NDArray[np.int64]] = []
        taken: list[NDArray[np.int64]] = []
        for level in itertools.count():
            if not len(walkers):
                break
            if level % _LEVELS == 0:
                noise = 1.0 + rng.random((_LEVELS, len(walkers), num_actions))
            noisy = noise[level % _LEVELS, : len(here)] * free[here]
            edges = here * num_actions + noisy.argmax(axis=1)
            there = below_edges[edges]
            if there.min() >= 0:
                here = there
                continue
            self._places[walkers[there == -2]] = 0
            new = np.flatnonzero(there == -1)
            # Of the rollouts that chose the same action, the first one takes it.
            new = new[np.unique(edges[new], return_index=True)[1]]
            free_edges[edges[new]], below_edges[edges[new]] = False, -2
            chosen.append(walkers[new])
            taken.append(edges[new])
            going = there != -2
            going[new] = False
            here = np.where(there >= 0, there, here)[going]
            walkers = walkers[going]
        order = np.concatenate(taken)
        return np.concatenate(chosen), (order // num_actions).astype(np.int32), order % num_actions

    def _solve_old(self) -> None:
        """Mark nodes as solved if all their atoms were later seen at a smaller depth.

        The root is skipped.
        """
        tree, depth_of, size = self.tree, self._novelty.depth_of, self.tree.size
        lost = depth_of(tree.witness[:size]) != tree.depth[:size]
        lost &= ~self.solved[:size]
        for node in np.flatnonzero(lost)[::-1].tolist():
            atoms = tree.atoms[node]
            left = atoms[depth_of(atoms) == tree.depth[node]]
            if len(left):
                tree.witness[node] = left[0]
            elif node:
                self._solve(node)

    def go_on(
        self, walkers: NDArray[np.int64], nodes: NDArray[np.int32], novel: NDArray[np.bool_]
    ) -> None:
        """Mark new nodes that are not `novel` as solved, and move each rollout to its new node.

        If the new node is solved, the rollout returns to the root.
        """
        if self.tree.size > len(self.solved):
            capacity = len(self.tree.parent) - len(self.solved)
            self.solved = np.append(self.solved, np.zeros(capacity, np.bool_))
            more = np.ones((capacity, self._open.shape[1]), np.bool_)
            self._open = np.concatenate([self._open, more])
        self._places[walkers] = np.where(novel, nodes, 0)
        for node in nodes[~novel].tolist():
            self._solve(node)
        self._solve_old()
        self._places[self.solved[self._places]] = 0
