"""`ByValuePickler`: pickles classes and functions that other processes cannot import."""

from __future__ import annotations

import functools
import io
import os
import pickle
import sys
import types
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
# How many things are searched for the one that cannot be pickled.
_MOST_STEPS = 2000


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
        self._importable = _known_modules()

    def reducer_override(self, thing: Any) -> Any:
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
        if not isinstance(name, str):
            return True
        module = sys.modules.get(name)
        known = self._importable.get(name)
        if known is None or known[0] is not module:
            known = self._importable[name] = module, _can_be_imported(name)
        return known[1]

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
        A part of `value` cannot be pickled; the message says which part, and where it is.
    """
    # In a child process of multiprocessing, the script of the user is the module `__mp_main__`,
    # which other processes cannot import.
    script = sys.modules.get("__mp_main__")
    if script is not None and script.__name__ == "__mp_main__":
        cloudpickle.register_pickle_by_value(script)
    try:
        return _pickled(value)
    except _UNPICKLABLE as error:
        raise TypeError(_explain(value, error)) from error


def _pickled(value: Any) -> bytes:
    stream = io.BytesIO()
    ByValuePickler(stream, 5).dump(value)
    return stream.getvalue()


# Modules by name, and whether other processes can import them. Looking for a module's file takes
# longer than pickling most things. The first entry is `sys.path` and the directory.
_Modules = dict[str, tuple[types.ModuleType | None, bool]]
_known: tuple[Any, _Modules] = (), {}


def _known_modules() -> _Modules:
    """Return what is known about modules with the current path and directory."""
    global _known
    try:
        directory = os.getcwd()
    except OSError:  # it was deleted
        directory = ""
    where = directory, *map(str, sys.path)
    if where != _known[0]:
        _known = where, {}
    return _known[1]


def _can_be_imported(name: str) -> bool:
    """Return whether a new process with this one's path and directory finds the same module.

    Modules that this process has not imported, and ``__main__``, are left to cloudpickle.
    """
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return True
    package, _, _ = name.rpartition(".")
    path = None
    if package:
        parent = sys.modules.get(package)
        if parent is None or not _can_be_imported(package):
            return False
        path = getattr(parent, "__path__", None)
        if path is None:  # a part of an extension module
            return True
    try:
        found = _find_spec(name, path)
        if found is None:
            return False
        file = getattr(module, "__file__", None)
        if file is None or not found.has_location or found.origin is None:
            return True
        return bool(os.path.realpath(file) == os.path.realpath(found.origin))
    except Exception:  # a finder may raise anything
        return True


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


def _explain(value: Any, error: Exception) -> str:
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
        _pickled(value)
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
