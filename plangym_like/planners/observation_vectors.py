"""Observations as vectors of numbers, for planners."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from plangym_like.errors import InputError


def as_vectors(obs: Any) -> NDArray[np.float64]:
    """Flatten a batch of observations, which may be nested, to ``(N, F)``.

    >>> as_vectors({"at": np.array([3, 4]), "speed": np.array([[0.5, 1.0], [1.5, 2.0]])})
    array([[3. , 0.5, 1. ],
           [4. , 1.5, 2. ]])
    """
    if isinstance(obs, dict):
        obs = tuple(obs.values())
    if isinstance(obs, tuple):
        return np.hstack([as_vectors(part) for part in obs])
    return np.asarray(obs, np.float64).reshape(len(obs), -1)


def check_vectors(space: spaces.Space[Any], planner: str) -> None:
    """Raise `InputError` unless observations consist of a fixed count of numbers.

    The message names `planner`.

    >>> check_vectors(spaces.Text(5), "FractalMonteCarlo")
    Traceback (most recent call last):
    ...
    plangym_like.errors.InputError: FractalMonteCarlo measures distances between observations...
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for part in space.values() if isinstance(space, spaces.Dict) else space:
            check_vectors(part, planner)
    elif not isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        raise InputError(
            f"{planner} measures distances between observations, which must be a fixed count of "
            f"numbers, got {space}"
        )


def ranges(space: spaces.Space[Any]) -> NDArray[np.float64] | None:
    """Return the range (highest minus lowest value) of each number in `as_vectors`, ``(F,)``.

    Return None if one of the numbers is unbounded.

    >>> ranges(spaces.Dict(at=spaces.Discrete(5), speed=spaces.Box(-2, 2, (2,))))
    array([4., 4., 4.])
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = [
            ranges(one) for one in (space.values() if isinstance(space, spaces.Dict) else space)
        ]
        found = [part for part in parts if part is not None]
        return np.concatenate(found) if len(found) == len(parts) else None
    if isinstance(space, spaces.Box):
        low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
        return high - low if np.isfinite(high - low).all() else None
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.astype(np.float64).ravel() - 1
    if isinstance(space, spaces.MultiBinary):
        return np.ones(int(np.prod(space.shape)))
    return np.array([float(space.n - 1)]) if isinstance(space, spaces.Discrete) else None
