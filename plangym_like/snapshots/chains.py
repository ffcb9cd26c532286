"""Walk through the wrappers around an environment, and through everything that objects hold."""

from __future__ import annotations

import contextlib
import enum
import io
import sys
import types
import weakref
from collections import deque
from collections.abc import Collection, Iterator
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
from plangym_like.support.fork_safety import new_lock

# Attributes of an environment that no step changes.
CONSTANT = frozenset(
    [
        *("env", "spec", "metadata", "action_space", "observation_space", "render_mode"),
        *("_action_space", "_observation_space", "_metadata", "_cached_spec", "_saved_kwargs"),
    ]
)
ATOMS = (type(None), bool, int, float, complex, str, bytes, bytearray, np.generic)
# Modules whose function ``quit`` shuts down a library, or a part of it, in the whole process.
_SHUT_DOWN = ("pygame", "pygame.display", "pygame.font", "pygame.freetype", "pygame.mixer")
# One walk stops after this many objects, so that making an environment never takes minutes.
_MOST = 100_000
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
    elif isinstance(thing, set | frozenset):
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


# Sets
#
# A set is iterated in the order of its hash table. This order depends on the hashes of its items,
# on the size of the table, and on all items that were ever added and removed. Objects whose class
# defines no ``__hash__`` are hashed by their address, which differs between copies.


def sets_in(root: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield place and value of each set in `root`."""
    for place, thing in reachable(root, name):
        if isinstance(thing, set | frozenset):
            yield place, thing


def has_addresses(value: Any) -> bool:
    """Return whether `value`, a set of several items, has one that is hashed by its address.

    Items that all copies of an environment share do not count (classes, functions, members of an
    enumeration).
    """
    return len(value) > 1 and any(map(_hashes_by_address, list(value)))


def note_on_sets(root: Any, name: str) -> str:
    """Return a message about a set in `root` with items that hash by their address, or ``""``.

    Its order differs between copies of an environment, whatever a trial shows.
    """
    for place, found in sets_in(root, name):
        if has_addresses(found):
            return (
                f"{place} is a set of objects that hash by their address, so each copy of the "
                "environment may iterate over it in another order; keep the objects as the keys of "
                "a dict, which keeps their order"
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


def _hashes_by_address(item: Any) -> bool:
    if isinstance(item, tuple | frozenset):
        return any(map(_hashes_by_address, item))
    own: Any = type(item).__hash__
    return own is object.__hash__ and not isinstance(item, _LASTING)


# Closing copies
#
# A game may call ``pygame.quit`` when it is closed, which shuts pygame down in the whole process.
# The windows and fonts of all other copies are then gone, but copies are closed while others play.

_lock = new_lock()


@contextlib.contextmanager
def libraries_left_open() -> Iterator[None]:
    """During the block, functions that shut down a library, such as ``pygame.quit``, do nothing."""
    with _lock, contextlib.ExitStack() as stack:
        for module in map(sys.modules.get, _SHUT_DOWN):
            end = getattr(module, "quit", None)
            if end is not None:
                stack.callback(setattr, module, "quit", end)
                module.quit = _nothing  # type: ignore[union-attr]
        yield


def close_copy(env: Any) -> None:
    """Close one of several copies of an environment; ignore exceptions that its ``close`` raises.

    Libraries that the other copies use, such as pygame, are not shut down.
    """
    with contextlib.suppress(Exception), libraries_left_open():
        env.close()


def _nothing() -> None:
    """Do nothing."""
