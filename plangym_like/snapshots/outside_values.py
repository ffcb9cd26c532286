"""Find the class attributes and globals that the steps of an environment depend on.

Code may keep values in a class, a module, a function or a cache. No state row holds them, so a row
that is stepped again may give another result. `OutsideValues` copies such values when an
environment is made. Later, it puts the copies in the place of the values for a few steps: if the
results differ, the next step depends on what has changed, and the message names it.
"""

from __future__ import annotations

import contextlib
import dis
import enum
import functools
import reprlib
import sys
import sysconfig
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from plangym_like.snapshots.chains import links
from plangym_like.snapshots.configuration import (
    function_inside,
    is_configuration,
    is_ordinary,
    name_of_key,
)
from plangym_like.snapshots.differences import difference

_ATOMS = (type(None), bool, int, float, complex, str, bytes, np.generic)
_CACHES = functools._lru_cache_wrapper
_CONTAINERS = (list, dict, set, tuple, frozenset, deque, bytearray, np.ndarray)
_ABSENT: Any = type("_Absent", (), {"__repr__": lambda self: "nothing"})()
# Values with more items or bytes are not copied, nor are more than this many places searched.
_MOST_ITEMS, _MOST_NBYTES, _MOST_PLACES = 2000, 1 << 16, 20_000
# So deep, objects are looked for in tuples and dicts inside each other.
_MOST_DEPTH = 3
# How many places a message names, and how many are tried alone.
_NAMED, _TRIED = 3, 50
_LIBRARIES = ("gymnasium", "plangym_like", "numpy")
_SITE_PACKAGES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_ADVICE = "keep it in an attribute of the environment, so that it is part of the state"
# Held while values are replaced: if two threads did so at once, one would put the copies of the
# other back for good.
_replacing = threading.RLock()
_repr = reprlib.Repr()
_repr.maxdict = _repr.maxlist = _repr.maxset = _repr.maxtuple = _repr.maxdeque = 3
_repr.maxlevel, _repr.maxstring, _repr.maxother = 3, 40, 60


class _Unfit(Exception):
    """A value is too large to be copied, or holds objects that must not be copied."""


@dataclass(eq=False, slots=True)
class Place:
    """Where a value is kept: an attribute of a class, function or object, or a global variable.

    Attributes
    ----------
    owner : object
        The class, the function or the cell that has the value, or a dict that holds it.
    key : str
        The name of the attribute or variable.
    name : str
        The name in messages.
    """

    owner: Any
    key: str
    name: str

    def read(self) -> Any:
        """Return the value, or `_ABSENT`."""
        owner, key = self.owner, self.key
        if type(owner) is dict:
            return owner.get(key, _ABSENT)
        if isinstance(owner, type):
            return vars(owner).get(key, _ABSENT)
        try:
            return getattr(owner, key)
        except ValueError:  # an empty cell
            return _ABSENT

    def write(self, value: Any) -> None:
        """Replace the value; `_ABSENT` deletes it."""
        owner, key = self.owner, self.key
        if type(owner) is dict:
            if value is _ABSENT:
                owner.pop(key, None)
            else:
                owner[key] = value
        elif value is _ABSENT:
            delattr(owner, key)
        else:
            setattr(owner, key, value)


class OutsideValues:
    """Copies of the values outside an environment's attributes that its code refers to by name.

    Only code of the user is searched: of the packages of the environment and of its wrappers, and
    of modules that are not installed. Only plain values are copied: numbers, text, and containers
    and arrays of them. Results that functions keep in an `functools.lru_cache` cannot be copied;
    instead of a copy, an empty cache is put in place.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with its wrappers.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        search = CodeSearch(env)
        self._spaces = search.spaces
        self._before: dict[Place, Any] = {}
        for place in search.places:
            with contextlib.suppress(_Unfit):
                self._before[place] = _copy(place.read())

    @contextlib.contextmanager
    def as_before(self) -> Iterator[None]:
        """Return a context in which all values are as they were when the object was made.

        At the end, they are what they were at the beginning, whatever the steps have changed.
        """
        with self._replaced({place: self._before.get(place, _ABSENT) for place in self._changed()}):
            yield

    def restore(self) -> None:
        """Change all values back to what they were, containers and caches in place."""
        for place in self._changed():
            now, before = place.read(), self._before.get(place, _ABSENT)
            if isinstance(now, _CACHES):
                now.cache_clear()
            elif type(now) is type(before) and isinstance(now, dict | set):
                now.clear()
                now.update(_copy(before))
            elif type(now) is type(before) and isinstance(now, list | deque):
                now.clear()
                now.extend(_copy(before))
            else:
                place.write(_copy(before))

    def have_changed(self) -> bool:
        """Return whether any value has changed."""
        return bool(self._changed())

    def suspicion(self) -> str:
        """Return a sentence that names the values that have changed, or ``""`` if none has."""
        changed = [self._phrase(place) for place in self._changed()]
        if not changed:
            return ""
        return f"Likely cause: {_listed(changed)}; {_ADVICE}."

    def cause(self, run: Callable[[], Any]) -> str:
        """Return a sentence that names the changed values on which the result of `run` depends.

        The sentence is empty if there are none, or if `run` does not repeat its result.

        Parameters
        ----------
        run : callable
            Restores a state and takes steps. It returns the results, to be compared with
            `difference`, or ``None`` if they say nothing.
        """
        changed = self._changed()
        if not changed:
            return ""
        now = {place: place.read() for place in changed}
        before = {place: self._before.get(place, _ABSENT) for place in changed}
        result = self._result(run, now)
        if result is None or not self._differ(result, self._result(run, before)):
            return ""
        if self._differ(result, self._result(run, now)):
            return ""
        found = [
            place
            for place in changed[:_TRIED]
            if self._differ(result, self._result(run, now | {place: before[place]}))
        ]
        return _sentence([self._phrase(place) for place in found or changed])

    def caches(self, run: Callable[[], Any]) -> str:
        """Return a sentence that names the dicts and sets that `run` fills and depends on.

        They may have been full already when the values were copied. `run` is as in `cause`.
        """
        result = run()
        found = []
        for place in list(self._before)[:_MOST_PLACES]:
            value = place.read()
            if result is not None and isinstance(value, dict | set) and value:
                with self._replaced({place: type(value)()}):
                    other = run()
                    filled = bool(place.read())
                if filled and self._differ(result, other):
                    found.append(f"{place.name} is filled by steps")
        return _sentence(found) if found else ""

    def _result(self, run: Callable[[], Any], values: Mapping[Place, Any]) -> Any:
        with self._replaced(values):
            return run()

    @staticmethod
    def _differ(one: Any, other: Any) -> bool:
        return other is not None and difference(one, other) is not None

    @contextlib.contextmanager
    def _replaced(self, values: Mapping[Place, Any]) -> Iterator[None]:
        """Put copies of `values` in their places; put all values back at the end."""
        if not values:
            yield
            return
        with _replacing:
            kept = [(place, place.read()) for place in self._all_places()]
            try:
                for place, value in values.items():
                    if isinstance(value, _CACHES) and value is place.read():
                        continue  # its content cannot be copied
                    with contextlib.suppress(_Unfit):
                        place.write(_copy(value))
                yield
            finally:
                self._put_back(kept)

    def _put_back(self, kept: list[tuple[Place, Any]]) -> None:
        """Put all values back, and remove attributes that the steps have added."""
        for place, value in kept:
            if place.read() is not value:
                place.write(value)
        known = {(id(place.owner), place.key) for place, _ in kept}
        for place in self._all_places():
            if (id(place.owner), place.key) not in known:
                place.write(_ABSENT)

    def _all_places(self) -> dict[Place, None]:
        """Return the places of all copied values, and of attributes that were added since."""
        found = dict.fromkeys(self._before)
        for space, known in self._spaces.items():
            mapping = space.mapping()
            for key in mapping.keys() - known if len(mapping) != len(known) else ():
                place = space.place(key)
                with contextlib.suppress(_Unfit):
                    _copy(place.read())
                    found[place] = None
        return found

    def _changed(self) -> list[Place]:
        return [
            place
            for place in self._all_places()
            if not _are_equal(place.read(), self._before.get(place, _ABSENT))
        ]

    def _phrase(self, place: Place) -> str:
        now, before = place.read(), self._before.get(place, _ABSENT)
        if isinstance(now, _CACHES):
            return f"the lru_cache {place.name} holds {now.cache_info().currsize} earlier results"
        return f"{place.name} changed from {_repr.repr(before)} to {_repr.repr(now)}"


@dataclass(eq=False, slots=True)
class _Space:
    """A class or a dict of attributes, all of which are watched."""

    owner: Any
    label: str

    def mapping(self) -> Mapping[str, Any]:
        return vars(self.owner) if isinstance(self.owner, type) else self.owner

    def place(self, key: str) -> Place:
        kind = "a class attribute" if isinstance(self.owner, type) else "an attribute outside it"
        return Place(self.owner, key, f"{self.label}.{key} ({kind})")


class CodeSearch:
    """Finds everything that code of the user refers to by name.

    The search begins at the classes of an environment and its wrappers, and at functions in their
    attributes. It includes global variables, attributes of classes and functions, closures and
    default arguments.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with its wrappers.
    kinds : iterable of type, optional
        Other classes to begin at.

    Attributes
    ----------
    places : list of Place
        Where plain values and caches are, which steps may change.
    spaces : dict
        The classes and dicts whose attributes are all watched, and the names of the attributes.
    kinds : list of type
        The classes that were found.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], kinds: Iterable[type] = ()) -> None:
        chain = links(env)
        bases = {kind for link in chain for kind in type(link).__mro__}
        envs = (kind for kind in bases if issubclass(kind, gymnasium.Env | gymnasium.Wrapper))
        self._packages = {*map(_package, envs)} - {*_LIBRARIES}
        self._never = {id(link) for link in chain}
        self._seen: set[int] = set()
        self._pending: list[Any] = [*kinds, *map(type, chain)]
        self._keys: dict[tuple[int, str], None] = {}
        self.places: list[Place] = []
        # Everything that was found; and the global variables that some function sets.
        self._values: list[tuple[Place, Any]] = []
        self._set: set[tuple[int, str]] = set()
        self.kinds: list[type] = []
        self.spaces: dict[_Space, set[str]] = {}
        for link in chain:
            for value in vars(link).values():
                self._follow(value)
        while self._pending and len(self.places) < _MOST_PLACES:
            thing = self._pending.pop()
            if id(thing) not in self._seen:
                self._seen.add(id(thing))
                if isinstance(thing, type):
                    self.kinds.append(thing)
                    self._pending += thing.__mro__
                if self._is_own(thing.__module__):
                    self._look_into(thing)

    def shared_objects(self) -> Iterator[tuple[str, Any]]:
        """Yield name and value of the objects that code may compare others with, by ``is``.

        They are in global variables that no function sets, in attributes of classes, in closures
        and default arguments, or in a tuple or dict there. A list may be a register of objects that
        are made while a game is played, so its items are left out. So are objects of libraries.
        Several objects may have one name.
        """
        for place, value in self._values:
            if (id(place.owner), place.key) not in self._set:
                owner = place.owner
                module = f"{owner.__module__}." if isinstance(owner, type) else ""
                for name, item in _with_items(f"{module}{place.name}", value):
                    if type(item) is object or self._is_own(type(item).__module__):
                        yield name, item

    def _is_own(self, name: Any) -> bool:
        """Return whether the module `name` belongs to the user's code."""
        return str(name).partition(".")[0] in self._packages or is_own_module(name)

    def _look_into(self, thing: Any) -> None:
        if isinstance(thing, type):
            if not issubclass(thing, enum.Enum):
                self._watch_all(_Space(thing, thing.__name__))
            return
        name = f"{thing.__module__}.{thing.__name__}"
        if vars(thing):
            self._watch_all(_Space(vars(thing), thing.__name__))
        if isinstance(thing, _CACHES):
            self._follow(thing.__wrapped__)
            return
        for key in ("__defaults__", "__kwdefaults__"):
            if getattr(thing, key):
                self._watch(Place(thing, key, f"the default arguments of {name}"), follow=False)
        for variable, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            place = Place(cell, "cell_contents", f"{variable} (in the closure of {name})")
            # A method may hold its class, or the first one of a dataclass that got slots.
            value, owner = place.read(), thing.__qualname__.split(".")[-2:-1]
            if not (isinstance(value, type) and [value.__name__] == owner):
                self._watch(place)
        self._look_into_globals(thing)

    def _look_into_globals(self, function: types.FunctionType) -> None:
        """Watch the global variables and the attributes of modules that `function` mentions."""
        variables, names = function.__globals__, set()
        stored: set[str] = set()
        for code in codes_in(function.__code__):
            names |= set(code.co_names)
            if dis.opmap["STORE_GLOBAL"] in code.co_code[::2]:
                stored |= {
                    each.argval
                    for each in dis.get_instructions(code)
                    if each.opname == "STORE_GLOBAL"
                }
        module = function.__module__
        self._set |= {(id(variables), name) for name in stored}
        for name in sorted(names & variables.keys() | stored):
            value = variables.get(name)
            if isinstance(value, types.ModuleType):
                if self._is_own(value.__name__):
                    for key in sorted(names & vars(value).keys()):
                        place = Place(vars(value), key, f"{key} (a global of {value.__name__})")
                        self._watch(place)
            else:
                self._watch(Place(variables, name, f"{name} (a global of {module})"))

    def _watch_all(self, space: _Space) -> None:
        """Watch all attributes of a class, or all items of a dict of attributes."""
        mapping = dict(space.mapping())
        self.spaces[space] = {*mapping}
        for key, value in mapping.items():
            if key.startswith("__") and key.endswith("__"):
                self._follow(value)
            else:
                self._watch(space.place(key))

    def _watch(self, place: Place, *, follow: bool = True) -> None:
        at = id(place.owner), place.key
        is_known = at in self._keys
        # Functions that share a cell have cells of their own in a process that they were sent to.
        if is_known and not isinstance(place.owner, types.CellType):
            return
        value = place.read()
        self._values.append((place, value))
        if is_known:
            return
        self._keys[at] = None
        if value is _ABSENT or isinstance(value, (*_ATOMS, *_CONTAINERS, _CACHES)):
            self.places.append(place)
        if follow:
            self._follow(value, place)

    def _follow(self, value: Any, place: Place | None = None) -> None:
        """Search a class, a function or an object that code refers to."""
        inner = value.func if isinstance(value, functools.partial) else function_inside(value)
        if isinstance(inner, type | types.FunctionType | _CACHES):
            if isinstance(getattr(inner, "__module__", None), str):
                self._pending.append(inner)
        elif place is not None and id(value) not in self._seen | self._never:
            if is_ordinary(type(value)) and self._is_own(type(value).__module__):
                if not is_configuration(value) and not isinstance(value, gymnasium.Env):
                    self._seen.add(id(value))
                    self._watch_all(_Space(vars(value), place.name.partition(" ")[0]))


def is_own_module(name: Any) -> bool:
    """Return whether the module `name` was written by the user, not installed."""
    package, module = str(name).partition(".")[0], sys.modules.get(str(name))
    if package == "__main__":
        return True
    if module is None or package in sys.stdlib_module_names or package in _LIBRARIES:
        return False
    file = getattr(module, "__file__", None)
    return file is not None and not file.startswith(_SITE_PACKAGES)


def _with_items(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    yield name, value
    if type(value) not in (dict, tuple) or len(value) > _MOST_ITEMS or depth == _MOST_DEPTH:
        return
    for key, item in list(value.items() if type(value) is dict else enumerate(value)):
        yield from _with_items(f"{name}[{name_of_key(key, 0)}]", item, depth + 1)


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function, and that of all functions, classes and so on inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def _package(thing: Any) -> str:
    return str(thing.__module__).partition(".")[0]


def _copy(value: Any) -> Any:
    """Return a copy of a plain value; of a cache, a new and empty one."""
    if isinstance(value, _CACHES):
        return functools.lru_cache(**value.cache_parameters())(value.__wrapped__)
    return value if value is _ABSENT else _copied(value, [_MOST_ITEMS])


def _copied(value: Any, left: list[int]) -> Any:
    kind = type(value)
    if isinstance(value, _ATOMS) and not isinstance(value, enum.Enum):
        if isinstance(value, str | bytes) and len(value) > _MOST_NBYTES:
            raise _Unfit
        return value
    if kind is np.ndarray:
        if value.dtype == object or value.nbytes > _MOST_NBYTES:
            raise _Unfit
        return value.copy()
    if kind not in (list, tuple, set, frozenset, deque, dict, bytearray):
        raise _Unfit
    left[0] -= len(value)
    if left[0] < 0:
        raise _Unfit
    if kind is bytearray:
        return bytearray(value)
    if kind is dict:
        return {_copied(key, left): _copied(item, left) for key, item in value.items()}
    items: Iterable[Any] = [_copied(item, left) for item in value]
    return deque(items, value.maxlen) if kind is deque else kind(items)


def _are_equal(now: Any, before: Any) -> bool:
    if isinstance(now, _CACHES):
        return not now.cache_info().currsize
    if now is before:
        return True
    if type(now) is not type(before):
        return False
    try:
        return bool(now == before)
    except Exception:  # arrays have no truth value
        return difference(now, before) is None


def _sentence(phrases: list[str]) -> str:
    """Return the sentence that names the values on which the next step depends."""
    it = "it" if len(phrases) == 1 else "them"
    return f"{_listed(phrases)}, and the next step depends on {it}; {_ADVICE}."


def _listed(phrases: list[str]) -> str:
    more = f" and {len(phrases) - _NAMED} more" if len(phrases) > _NAMED else ""
    return ", ".join(phrases[:_NAMED]) + more
