"""A*: the cheapest plan, found with an estimate of the cost that remains."""

from __future__ import annotations

from plangym_like.planners.best_first import BestFirst


class AStar(BestFirst):
    """A*: expand the state with the lowest sum of its cost so far and its heuristic value.

    P. E. Hart, N. J. Nilsson and B. Raphael, "A formal basis for the heuristic determination of
    minimum cost paths", IEEE Transactions on Systems Science and Cybernetics 4(2), 1968, section
    II. If several states have the same sum, the one with the lowest heuristic value is expanded
    first. Without a heuristic, this is Dijkstra's algorithm. States that are reached again at less
    cost are expanded again. The heuristic must not exceed the true cost, but need not be
    consistent.

    Difference from the paper: the best `batch` states are expanded at once. Each batch may
    therefore include up to ``batch - 1`` states that the paper's algorithm would not expand. The
    search ends when all states left to expand have a sum of at least the cost of the best goal
    found so far. (The paper's search ends when a goal is chosen for expansion, which is the same
    condition.)

    See `BestFirst` for the parameters, including `key`.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import AStar
    >>> env = plangym_like.make("Taxi-v4")
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = AStar(env, key="obs").plan(state, budget=10_000)
    >>> plan.info["optimal"], len(plan), plan.score
    (True, 15, 6.0)
    """

    def _priority(self, cost: float, heuristic: float) -> float:
        return cost + heuristic
