"""Find what makes an object unpicklable, and say where it is."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

from plangym_like.processes.by_value import pickle_by_value

_MOST_STEPS = 2000


def explain(value: Any, error: Exception) -> str:
    """Return what in `value` cannot be pickled, which `error` says, where it is, and what to do."""
    place, culprit, owner = _find(value)
    what = f"an object of class {_name(type(culprit))}"
    if isinstance(culprit, type):
        what = f"the class {_name(culprit)}"
    advice = "make it in a function that the worker calls"
    if owner is not None:
        advice = (
            f"move the class {_name(owner)} to a module of its own, which workers import, or make "
            "the object in one of its methods"
        )
    where = f" ({place})" if place else ""
    return f"{what}{where} cannot be sent to another process: {error}; {advice}"


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _find(value: Any) -> tuple[str, Any, type | None]:
    """Return the innermost object of `value` that cannot be pickled alone.

    The result is its place, the object, and the innermost class that it belongs to.
    """
    place, seen, steps = "", {id(value)}, 0
    owner: type | None = None
    while True:
        if isinstance(value, type):
            owner = value
        for inner_place, inner in _parts(value):
            steps += 1
            if id(inner) in seen or steps > _MOST_STEPS:
                continue
            seen.add(id(inner))
            if _fails(inner):
                place, value = inner_place, inner
                break
        else:
            return place, value, owner


def _fails(value: Any) -> bool:
    try:
        pickle_by_value(value)
    except Exception:
        return True
    return False


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the place and value of what is pickled together with `thing`."""
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    if isinstance(thing, types.FunctionType):
        yield from _parts_of_function(thing, name)
    elif isinstance(thing, type):
        yield from ((f"a base of {name}", base) for base in thing.__mro__[1:-1])
        for attribute, value in vars(thing).items():
            inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
            yield f"the attribute {attribute!r} of the class {name}", inner
    elif isinstance(thing, functools.partial):
        yield from (("a function in a partial", thing.func), ("its arguments", thing.args))
        yield "its keyword arguments", thing.keywords
    elif isinstance(thing, types.MethodType):
        yield from ((f"the object of {name}", thing.__self__), (name, thing.__func__))
    elif isinstance(thing, dict):
        yield from ((f"the value of {key!r}", value) for key, value in thing.items())
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from (("an entry of a container", value) for value in thing)
    else:
        yield from ((f"a class of {type(thing).__module__}", kind) for kind in (type(thing),))
        for attribute, value in getattr(thing, "__dict__", {}).items():
            yield f"the attribute {attribute!r} of an object of class {name}", value


def _parts_of_function(function: types.FunctionType, name: str) -> Iterator[tuple[str, Any]]:
    for variable, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True
    ):
        try:
            yield f"the variable {variable!r} that {name} uses", cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    for variable in _names(function.__code__):
        if variable in function.__globals__:
            yield f"the global {variable!r} that {name} uses", function.__globals__[variable]
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield f"a default argument of {name}", value
    yield f"the attributes of {name}", vars(function)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
