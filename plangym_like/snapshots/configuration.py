"""Decide which attributes of an environment are configuration, and describe them.

Functions, classes, modules, spaces, loggers and similar objects are configuration: they do not
change when a state is restored. Neither do handles, such as windows and locks.

Classes that other processes cannot import are found by the numbers that cloudpickle gives them.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import hashlib
import logging
import pathlib
import random
import re
import sys
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from plangym_like.errors import SnapshotError

FUNCTIONS = (
    types.FunctionType,
    types.MethodType,
    functools.partial,
    functools._lru_cache_wrapper,
)
_FIXED = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ModuleType,
    types.EllipsisType,
    types.NotImplementedType,
    type,
    range,
    slice,
    re.Pattern,
    pathlib.PurePath,
    logging.Logger,
    random.SystemRandom,  # draws from the operating system, and has no state
    np.dtype,
    np.ufunc,
    type(np.mean),
    gymnasium.Space,
    EnvSpec,
    WrapperSpec,
)
# No step changes objects of these types.
CONFIGURATION = (*_FIXED, *FUNCTIONS, enum.Enum)
_RENDERERS = frozenset(
    ["pygame", "glfw", "pyglet", "cv2", "matplotlib", "OpenGL", "tkinter", "_tkinter", "PIL"]
)
# The types of most attributes; none of them is a handle.
NO_HANDLES = frozenset(
    [*(type(None), bool, int, float, str, bytes, np.ndarray, set, type, np.random.Generator)]
)
# Classes of pygame whose objects are part of a game's state.
_FIGURES = frozenset(["Sprite", "WeakSprite", "AbstractGroup"])
_GAME = frozenset(["Rect", "FRect", "Vector2", "Vector3", "Color"]) | _FIGURES


# Type of lock -> function that makes a new one.
LOCKS: dict[type, Callable[[], Any]] = {
    type(make()): make for make in (threading.Lock, threading.RLock)
}


class _Ordinary:
    pass


def is_handle(value: Any) -> bool:
    """Return whether `value` is a window, image, clock or lock, or a container of only these.

    These handles display or guard the state. They are not part of it: they are not saved, and a
    restore does not change them. The rectangles, vectors, colours and sprites of pygame are state.
    """
    kind: Any = type(value)
    if kind in NO_HANDLES:
        return False
    if kind in (list, tuple):
        return bool(value) and is_handle(value[0]) and all(map(is_handle, value))
    if kind is dict:
        return bool(value) and all(map(is_handle, value.values()))
    return is_handle_kind(kind)


@functools.cache
def is_handle_kind(kind: type) -> bool:
    """Return whether instances of `kind` are windows, images, clocks or locks."""
    # SWIG creates classes without a module. The class of a ctypes array belongs to the module that
    # first used it, which may be a renderer.
    if getattr(kind, "__module__", "builtins") == "builtins" or issubclass(kind, ctypes.Array):
        return False
    shown = any(_library_of(link) in _RENDERERS for link in kind.__mro__)
    return kind in LOCKS or (shown and not _has_base(kind, _GAME))


@functools.cache
def is_figure(kind: type) -> bool:
    """Return whether instances of `kind` are sprites of pygame, or groups of sprites."""
    return _has_base(kind, _FIGURES)


def _has_base(kind: type, names: frozenset[str]) -> bool:
    """Return whether `kind` is, or inherits from, a class of pygame with one of the `names`."""
    return any(link.__name__ in names and _library_of(link) == "pygame" for link in kind.__mro__)


def _library_of(kind: type) -> str:
    return str(getattr(kind, "__module__", "")).partition(".")[0]


def is_configuration(value: Any) -> bool:
    """Return whether `value` has a type whose instances no step ever changes."""
    return isinstance(value, CONFIGURATION)


def is_ordinary(kind: type) -> bool:
    """Return whether the whole state of an instance of `kind` is in its ``__dict__``.

    This is true for classes written in Python without ``__slots__``.
    """
    return bool(
        kind.__dictoffset__
        and kind.__basicsize__ == _Ordinary.__basicsize__
        and not kind.__itemsize__
    )


def own_pickling(kind: type) -> str | None:
    """Return the name of a method of `kind` that customises pickling, or ``None``."""
    for name in ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"):
        if getattr(kind, name, None) is not getattr(object, name, None):
            return name
    return None


def qualified_name(thing: Any) -> str:
    """Return the module and name of a class or function, joined by a dot.

    Both are the same in every process. ``__qualname__`` is not used, because cloudpickle changes it
    for classes of ``__main__``.

    >>> qualified_name(dict)
    'builtins.dict'
    """
    return f"{thing.__module__}.{thing.__name__}"


def kind_of(value: Any) -> str:
    """Return a phrase that names the class of `value`, for error messages."""
    return f"an object of class {qualified_name(type(value))}"


def name_of_key(key: Any, at: int) -> str:
    """Return a name without memory addresses for the dict key or set item at position `at`."""
    name = repr(key)
    return f"{qualified_name(type(key))} {at}" if " at 0x" in name else name


def describe(value: Any) -> Any:
    """Return `value` as JSON-serialisable data that is the same in every process.

    The result contains no memory addresses.

    >>> describe({"skip": 4, "kind": int})
    {'skip': 4, 'kind': 'builtins.int'}
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):
        return [str(value.dtype), repr(value.item())]
    if isinstance(value, np.ndarray):
        content = value.tolist() if value.dtype == object else _digest(value.tobytes())
        return [value.dtype.str, list(value.shape), describe(content)]
    if isinstance(value, bytes | bytearray):
        return _digest(bytes(value))
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((describe(item) for item in value), key=repr)
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    return _describe_configuration(value)


def _describe_configuration(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return f"{qualified_name(type(value))}.{value.name}"
    if isinstance(value, functools.partial):
        return [describe(value.func), describe(value.args), describe(value.keywords)]
    if isinstance(value, types.FunctionType):
        cells = [describe(value.__defaults__), *_cells(value)]
        return [qualified_name(value), _code_digest(value.__code__), cells]
    if isinstance(value, types.MethodType):
        return [qualified_name(value.__func__), describe(value.__self__)]
    if isinstance(value, gymnasium.Space | np.dtype | range | slice | re.Pattern):
        return repr(value)
    if isinstance(value, pathlib.PurePath):
        return str(value)
    if isinstance(value, type | types.BuiltinFunctionType | functools._lru_cache_wrapper):
        return qualified_name(value)
    if isinstance(value, types.ModuleType | np.ufunc | type(np.mean)):
        return str(value.__name__)
    return qualified_name(type(value))


def _cells(function: types.FunctionType) -> list[Any]:
    plain = (type(None), bool, int, float, str, bytes, np.ndarray, np.generic, tuple)
    found = []
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        found.append(describe(value) if isinstance(value, plain) else qualified_name(type(value)))
    return found


def _code_digest(code: types.CodeType) -> str:
    lines = [repr(code.co_code), repr(code.co_names)]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            lines.append(_code_digest(constant))
        elif isinstance(constant, frozenset):
            lines.append(repr(sorted(map(repr, constant))))
        else:
            lines.append(repr(constant))
    return _digest("\n".join(lines).encode())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


# Classes that cannot be imported


def can_be_imported(kind: type) -> bool:
    """Return whether `kind` can be imported by name; always false for classes of ``__main__``."""
    found: Any = None if kind.__module__ == "__main__" else sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


def number_of(kind: type) -> str:
    """Return the number of a class that cannot be imported; workers get it with the class."""
    from cloudpickle import cloudpickle  # type: ignore[import-untyped]

    return str(cloudpickle._get_or_create_tracker_id(kind))


def class_named(module: str, name: str, number: str = "", own: type | None = None) -> type:
    """Return the class ``module.name`` that has `number`, or else `own`, or the only one so named.

    Raises
    ------
    SnapshotError
        This process has no class of that name, or several.
    """
    from cloudpickle import cloudpickle

    found: Any = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(number)
    if found is None:  # a row of another session, or of a class that each process makes itself
        found = own or getattr(sys.modules.get(module), name, None)
    if found is None:
        known = list(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS)
        named = [kind for kind in known if (kind.__module__, kind.__name__) == (module, name)]
        found = named[0] if len(named) == 1 else None
    if found is None:
        raise SnapshotError(
            f"a state row holds an object of class {module}.{name}, which this process does not "
            "have; put the class into a module that every process can import"
        )
    return found  # type: ignore[no-any-return]
