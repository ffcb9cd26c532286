"""`reachable`: iterate over everything that an object holds, in attributes and containers."""

from __future__ import annotations

import enum
import types
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from plangym_like.snapshots.configuration import (
    describe,
    is_configuration,
    is_handle,
    name_of_key,
)

ATOMS = (type(None), bool, int, float, complex, str, bytes, bytearray, np.generic)
# One walk stops after this many objects, so that making an environment never takes minutes.
_MOST = 100_000


def reachable(
    root: Any, place: str, seen: set[int] | None = None, *, into_objects: bool = True
) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each object in `root` once, including `root` itself.

    ``None``, numbers, text and bytes are left out. Functions, classes, modules, spaces and windows
    are yielded, but their content is not, except the object of a bound method. The order and the
    places are the same in every process.

    Parameters
    ----------
    root : object
        The object to start from.
    place : str
        The name of the root.
    seen : set of int, optional
        Ids of objects to leave out; the ids of yielded objects are added.
    into_objects : bool
        Whether to search attributes too, or only containers.
    """
    todo = [(place, root)]
    seen = set() if seen is None else seen
    count = 0
    while todo and count < _MOST:
        place, thing = todo.pop()
        if _is_atom(thing) or id(thing) in seen:
            continue
        seen.add(id(thing))
        count += 1
        yield place, thing
        todo += reversed(list(_parts(place, thing, into_objects)))


def _parts(place: str, thing: Any, into_objects: bool) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of everything directly inside `thing`."""
    # Containers are copied first, because another thread may change them meanwhile.
    if isinstance(thing, dict):
        for at, (key, item) in enumerate(list(dict.copy(thing).items())):
            if not _is_atom(key):
                yield f"{place}.keys[{at}]", key
            if not _is_atom(item):
                yield f"{place}[{name_of_key(key, at)}]", item
    elif isinstance(thing, set | frozenset | weakref.WeakSet):
        items = sorted((i for i in list(thing) if not _is_atom(i)), key=lambda i: repr(describe(i)))
        yield from ((f"{place}.items[{at}]", item) for at, item in enumerate(items))
    elif isinstance(thing, list | tuple | deque):
        for at, item in enumerate(list(thing)):
            if not _is_atom(item):
                yield f"{place}[{at}]", item
    elif into_objects and isinstance(thing, types.MethodType):
        yield f"{place}.__self__", thing.__self__
    elif into_objects and not is_configuration(thing) and not is_handle(thing):
        own = getattr(thing, "__dict__", None)
        # If a class defines ``__getattr__``, its objects may return any value for ``__dict__``.
        for name, value in list(own.copy().items()) if type(own) is dict else ():
            yield f"{place}.{name}", value


def _is_atom(thing: Any) -> bool:
    # A weak proxy does not hold its object, which may be gone.
    proxy = type(thing) in weakref.ProxyTypes
    return proxy or (isinstance(thing, ATOMS) and not isinstance(thing, enum.Enum))
