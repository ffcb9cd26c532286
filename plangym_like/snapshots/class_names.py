"""Name classes in a way that is valid in every process, and find classes by name.

Classes defined in ``__main__`` or in a function are sent to workers by cloudpickle, which keeps
module and ``__name__`` but not ``__qualname__``. A worker cannot import such a class, so it looks
for the class among the environment's other classes and everything that their code can refer to.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from plangym_like.snapshots.configuration import function_inside


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
