"""The objects and classes that code refers to by name.

Code may test ``tile is WALL``, where ``WALL`` is a global variable, a class attribute, a default
argument or a variable in a closure. A copy of ``WALL`` would be another object, so a saved state
refers to ``WALL`` and does not contain a copy.

Classes defined in ``__main__`` or in a function are sent to workers by cloudpickle, which keeps
module and ``__name__`` but not ``__qualname__``. A worker cannot import such a class, so it looks
for the class among the environment's other classes and everything that their code can refer to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import gymnasium

from plangym_like.snapshots.chains import links
from plangym_like.snapshots.configuration import (
    LOCKS,
    function_inside,
    is_configuration,
    is_handle,
    own_pickling,
)
from plangym_like.snapshots.impure_functions import named_values
from plangym_like.snapshots.reachable import reachable

_IN_PYTHON = 1 << 9  # the flag of classes that are made by a class statement
_NEVER = (type, gymnasium.Env, random.Random, *LOCKS)


def named_objects(env: gymnasium.Env[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield place and value of each object that code of a wrapper chain refers to by name.

    Only code in the packages of the chain's classes, and of the environments that they are derived
    from, is searched, except Gymnasium. Each object is an instance of `object` itself or of a class
    written in Python, and may be in a container. The places are the same in every process.
    """
    pending: list[Any] = [type(link) for link in links(env)]
    bases = [base for kind in pending for base in kind.__mro__ if issubclass(base, gymnasium.Env)]
    packages = {_package(kind) for kind in (*pending, *bases)} - {"gymnasium"}
    seen: set[int] = set()
    found: set[int] = set()
    while pending:
        thing = pending.pop()
        if id(thing) in seen or _package(thing) not in packages:
            continue
        seen.add(id(thing))
        for name, named in named_values(thing):
            for place, value in reachable(named, name, into_objects=False):
                inner = function_inside(value)
                if isinstance(inner, type | types.FunctionType):
                    pending.append(inner)
                elif id(value) not in found and _may_be_compared(value):
                    found.add(id(value))
                    yield f"{place} of {thing.__module__}.{thing.__name__}", value
        if isinstance(thing, type):
            pending += thing.__mro__


def name_of(kind: type) -> tuple[str, str]:
    """Return the module and the name of a class."""
    return kind.__module__, kind.__name__


def can_be_imported(kind: type) -> bool:
    """Return whether `kind` can be imported by name; always false for classes of ``__main__``."""
    found: Any = None if kind.__module__ == "__main__" else sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


def classes_named(module: str, name: str, roots: Iterable[type]) -> list[type]:
    """Return the classes ``module.name`` among `roots` and the classes used in their code."""
    seen: dict[int, Any] = {}
    pending: list[tuple[Any, type | None]] = [(kind, None) for kind in roots]
    while pending:
        thing, owner = pending.pop()
        seen[id(thing)] = thing
        for used in _used_by(thing):
            # A dataclass with slots is made twice, and its methods may refer to the first class.
            twin = owner is not None and isinstance(used, type) and name_of(used) == name_of(owner)
            if used.__module__ == module and id(used) not in seen and not twin:
                pending.append((used, thing if isinstance(thing, type) else None))
    kinds = [thing for thing in seen.values() if isinstance(thing, type)]
    return [kind for kind in kinds if name_of(kind) == (module, name)]


def _package(thing: Any) -> str:
    return str(thing.__module__).partition(".")[0]


def _may_be_compared(thing: Any) -> bool:
    kind = type(thing)
    if kind is object:
        return True
    if own_pickling(kind) and not dataclasses.is_dataclass(thing):
        # Data frames, models and the like, which may be large.
        return False
    in_python = all(link.__flags__ & _IN_PYTHON for link in kind.__mro__[:-1])
    configuration = isinstance(thing, _NEVER) or is_configuration(thing) or is_handle(thing)
    return in_python and not configuration


def _used_by(thing: type | types.FunctionType) -> Iterator[type | types.FunctionType]:
    """Yield the classes and functions that `thing` can refer to.

    They are in the attributes of a class, or in the global and closure variables of a function.
    """
    values: list[Any] = []
    if isinstance(thing, type):
        values += vars(thing).values()
    else:
        values += thing.__globals__.values()
        for cell in thing.__closure__ or ():
            with contextlib.suppress(ValueError):
                values.append(cell.cell_contents)
    for value in values:
        function = function_inside(value)
        if isinstance(function, type | types.FunctionType):
            yield function
