"""Upper confidence bounds of the actions in a tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from plangym_like.planners.search_tree import FIRST, Floats, Ints, SearchTree


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
