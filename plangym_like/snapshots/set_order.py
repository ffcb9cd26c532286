"""Find out whether a pickle keeps the iteration order of a set.

A set is iterated in the order of its hash table. This order depends on the hashes of its items, on
the size of the table, and on all items that were ever added and removed. A pickle contains none of
this. Objects whose class defines no ``__hash__`` are hashed by their address, so a set of them is
iterated in another order in every copy of an environment. Strings have different hashes in
different processes.
"""

from __future__ import annotations

import enum
import types
import weakref
from typing import Any

import numpy as np

from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.reachable import ATOMS, reachable

_SETS = (set, frozenset, weakref.WeakSet)
# Types whose hashes depend only on the value, in every process.
_STABLE = (bool, int, float, complex)
# Types of objects that all copies of an environment in a process share.
_LASTING = (*ATOMS, np.ndarray, type, types.FunctionType, types.BuiltinFunctionType, enum.Enum)


def is_set(value: Any) -> bool:
    """Return whether `value` is a set of any kind."""
    return isinstance(value, _SETS)


def order_is_kept(value: Any) -> bool:
    """Return whether a pickle keeps the iteration order of the set `value`.

    This is false for every set that can change, because the place of an item that is added later
    depends on earlier changes.

    >>> order_is_kept(frozenset([3, 1])), order_is_kept({3, 1}), order_is_kept(frozenset("ab"))
    (True, False, False)
    """
    if type(value) is not frozenset:
        # The position of the next item depends on earlier additions and removals.
        return False
    items = list(value)
    return len(items) < 2 or (all(map(_is_stable, items)) and list(frozenset(items)) == items)


def set_of_addresses(root: Any, name: str) -> str | None:
    """Return the place in `root` of a set with an item that is hashed by its address.

    Sets of a single item do not count, nor do items that all copies of an environment share
    (classes, functions, members of an enumeration). Return ``None`` if there is no such set.
    """
    for place, thing in reachable(root, name):
        if isinstance(thing, _SETS):
            items = list(thing)
            if len(items) > 1 and any(map(_hashes_by_address, items)):
                return place
    return None


def order_note(place: str, value: Any) -> str:
    """Return the sentence for errors and notes about a set whose order is not kept."""
    kind = qualified_name(type(value)).removeprefix("builtins.")
    return (
        f"{place} holds a {kind}, and a restored one may be iterated in another order; keep its "
        "items as the keys of a dict, which keeps their order"
    )


def _is_stable(item: Any) -> bool:
    if type(item) in (tuple, frozenset):
        return all(map(_is_stable, item))
    return type(item) in _STABLE or (isinstance(item, np.generic) and item.dtype.kind in "biufc")


def _hashes_by_address(item: Any) -> bool:
    if isinstance(item, weakref.ref):
        item = item()
    if isinstance(item, tuple | frozenset):
        return any(map(_hashes_by_address, item))
    own: Any = type(item).__hash__
    return own is object.__hash__ and not isinstance(item, _LASTING)
