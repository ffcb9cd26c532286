"""All that an object holds, through attributes and containers."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from plangym_like.snapshots.configuration import is_configuration, is_handle

ATOMS = (type(None), bool, int, float, complex, str, bytes, bytearray, np.generic)
# No environment is walked further than this.
_MOST = 100_000


def reachable(root: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each object in `root`, itself included, once.

    Places are called after attributes; what lies in a container is called as the container is.
    Functions, classes, modules, spaces and windows are yielded, but not looked into.
    """
    todo: list[tuple[str, Any]] = [(name, root)]
    seen: set[int] = set()
    while todo and len(seen) < _MOST:
        place, thing = todo.pop()
        if isinstance(thing, ATOMS) or id(thing) in seen:
            continue
        seen.add(id(thing))
        yield place, thing
        if isinstance(thing, dict):
            todo += [(place, item) for pair in list(thing.items()) for item in pair]
        elif isinstance(thing, list | tuple | deque | set | frozenset | weakref.WeakSet):
            todo += [(place, item) for item in list(thing)]
        elif not is_configuration(thing) and not is_handle(thing) and hasattr(thing, "__dict__"):
            todo += [(f"{place}.{key}", value) for key, value in list(vars(thing).items())]
