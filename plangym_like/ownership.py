"""Copies of what is returned to the caller, which share nothing with the environment.

Gymnasium copies nothing, so an observation may be the environment's own buffer, an info its own
dict, and an action may be changed in place. `owned` is called wherever something passes between
the caller and a simulator as an object; what is written into a batch's arrays is copied by that.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping
from typing import Any

import gymnasium
import numpy as np

# Types whose objects cannot change, so that no copy is needed.
_CONSTANT = frozenset(
    [
        *(type(None), bool, int, float, complex, str, bytes, range, np.str_, np.bytes_),
        *(np.dtype(code).type for code in "?bBhHiIlLqQefdgFDG"),
    ]
)


def owned(value: Any) -> Any:
    """Return `value` as an independent copy: nested dicts, lists, tuples and arrays included.

    Other objects are copied by `copy.deepcopy`. Those that cannot be copied are returned as they
    are, and so are environments, because a copy of an environment may start again.

    >>> buffer = np.zeros(2)
    >>> info = owned({"buffer": buffer, "lives": 3})
    >>> buffer += 1
    >>> info
    {'buffer': array([0., 0.]), 'lives': 3}
    """
    kind = type(value)
    if kind in _CONSTANT:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    return _copied(value, {})


def owned_info(info: Mapping[str, Any], without: Container[str] = ()) -> dict[str, Any]:
    """Return an independent copy of `info`, leaving out the keys in `without`."""
    return {
        key: value if type(value) in _CONSTANT else owned(value)
        for key, value in info.items()
        if key not in without
    }


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """Copy `value`; `memo` is `copy.deepcopy`'s, so that what is held twice is copied once."""
    kind = type(value)
    if kind in _CONSTANT:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    place = id(value)
    if place in memo:
        return memo[place]
    if kind is dict:
        items: dict[Any, Any] = {}
        memo[place] = items
        for key, item in value.items():
            items[key] = _copied(item, memo)
        return items
    if kind is list:
        members: list[Any] = []
        memo[place] = members
        members.extend(_copied(item, memo) for item in value)
        return members
    if kind is tuple:
        return tuple([_copied(item, memo) for item in value])
    if isinstance(value, gymnasium.Env):
        return value
    try:
        return copy.deepcopy(value, memo)
    except Exception:
        return value
