"""Turn the options of least-cost searches into functions with checked results."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import InputError
from plangym_like.results import BatchInfo, BatchTransition
from plangym_like.states.rows import States

# A function of N observations, infos and states that returns their keys: an array ``(N, ...)`` or N
# hashable objects.
Key = Callable[[Any, BatchInfo, States], Any]


def make_key(key: Any) -> Key:
    """Return the option ``key=`` ("state", "obs" or a function) as a function.

    Raises
    ------
    InputError
        `key` is none of these.
    """
    if key == "state":
        return lambda obs, infos, states: states
    if key == "obs":
        return lambda obs, infos, states: _parts(obs, len(states))
    if not callable(key):
        raise InputError(
            f'key must be "state", "obs" or a function of (obs, infos, states), got {key!r}'
        )
    function: Key = key
    return function


def make_cost(cost: Any) -> Callable[[BatchTransition], NDArray[np.float64]]:
    """Return the option ``cost=`` ("steps", "reward" or a function) as a function.

    Raises
    ------
    InputError
        `cost` is none of these.
    """
    if cost == "steps":
        return lambda step: np.ones(len(step.rewards))
    if cost == "reward":
        return lambda step: as_numbers("minus the reward", -step.rewards, len(step.rewards))
    if not callable(cost):
        raise InputError(f'cost must be "steps", "reward" or a function, got {cost!r}')
    return lambda step: as_numbers("cost", cost(step), len(step.rewards))


def make_goal(goal: Any) -> Callable[[BatchTransition], NDArray[np.bool_]]:
    """Return the option ``goal=`` as a function; ``None`` means terminal steps with reward above 0.

    Raises
    ------
    InputError
        `goal` is neither a function nor ``None``.
    """
    if goal is None:
        return lambda step: step.terminateds & (step.rewards > 0)
    if not callable(goal):
        raise InputError(f"goal must be a function of a BatchTransition, got {goal!r}")

    def function(step: BatchTransition) -> NDArray[np.bool_]:
        goals = np.asarray(goal(step), np.bool_)
        if goals.shape != step.rewards.shape:
            raise InputError(f"goal must return an array {step.rewards.shape}, got {goals.shape}")
        return goals

    return function


def make_heuristic(heuristic: Any) -> Callable[..., NDArray[np.float64]]:
    """Return the option ``heuristic=`` as a function; ``None`` means a heuristic of 0.

    Raises
    ------
    InputError
        `heuristic` is neither a function nor ``None``.
    """
    if heuristic is None:
        return lambda obs, infos, states: np.zeros(len(states))
    if not callable(heuristic):
        raise InputError(f"heuristic must be a function of (obs, infos, states), got {heuristic!r}")
    return lambda obs, infos, states: as_numbers(
        "heuristic", heuristic(obs, infos, states), len(states)
    )


def digests(keys: Any, count: int) -> list[Any]:
    """Return N hashable keys; a row of an array becomes a digest of 16 bytes.

    Raises
    ------
    InputError
        The number of keys is not N, or they are not hashable.

    Examples
    --------
    >>> one, two, three = digests(np.array([[1, 2], [3, 4], [1, 2]]), 3)
    >>> one == three, one == two
    (True, False)
    """
    try:
        number = len(keys)
    except TypeError as error:
        raise InputError(
            f"key must return an array (N, ...) or N hashable objects, got {keys!r}"
        ) from error
    if number != count:
        raise InputError(f"key returned {number} keys for {count} states")
    if isinstance(keys, np.ndarray) and keys.dtype != object:
        rows = np.ascontiguousarray(keys)
        return [blake2b(row.tobytes(), digest_size=16).digest() for row in rows]
    for key in keys:
        try:
            hash(key)
        except TypeError as error:
            raise InputError(f"key must return hashable objects, got {key!r}") from error
    return list(keys)


def _parts(obs: Any, count: int) -> Any:
    """Return N observations as one array, or as N hashable objects."""
    if isinstance(obs, np.ndarray):
        return obs
    if isinstance(obs, list):
        return [_frozen(one) for one in obs]
    parts = obs.values() if isinstance(obs, dict) else obs
    return list(zip(*(digests(_parts(part, count), count) for part in parts), strict=True))


def _frozen(value: Any) -> Any:
    """Return a hashable object that is equal for equal values."""
    if isinstance(value, dict):
        return tuple((name, _frozen(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(_frozen(part) for part in value)
    return value.tobytes() if isinstance(value, np.ndarray) else value


def as_numbers(name: str, numbers: Any, count: int) -> NDArray[np.float64]:
    """Return `numbers` as floats ``(count,)``, which must not be negative.

    Raises
    ------
    InputError
        `numbers` have another shape, or one of them is negative or NaN.
    """
    array = np.asarray(numbers, np.float64)
    if array.shape != (count,):
        raise InputError(f"{name} must be an array ({count},), got {array.shape}")
    if not (array >= 0).all():
        wrong = array[~(array >= 0)][0]
        raise InputError(
            f"{name} must be at least 0 for a search for the least cost, got {wrong:g}"
        )
    return array
