"""Call the `evaluate` function of a planner, and check the priors and values that it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import InputError

Floats = NDArray[np.float64]
Evaluate = Callable[[Any], tuple[Any, Any]]


def evaluated(
    evaluate: Evaluate | None, observations: Any, count: int, num_actions: int
) -> tuple[Floats, Floats]:
    """Return the priors ``(count, A)`` and the values ``(count,)`` of `count` states.

    Without `evaluate`, priors are uniform, and values are 0.

    Raises
    ------
    InputError
        `evaluate` did not return a pair of arrays with these shapes, or it returned priors that
        are not probabilities, or values that are not finite.

    Examples
    --------
    >>> evaluated(None, None, 1, 2)
    (array([[0.5, 0.5]]), array([0.]))
    """
    if evaluate is None:
        return np.full((count, num_actions), 1 / num_actions), np.zeros(count)
    result = evaluate(observations)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise InputError(f"evaluate must return a pair (priors, values), got {result!r}")
    priors, values = (np.asarray(part, np.float64) for part in result)
    if (priors.shape, values.shape) != ((count, num_actions), (count,)):
        raise InputError(
            f"evaluate must return priors (N, {num_actions}) and values (N,), got shapes "
            f"{priors.shape} and {values.shape} for {count} observations"
        )
    sums = priors.sum(axis=1)
    if not (priors >= 0).all() or not np.allclose(sums, 1.0, atol=1e-3):
        raise InputError("evaluate must return priors that are probabilities with a sum of 1")
    if not np.isfinite(values).all():
        raise InputError("evaluate must return finite values")
    return priors, values


def rows_of(observations: Any, rows: NDArray[np.intp]) -> Any:
    """Return `rows` of a batch of observations (an array, a list, or a tree of arrays and lists).

    >>> rows_of({"at": np.array([3, 4, 5]), "told": ["a", "b", "c"]}, np.array([0, 2]))
    {'at': array([3, 5]), 'told': ['a', 'c']}
    """
    if isinstance(observations, Mapping):
        return {key: rows_of(part, rows) for key, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(rows_of(part, rows) for part in observations)
    if isinstance(observations, list):
        return [observations[row] for row in rows]
    return observations[rows]
