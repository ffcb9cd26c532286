"""`Lineage`: the tree of all steps of a search; a plan is one path in it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv

# The node where every path starts.
ROOT = -1


class Lineage:
    """Records the parent, action, dt and reward of every step, so that paths can be read back.

    It holds no states: a step takes 20 bytes, plus the size of its action.

    Parameters
    ----------
    env : PlanEnv

    Examples
    --------
    >>> import plangym_like
    >>> lineage = Lineage(plangym_like.make("CartPole-v1"))
    >>> nodes = lineage.add([ROOT, ROOT], [0, 1], 1, [1.0, 1.0])
    >>> nodes = lineage.add(nodes[[1, 1]], [0, 1], 2, [2.0, 2.0])
    >>> lineage.path(nodes[0])
    (array([1, 0]), array([1, 2]), array([1., 2.]))
    """

    def __init__(self, env: PlanEnv) -> None:
        space = env.action_space
        action = ("action", space.dtype, space.shape or ())
        fields: list[Any] = [("parent", np.int64), action, ("dt", np.int32), ("reward", float)]
        self._steps, self._count = np.empty(1024, np.dtype(fields)), 0

    def __len__(self) -> int:
        return self._count

    def add(self, parents: Any, actions: Any, dt: Any, rewards: Any) -> NDArray[np.int64]:
        """Record N steps, and return their nodes ``(N,)``; `parents` are nodes or `ROOT`."""
        begin, self._count = self._count, self._count + len(actions)
        if self._count > len(self._steps):
            steps = np.empty(max(self._count, 2 * len(self._steps)), self._steps.dtype)
            steps[:begin] = self._steps[:begin]
            self._steps = steps
        new = self._steps[begin : self._count]
        new["parent"], new["action"], new["dt"], new["reward"] = parents, actions, dt, rewards
        return np.arange(begin, self._count)

    def path(self, node: int) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.float64]]:
        """Return the actions ``(T, ...)``, dt and rewards ``(T,)`` on the path to `node`."""
        found, parents = [], self._steps["parent"]
        while node != ROOT:
            found.append(node)
            node = int(parents[node])
        steps = self._steps[found[::-1]]
        return steps["action"].copy(), steps["dt"].astype(np.int64), steps["reward"].copy()


class BestNode:
    """The best episode so far, whose score never falls.

    An episode that has ended always counts. An unfinished episode counts if its score is greater
    than 0. Without this condition, the shortest plan would be the best if rewards are negative.

    Attributes
    ----------
    score : float
        Minus infinity while no episode counts.
    node : int
    ended : bool
    """

    def __init__(self) -> None:
        self.score, self.node, self.ended = -np.inf, ROOT, False

    def update(
        self,
        nodes: NDArray[np.int64],
        scores: NDArray[np.float64],
        over: NDArray[np.bool_],
        complete: bool = False,
    ) -> int | None:
        """If the best of N nodes ``(N,)`` beats all earlier ones, keep it and return its row.

        Otherwise, return None. `over` marks episodes that have ended. If `complete` is true, all
        episodes count.
        """
        counts = np.where(over | (scores > 0) | complete, scores, -np.inf)
        row = int(np.argmax(counts))
        if not counts[row] > self.score:
            return None
        self.score, self.node, self.ended = float(counts[row]), int(nodes[row]), bool(over[row])
        return row
