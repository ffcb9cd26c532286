"""Copy values that pass between the caller and an environment, so that the two share nothing.

Gymnasium copies nothing: an observation may be the environment's own buffer, an info its own dict,
and an action may be changed in place. So every object that passes between the caller and a
simulator is copied by `owned`, except values that are written into the arrays of a batch.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Container, Mapping
from typing import Any

import gymnasium
import numpy as np

from plangym_like.errors import EnvApiError

# Types whose objects cannot change, so that no copy is needed.
_CONSTANT = frozenset(
    [
        *(type(None), bool, int, float, complex, str, bytes, range, object, np.str_, np.bytes_),
        *(np.dtype(code).type for code in "?bBhHiIlLqQefdgFDG"),
    ]
)


def owned(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Return an independent copy of `value`, including nested dicts, lists, tuples and arrays.

    Other objects are copied by `copy.deepcopy`. Objects that cannot be copied are returned
    unchanged. The same applies to environments, whose copies may be in another state, and to
    objects with a ``__del__``, because each copy would release what the object owns. An object that
    occurs twice is copied once, unless it is an array or a tuple; `memo` maps the ids of copied
    objects to their copies (see `copy.deepcopy`).

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
    memo = {} if memo is None else memo
    number = id(value)
    if number in memo:
        return memo[number]
    if kind is dict:
        items: dict[Any, Any] = {}
        memo[number] = items
        for key, item in value.items():
            items[key] = owned(item, memo)
        return items
    if kind is list:
        members: list[Any] = []
        memo[number] = members
        members.extend([owned(item, memo) for item in value])
        return members
    if kind is tuple:
        return tuple([owned(item, memo) for item in value])
    if isinstance(value, gymnasium.Env) or releases(value):
        return value
    try:
        return copy.deepcopy(value, memo)
    except Exception:
        return value


def releases(thing: Any) -> bool:
    """Return whether the class of `thing` has a ``__del__`` that is written in Python.

    Such an object owns a resource outside its attributes, which a copy would release as well.
    """
    return isinstance(getattr(type(thing), "__del__", None), types.FunctionType)


def owned_info(info: Mapping[str, Any], without: Container[str] = ()) -> dict[str, Any]:
    """Return an independent copy of `info`, leaving out the keys in `without`.

    Raises
    ------
    EnvApiError
        `info` is not a dict or another mapping.
    """
    if type(info) is not dict:
        check_info(info)
    return {
        key: value if type(value) in _CONSTANT else owned(value)
        for key, value in info.items()
        if key not in without
    }


def check_info(info: Any) -> None:
    """Raise `EnvApiError` if `info` is not a dict or another mapping."""
    if not isinstance(info, Mapping):
        raise EnvApiError(f"the info must be a dict, got {type(info).__name__}")
