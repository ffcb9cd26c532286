"""Walk through the wrappers around an environment, and through everything that objects hold."""

from __future__ import annotations

import contextlib
import copy
import enum
import io
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator
from operator import is_
from typing import Any

import gymnasium
import numpy as np

from plangym_like.errors import SnapshotError
from plangym_like.snapshots.configuration import (
    describe,
    is_configuration,
    is_handle,
    name_of_key,
    qualified_name,
)

# Attributes of an environment that no step changes.
CONSTANT = frozenset(
    [
        *("env", "spec", "metadata", "action_space", "observation_space", "render_mode"),
        *("_action_space", "_observation_space", "_metadata", "_cached_spec", "_saved_kwargs"),
    ]
)
ATOMS = (type(None), bool, int, float, complex, str, bytes, bytearray, np.generic)
# One walk stops after this many objects, so that making an environment never takes minutes.
_MOST = 100_000
_SETS = (set, frozenset, weakref.WeakSet)
# Types whose hashes depend only on the value, in every process.
_STABLE = (bool, int, float, complex)
# Types of objects that `put` changes in place.
_IN_PLACE = (list, dict, set, deque, np.ndarray)
# Types of objects that all copies of an environment in a process share.
_LASTING = (*ATOMS, np.ndarray, type, types.FunctionType, types.BuiltinFunctionType, enum.Enum)


def chain(env: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Wrapper[Any, Any, Any, Any]]:
    """Yield the wrappers around `env`, outermost first.

    Raises
    ------
    SnapshotError
        The innermost object is not a `gymnasium.Env`.
    """
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    if not isinstance(env, gymnasium.Env):
        raise SnapshotError(
            f"an object of class {qualified_name(type(env))} is not a gymnasium.Env; an object "
            "that steps several environments, in threads or in processes, cannot be saved: give a "
            "single environment"
        )


def innermost(env: gymnasium.Env[Any, Any]) -> Any:
    """Return the `gymnasium.Env` inside all wrappers of `env`.

    Its attribute ``unwrapped`` may be an object of another library, which has other methods.
    """
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
    return env


def links(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """Return the wrappers around `env`, outermost first, and then the environment inside."""
    return [*chain(env), innermost(env)]


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
    elif into_objects and not (is_configuration(thing) or is_handle(thing)):
        # A buffer without attributes makes a dict when it is asked for one, and pickles it.
        own = None if isinstance(thing, io.IOBase) else getattr(thing, "__dict__", None)
        # If a class defines ``__getattr__``, its objects may return any value for ``__dict__``.
        for name, value in list(own.copy().items()) if type(own) is dict else ():
            yield f"{place}.{name}", value


def _is_atom(thing: Any) -> bool:
    # A weak proxy does not hold its object, which may be gone.
    proxy = type(thing) in weakref.ProxyTypes
    return proxy or (isinstance(thing, ATOMS) and not isinstance(thing, enum.Enum | bytearray))


def put(thing: Any, name: str, value: Any) -> None:
    """Set attribute `name` of `thing` to `value`; change arrays and containers in place.

    Other objects may hold the same array, list, dict or random generator.
    """
    attributes = vars(thing)
    attributes[name] = _into(attributes.get(name), value)


def _into(old: Any, new: Any) -> Any:
    if type(old) is not type(new):
        return new
    if type(new) in (list, dict, set, deque) and _has_same_items(old, new):
        return old
    if isinstance(new, np.ndarray):
        if (old.shape, old.dtype) != (new.shape, new.dtype) or not old.flags.writeable:
            return new
        if old.tobytes() != new.tobytes():
            old[...] = new
    elif isinstance(new, np.random.Generator):
        if type(old.bit_generator) is not type(new.bit_generator):
            return new
        old.bit_generator.state = new.bit_generator.state
    elif type(new) is list:
        old[:] = new
    elif type(new) is dict or type(new) is set:
        old.clear()
        old.update(new)
    elif type(new) is deque and old.maxlen == new.maxlen:
        old.clear()
        old.extend(new)
    else:
        return new
    return old


def _has_same_items(one: Any, other: Any) -> bool:
    """Return whether two containers hold the same objects in the same order."""
    if len(one) != len(other) or not all(map(is_, one, other)):
        return False
    return type(one) is not dict or all(map(is_, one.values(), other.values()))


def shared_restorer(
    one: gymnasium.Env[Any, Any], other: gymnasium.Env[Any, Any]
) -> Callable[[], None]:
    """Return a function that restores the present content of the objects that two chains share.

    These may be objects of the caller, such as an array in the closure of the callable that made
    both environments. Containers, arrays, random generators and attributes are changed in place.
    Objects that cannot be copied, such as a connection, are left alone with all that they hold.
    """
    ids = {id(thing) for _, thing in reachable(one, "")}
    kept: list[tuple[Any, Any]] = []
    seen: set[int] = set()
    for _, thing in list(reachable(other, "")):
        if id(thing) not in ids or id(thing) in seen:
            continue
        inside = [part for _, part in reachable(thing, "", seen)]
        with contextlib.suppress(Exception):
            copy.deepcopy(thing)
            for part in inside:
                kept += _contents(part)

    def restore() -> None:
        for thing, before in kept:
            _into(thing, before)

    return restore


def _contents(thing: Any) -> list[tuple[Any, Any]]:
    """Return `thing`, its attributes, or nothing: what can be changed in place, with a copy."""
    if isinstance(thing, np.random.Generator):
        return [(thing, copy.deepcopy(thing))]
    own = None if is_configuration(thing) else getattr(thing, "__dict__", None)
    parts = thing, *((own,) if type(own) is dict else ())
    return [(part, copy.copy(part)) for part in parts if type(part) in _IN_PLACE]


# Sets
#
# A set is iterated in the order of its hash table. This order depends on the hashes of its items,
# on the size of the table, and on all items that were ever added and removed. Strings have other
# hashes in other processes. Objects whose class defines no ``__hash__`` are hashed by their
# address, which differs between copies of an environment.


def order_is_kept(value: Any) -> bool:
    """Return whether a set with the items of `value`, added in order, is sure to have this order.

    This is false for every set that can change, because the place of an item that is added later
    depends on earlier changes.

    >>> order_is_kept(frozenset([3, 1])), order_is_kept({3, 1}), order_is_kept(frozenset("ab"))
    (True, False, False)
    """
    if type(value) is not frozenset:
        return False
    items = list(value)
    return len(items) < 2 or (all(map(_is_stable, items)) and list(frozenset(items)) == items)


def sets_in(root: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield place and value of each set in `root`."""
    for place, thing in reachable(root, name):
        if isinstance(thing, _SETS):
            yield place, thing


def has_addresses(value: Any) -> bool:
    """Return whether `value`, a set of several items, has one that is hashed by its address.

    Items that all copies of an environment share do not count (classes, functions, members of an
    enumeration).
    """
    return len(value) > 1 and any(map(_hashes_by_address, list(value)))


def note_on_sets(root: Any, name: str, *, testable: bool = False) -> str:
    """Return a message about a set in `root` whose order no trial can test, or ``""``.

    It differs between copies or processes, or `scatter_sets` does not change it. If `testable` is
    true, any other set is looked for instead.
    """
    for place, found in sets_in(root, name):
        frozen = type(found) is frozenset and not order_is_kept(found)
        if (type(found) is set) if testable else (frozen or has_addresses(found)):
            kind = qualified_name(type(found)).removeprefix("builtins.")
            return (
                f"{place} holds a {kind}, and a restored one may be iterated in another order; "
                "keep its items as the keys of a dict, which keeps their order"
            )
    return ""


def scatter_sets(root: Any, but: Collection[int] = ()) -> None:
    """Make all sets in `root` iterate in another order, but leave frozensets unchanged.

    Objects whose ids are in `but` are left out.
    """
    for _, thing in list(reachable(root, "", set(but))):
        if type(thing) is set and len(thing) > 1:
            items = [*thing]
            for room in (8, 16, 64):
                # They take the places of small numbers in a larger table, and leave gaps there.
                fillers = {number + 0.5 for number in range(room * len(items))}.difference(items)
                thing.clear()
                thing |= fillers
                thing.update(reversed(items))
                for filler in fillers:
                    thing.discard(filler)
                if [*thing] != items:
                    break


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
