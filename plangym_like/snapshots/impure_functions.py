"""Find values that functions and wrappers of a chain keep outside state rows.

Code can keep values in a closure, a default argument, the arguments of a partial, a class or a
module. `Trial` copies these values before some steps and after them, and compares the copies.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import random
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from plangym_like.errors import SnapshotError
from plangym_like.snapshots.chains import links
from plangym_like.snapshots.configuration import (
    FUNCTIONS,
    function_inside,
    is_configuration,
    is_ordinary,
)
from plangym_like.snapshots.known_wrappers import TRANSPARENT, is_known
from plangym_like.snapshots.state_owner import kind_of

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_GLOBAL: tuple[Any, Any] = (random.random.__self__, np.random.random.__self__)  # type: ignore[attr-defined]
# `np._NoValue` is the default of many arguments of NumPy's functions.
_NUMBERS = (type(None), type(np._NoValue), bool, int, float, complex, str, bytes, np.generic)
_CONTAINERS = (list, dict, set, bytearray, deque, np.ndarray)
# Larger values are not copied.
_MOST_NBYTES = 1 << 20
_DEEPEST = 4


def held_objects(function: Any) -> list[Any]:
    """Return the objects in the closure, the defaults or the bound arguments of `function`.

    Only objects that may have state are returned, such as the object of a bound method. Numbers,
    containers and configuration are left out. Functions that `function` holds are searched too.

    >>> held_objects(functools.partial(max, [1, 2]))
    []
    """
    found: list[Any] = []
    for _, value in _held(function, set(), 0):
        plain = isinstance(value, (*_NUMBERS, *_CONTAINERS, *_GENERATORS, tuple, frozenset))
        if not (plain or isinstance(value, types.GeneratorType) or is_configuration(value)):
            found.append(value)
    return found


def refuse_method_of_data(place: str, value: Any) -> None:
    """Raise `SnapshotError` if `value` is a method of a container or of a random generator.

    The global generators of `random` and `numpy.random` are allowed.
    """
    if isinstance(value, types.BuiltinMethodType | types.MethodWrapperType | types.MethodType):
        thing = value.__self__
        if thing is not _GLOBAL[0] and thing is not _GLOBAL[1]:
            if isinstance(thing, (*_CONTAINERS, *_GENERATORS)):
                raise SnapshotError(
                    f"{place} cannot be saved: it is a method of {kind_of(thing)}, and would still "
                    "belong to this object after a restore, which makes a copy of the object; look "
                    "the method up each time it is called"
                )


def values_outside(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Return copies of the values that a wrapper chain keeps outside its attributes, by place.

    The search covers the classes of wrappers from outside Gymnasium, and all functions that are
    attributes of a wrapper or of the environment.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for link in links(env):
        name = type(link).__name__
        if isinstance(link, gymnasium.Wrapper) and type(link) not in TRANSPARENT:
            if not is_known(link):
                for kind in type(link).__mro__:
                    if not kind.__module__.startswith(("gymnasium.", "builtins", "typing")):
                        _look_into_class(kind, found, seen)
        for attribute, value in vars(link).items():
            if isinstance(value, FUNCTIONS):
                # The objects in the function are part of the state (`held_objects`).
                _look_into_function(f"{name}.{attribute}", value, found, seen, objects=False)
    return found


def changed_places(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the places whose values have changed.

    Containers that have only grown do not count: they may be caches or logs, which do not affect
    results.
    """
    return [
        place
        for place, value in before.items()
        if place in after and not has_only_grown(value, after[place])
    ]


def named_values(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the place and value of everything that a class or function refers to by name."""
    if isinstance(thing, type):
        yield from ((f"the attribute {name}", value) for name, value in vars(thing).items())
    else:
        yield from _parts(thing)
        yield from _globals(thing)


def _look_into_class(kind: type, found: dict[str, Any], seen: set[int]) -> None:
    if id(kind) in seen:
        return
    seen.add(id(kind))
    for name, value in list(vars(kind).items()):
        if name.startswith("__") and name.endswith("__") and name != "__init__":
            if not isinstance(value, types.FunctionType):
                continue
        inner = function_inside(value)
        if isinstance(inner, FUNCTIONS):
            _look_into_function(f"{kind.__name__}.{name}", inner, found, seen)
        else:
            _note(f"the class attribute {kind.__name__}.{name}", value, found)


def _look_into_function(
    place: str, function: Any, found: dict[str, Any], seen: set[int], *, objects: bool = True
) -> None:
    for inner, value in _held(function, seen, 0):
        _note(f"{inner} of {place}", value, found, objects=objects)
    for inner, value in _globals(function):
        _note(f"{inner} of {place}", value, found)


def _held(function: Any, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield place and value of each object that is held by `function` or a function inside it."""
    if id(function) in seen or depth > _DEEPEST:
        return
    seen.add(id(function))
    if isinstance(function, types.MethodType):
        yield "the object", function.__self__
        parts: list[tuple[str, Any]] = [("", function.__func__)]
    elif isinstance(function, functools.partial):
        values = (*function.args, *function.keywords.values())
        parts = [("", function.func), *(("an argument", value) for value in values)]
    elif isinstance(function, types.FunctionType):
        parts = list(_parts(function))
    else:
        parts = [("", getattr(function, "__wrapped__", None))]
    for place, value in parts:
        if isinstance(value, FUNCTIONS):
            yield from _held(value, seen, depth + 1)
        elif place:
            yield place, value


def _parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"the variable {name!r} in the closure", cell.cell_contents
        except ValueError:
            continue
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        yield f"the default {name!r}", value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f"the default {name!r}", value


def _globals(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield a description and the value of each global variable that `function` uses."""
    while not isinstance(function, types.FunctionType):
        inner = getattr(function, "__func__", None) or getattr(function, "func", None)
        function = inner or getattr(function, "__wrapped__", None)
        if function is None:
            return
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    for name in sorted(names):
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType | type):
            for attribute in sorted(names & set(vars(value))):
                yield f"the global {name}.{attribute}", vars(value)[attribute]
        else:
            yield f"the global {name!r}", value


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _note(place: str, value: Any, found: dict[str, Any], *, objects: bool = True) -> None:
    """Copy `value` to `found` if it is a number, a container or a random generator.

    With ``objects=True``, also copy the numbers among the attributes of any other object.
    """
    if isinstance(value, np.random.Generator):
        found[place] = pickle.dumps(value.bit_generator.state)
    elif isinstance(value, _GENERATORS) and not is_configuration(value):
        found[place] = pickle.dumps(value)
    elif isinstance(value, (*_NUMBERS, tuple, frozenset)):
        found[place] = value
    elif isinstance(value, _CONTAINERS):
        if (value.nbytes if isinstance(value, np.ndarray) else 64 * len(value)) < _MOST_NBYTES:
            # If a value cannot be copied, only the results of steps are compared.
            with contextlib.suppress(Exception):
                found[place] = pickle.loads(pickle.dumps(value))
    elif objects and not isinstance(value, gymnasium.Env) and is_ordinary(type(value)):
        for name, inner in vars(value).items():
            if isinstance(inner, _NUMBERS):
                found[f"{name!r} in {place}"] = inner


def has_only_grown(before: Any, after: Any) -> bool:
    """Return whether `after` is equal to `before`, or is a container that has only grown."""
    if type(before) is not type(after):
        return False
    try:
        if isinstance(before, dict):
            return all(k in after and has_only_grown(v, after[k]) for k, v in before.items())
        if isinstance(before, list | deque):
            pairs = zip(before, list(after)[: len(before)], strict=False)
            return len(after) >= len(before) and all(
                has_only_grown(one, other) for one, other in pairs
            )
        if isinstance(before, set):
            return bool(before <= after)
        if isinstance(before, np.ndarray):
            return bool(before.dtype == object or before.tobytes() == after.tobytes())
        return bool(before == after) or before != before
    except Exception:
        # If values cannot be compared, only the results of steps are compared.
        return True
