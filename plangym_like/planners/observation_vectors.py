"""What planners ask of observations: each as a vector of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from plangym_like.errors import InputError


def as_vectors(obs: Any) -> NDArray[np.float64]:
    """Flatten a batch of observations, nested ones too, to ``(N, F)``.

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
    """Raise InputError unless observations are a fixed count of numbers; `planner` asks.

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
