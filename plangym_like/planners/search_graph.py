"""`SearchGraph`: the states that a least-cost search has found, and the paths to them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.states.rows import Row


class SearchGraph:
    """Nodes that record a cheapest known path to each key. Node 0 is the root.

    A cheaper path to a known key adds a new node, so a node's path never changes.

    Parameters
    ----------
    state : row
    key : hashable, optional
        The key of the root; None if it is not known.

    Attributes
    ----------
    costs, rewards : list of float
        Each node's cost from the root, and the reward of the action that leads to the node.
    actions : list of int
    ended : list of bool
    goal : int, optional
        The node of the cheapest goal; None if there is none.
    best_cost : float
        The cost of the cheapest goal; infinite if there is none.
    duplicates : int
        How many transitions led to a key that had been reached at the same cost or less.
    """

    def __init__(self, state: Row, key: Any) -> None:
        self.costs, self.rewards, self.actions, self.ended = [0.0], [0.0], [-1], [False]
        self._parents = [-1]
        self._keys = [key]
        self._nodes = {} if key is None else {key: 0}
        self._rows = {0: np.array(state)}
        self.goal: int | None = None
        self.best_cost = math.inf
        self.duplicates = 0
        # The best node while no goal is found: heuristic value, negated score and node number.
        self._nearest = (math.inf, math.inf, 0)
        self._scores = [0.0]

    def add(
        self, parents: list[int], keys: list[Any], states: Row, *columns: NDArray[Any]
    ) -> Iterator[tuple[int, float]]:
        """Add transitions in order; yield each new node that may lead to a cheaper goal.

        Parameters
        ----------
        parents, keys : list
        states : rows
        *columns : array
            The actions, rewards, costs and heuristic values, and two flags: whether transitions
            reach a goal, and whether they end the episode.

        Yields
        ------
        node : int
        heuristic : float
        """
        for row, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            if self._add(parents[row], keys[row], states[row], *values):
                yield len(self.costs) - 1, values[3]

    def _add(
        self,
        parent: int,
        key: Any,
        state: Row,
        action: int,
        reward: float,
        cost: float,
        heuristic: float,
        is_goal: bool,
        ended: bool,
    ) -> bool:
        cost += self.costs[parent]
        known = self._nodes.get(key)
        is_known = not ended and known is not None and self.costs[known] <= cost
        leads_nowhere = not is_goal and (ended or is_known)
        self.duplicates += is_known and not is_goal
        if leads_nowhere and self._nearest[2]:
            return False
        node = len(self.costs)
        score = self._scores[parent] + reward
        self._nearest = min(self._nearest, (math.inf if leads_nowhere else heuristic, -score, node))
        self.costs.append(cost)
        self.rewards.append(reward)
        self.actions.append(action)
        self.ended.append(ended)
        self._parents.append(parent)
        self._keys.append(key)
        self._scores.append(score)
        if is_goal:
            if cost < self.best_cost:
                self.goal, self.best_cost = node, cost
            return False
        if leads_nowhere:
            return False
        self._nodes[key] = node
        if known is not None:
            self._rows.pop(known, None)
        if not cost + heuristic < self.best_cost:
            return False
        self._rows[node] = np.array(state)
        return True

    def is_open(self, node: int, heuristic: float) -> bool:
        """Return whether a node must still be expanded because it may lead to a cheaper goal."""
        return node in self._rows and self.costs[node] + heuristic < self.best_cost

    def take(self, node: int) -> Row:
        """Remove and return the state of a node that is about to be expanded."""
        return self._rows.pop(node)

    @property
    def best(self) -> int:
        """The cheapest goal; without one, the node with the lowest heuristic value."""
        return self._nearest[2] if self.goal is None else self.goal

    def path(self, node: int) -> list[int]:
        """Return the nodes of the path from the root to a node, without the root."""
        path = []
        while node:
            path.append(node)
            node = self._parents[node]
        return path[::-1]

    def score(self, node: int) -> float:
        """Return the sum of the rewards on the path to a node."""
        return math.fsum(self.rewards[one] for one in self.path(node))
