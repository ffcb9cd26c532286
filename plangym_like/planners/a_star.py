"""A*: the cheapest plan, found with an estimate of the cost that remains."""

from __future__ import annotations

from plangym_like.planners.best_first import BestFirst


class AStar(BestFirst):
    """A*: expand the state with the lowest sum of its cost so far and its heuristic value.

    P. E. Hart, N. J. Nilsson and B. Raphael, "A formal basis for the heuristic determination of
    minimum cost paths", IEEE Transactions on Systems Science and Cybernetics 4(2), 1968, section
    II. Among equal sums, the lowest heuristic value comes first. Without a heuristic, this is
    Dijkstra's algorithm. States that are reached again at less cost are expanded again, so the
    heuristic need not be consistent, but it must not exceed the true cost.

    Difference from the paper: the best `batch` states are expanded at once. So the search does not
    end when a goal is chosen for expansion, but when no other state has a lower sum than the cost
    of the best goal, which is the same condition. The paper's algorithm would not expand up to
    ``batch - 1`` states of the last batches.

    The parameters are those of `BestFirst`, which also explains `key`.

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
