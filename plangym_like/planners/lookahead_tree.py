"""`LookaheadTree`: the states that a search has generated from its root, in arrays."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.states.rows import Row

_COLUMNS = (
    "parent",
    "action",
    "depth",
    "reward",
    "gain",
    "lives",
    "ended",
    "children",
    "witness",
    "atoms",
)


class LookaheadTree:
    """A tree of states. Node 0 is the root, and parents have lower numbers than their children.

    Parameters
    ----------
    state : row
        The state of the root.
    num_actions : int
        Actions are numbers from 0 to ``num_actions - 1``.

    Attributes
    ----------
    size : int
        The number of nodes, at most the length C of the arrays.
    parent, action, depth : array ``(C,)``
        The parent and depth of a node, and the number of the action that leads to it.
    reward, gain : array ``(C,) float64``
        The reward of the action that leads to a node, and the term that this step adds to the sum
        that the planner maximises.
    lives : array ``(C,) float64``
        The player's lives according to infos; NaN if infos lack them.
    ended : array ``(C,) bool``
    children : array ``(C, num_actions)``
        The node that each action leads to; -1 if the action has not been tried.
    atoms : array ``(C, K)``
        The atoms of each node, as `Novelty.atoms` returns them. Those of the first node are not
        known, because no step has returned its observation.
    witness : array ``(C,)``
        An atom that is novel in the node; -1 if there is none.
    """

    def __init__(self, state: Row, num_actions: int) -> None:
        self.size = 1
        self.parent = np.full(1, -1, np.int32)
        self.action, self.witness = self.parent.copy(), self.parent.copy()
        self.depth = np.zeros(1, np.int32)
        self.reward, self.gain, self.lives = np.zeros(1), np.zeros(1), np.full(1, np.nan)
        self.ended = np.zeros(1, np.bool_)
        self.children = np.full((1, num_actions), -1, np.int32)
        # The states of nodes that were added together, and the first node of each block.
        self._blocks, self._starts = [np.array(state)[None]], [0]
        self.atoms = np.full((1, 1), -1, np.int32)

    def add(
        self,
        parents: NDArray[np.int32],
        actions: NDArray[Any],
        states: Row,
        atoms: NDArray[np.int32],
        **new: Any,
    ) -> NDArray[np.int32]:
        """Append children of `parents`, and return their numbers; `new` fills other arrays."""
        self._blocks.append(np.array(states))
        self._starts.append(self.size)
        first, self.size = self.size, self.size + len(parents)
        if self.size > len(self.parent):
            self._reserve(max(self.size, 4 * len(self.parent)))
        if atoms.shape[1] > self.atoms.shape[1]:
            more = ((0, 0), (0, atoms.shape[1] - self.atoms.shape[1]))
            self.atoms = np.pad(self.atoms, more, constant_values=-1)
        nodes, rows = np.arange(first, self.size, dtype=np.int32), slice(first, self.size)
        self.parent[rows], self.action[rows] = parents, actions
        self.depth[rows] = self.depth[parents] + 1
        self.children[rows] = -1
        self.children[parents, actions] = nodes
        self.atoms[rows, : atoms.shape[1]], self.atoms[rows, atoms.shape[1] :] = atoms, -1
        for name, values in new.items():
            getattr(self, name)[rows] = values
        return nodes

    def _reserve(self, capacity: int) -> None:
        for name in _COLUMNS:
            old = getattr(self, name)
            new = np.empty((capacity, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    @property
    def leaves(self) -> NDArray[np.bool_]:
        """Which nodes have no children, ``(size,) bool``."""
        leaves: NDArray[np.bool_] = np.all(self.children[: self.size] < 0, axis=1)
        return leaves

    def states(self, nodes: NDArray[Any]) -> Row:
        """Return the state rows of nodes."""
        blocks = np.searchsorted(self._starts, nodes, side="right") - 1
        rows = [
            self._blocks[block][node - self._starts[block]]
            for block, node in zip(blocks.tolist(), nodes.tolist(), strict=True)
        ]
        return np.concatenate(rows).reshape(len(rows), -1)

    def subtree(self, root: int) -> LookaheadTree:
        """Return the subtree of `root`, a child of this tree's root, as a new tree."""
        kept = [False] * self.size
        kept[root] = True
        parents = self.parent[: self.size].tolist()
        for node in range(root + 1, self.size):
            kept[node] = kept[parents[node]]
        nodes = np.flatnonzero(kept)
        # The last element is the result for the index -1, which means no node.
        renumbered = np.full(self.size + 1, -1, np.int32)
        renumbered[nodes] = np.arange(len(nodes))
        tree = copy.copy(self)
        for name in _COLUMNS:
            setattr(tree, name, getattr(self, name)[nodes])
        tree.size = len(nodes)
        tree._blocks, tree._starts = [self.states(nodes)], [0]
        tree.parent = renumbered[tree.parent]
        tree.children = renumbered[tree.children]
        tree.depth -= self.depth[root]
        return tree

    def best_path(self, discount: float, rng: np.random.Generator | None = None) -> list[int]:
        """Return the nodes below the root on the path with the highest discounted sum of gains.

        The path ends at a leaf. Ties between children are broken at random; without `rng`, the
        first child is taken.
        """
        parents, gains = self.parent[: self.size].tolist(), self.gain[: self.size].tolist()
        best = [-np.inf] * self.size  # the best value among each node's children
        worth = [0.0] * self.size
        for node in range(self.size - 1, 0, -1):
            below = best[node]
            worth[node] = gains[node] + (discount * below if below > -np.inf else 0.0)
            if worth[node] > best[parents[node]]:
                best[parents[node]] = worth[node]
        path, node = [], 0
        while best[node] > -np.inf:
            children = [child for child in self.children[node].tolist() if child > 0]
            equal = [child for child in children if worth[child] == best[node]]
            node = equal[0 if rng is None or len(equal) == 1 else int(rng.integers(len(equal)))]
            path.append(node)
        return path
