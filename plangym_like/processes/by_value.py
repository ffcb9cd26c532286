"""`ByValuePickler`: pickles classes and functions that other processes cannot import."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

# What pickle and cloudpickle raise; errors of a class's own methods have other types.
_UNPICKLABLE = (
    TypeError,
    AttributeError,
    NotImplementedError,
    ValueError,
    pickle.PicklingError,
)
# How many of the last things that were pickled are searched for the one that holds a culprit.
_MOST_HOLDERS = 1000


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles classes of ``__main__`` and local classes, including slots and cached members.

    Classes and functions of modules that a new process with the same ``sys.path`` and directory
    would not find, or would find in another file, are pickled in the same way: their modules are
    registered with cloudpickle when they are first met.

    This works around three limits of cloudpickle 3.1:

    - It replaces a class that has ``__slots__`` by a class without them. The original class cannot
      restore pickled objects of the new class.
    - Before Python 3.12, it rejects ``functools.cached_property``.
    - It looks up functions with an ``lru_cache`` in modules that another process does not have.
    """

    def __init__(self, file: Any, protocol: int | None = None) -> None:
        super().__init__(file, protocol)
        try:
            directory = os.getcwd()
        except OSError:  # it was deleted
            directory = ""
        self._place = directory, *map(str, sys.path)
        # The things that were pickled, the last one last.
        self.pickled: deque[Any] = deque(maxlen=_MOST_HOLDERS)

    def reducer_override(self, thing: Any) -> Any:
        self.pickled.append(thing)
        if isinstance(thing, type | types.FunctionType) and not self._can_import(thing.__module__):
            cloudpickle.register_pickle_by_value(sys.modules[thing.__module__])
        if type(thing) is functools.cached_property:
            return _cached_property, (thing.func, thing.attrname)
        if type(thing) is functools._lru_cache_wrapper and self._is_nowhere(thing):
            return _cached_function, (thing.__wrapped__, thing.cache_parameters())
        reduced = super().reducer_override(thing)
        if isinstance(thing, type) and "__slots__" in vars(thing) and isinstance(reduced, tuple):
            name_space = reduced[1][3:4]
            if name_space and isinstance(name_space[0], dict):
                name_space[0]["__slots__"] = vars(thing)["__slots__"]
        return reduced

    def _can_import(self, name: Any) -> bool:
        """Return whether other processes find the module, or cloudpickle knows what to do."""
        module = sys.modules.get(name) if isinstance(name, str) else None
        # A program may put any object in `sys.modules`.
        if not isinstance(module, types.ModuleType) or name == "__main__":
            return True
        return _can_be_imported(name, _file_of(module), self._place)

    def _is_nowhere(self, function: Any) -> bool:
        if function.__module__ == "__main__" or not self._can_import(function.__module__):
            return True
        found: Any = sys.modules.get(function.__module__)
        for name in function.__qualname__.split("."):
            found = getattr(found, name, None)
        return found is not function


def pickle_by_value(value: Any) -> bytes:
    """Return `value` pickled by `ByValuePickler`.

    Raises
    ------
    TypeError
        A part of `value` cannot be pickled; the message says which part, and what uses it.
    """
    stream = io.BytesIO()
    pickler = ByValuePickler(stream, 5)
    try:
        pickler.dump(value)
    except _UNPICKLABLE as error:
        raise TypeError(_explain(list(pickler.pickled) or [value], error)) from error
    return stream.getvalue()


@functools.lru_cache(maxsize=4096)  # a search for a file takes longer than pickling most things
def _can_be_imported(name: str, file: str | None, place: tuple[str, ...]) -> bool:
    """Return whether a new process finds the module `name` in the same `file`.

    `file` is ``None`` for a module that is not in a file. `place` is the directory and the path of
    this process, which the new process has too.
    """
    package, _, _ = name.rpartition(".")
    path = None
    if package:
        parent = sys.modules.get(package)
        if parent is None or not _can_be_imported(package, _file_of(parent), place):
            return False
        path = getattr(parent, "__path__", None)
        if path is None:  # a part of an extension module
            return True
    try:
        found = _find_spec(name, path)
        if found is None or file is None or not found.has_location or found.origin is None:
            return found is not None
        return bool(os.path.realpath(file) == os.path.realpath(found.origin))
    except Exception:  # a finder may raise anything
        return True


def _file_of(module: Any) -> str | None:
    file = getattr(module, "__file__", None)
    return None if file is None else str(file)


def _find_spec(name: str, path: Any) -> Any:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = None if find is None else find(name, path)
        if spec is not None:
            return spec
    return None


def _cached_property(function: Any, name: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def _cached_function(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _explain(pickled: list[Any], error: Exception) -> str:
    """Return what cannot be pickled, what uses it, why, and what to do.

    `pickled` are the things that were pickled before `error`; the last one is the culprit.
    """
    *holders, culprit = pickled
    kind = culprit if isinstance(culprit, type) else type(culprit)
    what = "the class" if kind is culprit else "an object of class"
    uses = (use for holder in reversed(holders) for use in _uses(holder, culprit))
    return (
        f"{what} {kind.__module__}.{kind.__qualname__}{next(uses, '')} cannot be sent to another "
        f"process: {error}; make it in a function that the worker calls, or move what uses it to a "
        "module of its own, which workers import"
    )


def _uses(holder: Any, culprit: Any) -> Iterator[str]:
    """Yield under which name `holder`, a function, a class or an object, uses `culprit`."""
    name = getattr(holder, "__qualname__", type(holder).__qualname__)
    if isinstance(holder, types.FunctionType):
        cells = zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=True)
        for variable, cell in cells:
            with contextlib.suppress(ValueError):  # it has no value yet
                if cell.cell_contents is culprit:
                    yield f" (the variable {variable!r} that {name} uses)"
        for variable in _names(holder.__code__):
            if holder.__globals__.get(variable) is culprit:
                yield f" (the global {variable!r} that {name} uses)"
    for attribute, value in getattr(holder, "__dict__", {}).items():
        if value is culprit:
            yield f" (the attribute {attribute!r} of {name})"


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
