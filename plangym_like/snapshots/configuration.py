"""Decide which attributes of an environment are configuration.

Functions, classes, modules, spaces, loggers and similar objects are configuration: they do not
change when a state is restored. Neither do handles, such as windows and locks.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import logging
import pathlib
import re
import threading
import types
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, WrapperSpec

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
    np.dtype,
    np.ufunc,
    type(np.mean),
    gymnasium.Space,
    EnvSpec,
    WrapperSpec,
)
_RENDERERS = frozenset(
    ["pygame", "glfw", "pyglet", "cv2", "matplotlib", "OpenGL", "tkinter", "_tkinter", "PIL"]
)


# Type of lock -> function that makes a new one.
LOCKS: dict[type, Callable[[], Any]] = {
    type(make()): make for make in (threading.Lock, threading.RLock)
}


class _Ordinary:
    pass


def is_handle(value: Any) -> bool:
    """Return whether `value` is a window, image, clock or lock, or a container of only these.

    Such values only display or guard the state. They are not saved, and restoring a state does
    not change them.
    """
    kind = type(value)
    if kind in (list, tuple):
        return bool(value) and is_handle(value[0]) and all(map(is_handle, value))
    if kind is dict:
        return bool(value) and all(map(is_handle, value.values()))
    # SWIG creates classes without a module. The module of a ctypes array is the one in which an
    # array of this kind was first needed.
    if getattr(kind, "__module__", "builtins") == "builtins" or issubclass(kind, ctypes.Array):
        return False
    return kind in LOCKS or any(
        getattr(link, "__module__", "").partition(".")[0] in _RENDERERS for link in kind.__mro__
    )


def is_configuration(value: Any) -> bool:
    """Return whether `value` has a type whose instances no step ever changes."""
    return isinstance(value, (*_FIXED, *FUNCTIONS, enum.Enum))


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

    They are the same in every process. ``__qualname__`` is not used, because cloudpickle changes it
    for classes of ``__main__``.

    >>> qualified_name(dict)
    'builtins.dict'
    """
    return f"{thing.__module__}.{thing.__name__}"


def name_of_key(key: Any, at: int) -> str:
    """Return a name for the dict key or set item at position `at`, without a memory address."""
    name = repr(key)
    return f"{qualified_name(type(key))} {at}" if " at 0x" in name else name
