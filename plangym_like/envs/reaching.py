"""Find out whether wrappers can reach their environment by another way than the attribute ``env``.

Everything is searched that the wrappers hold: attributes, containers, the objects in them, and the
closures and default arguments of functions. What their methods and functions use by the name of a
global variable is searched too, and what their classes hold.
"""

from __future__ import annotations

import dis
import enum
import functools
import gc
import types
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from plangym_like.snapshots.chains import ATOMS, reachable
from plangym_like.snapshots.configuration import CONFIGURATION, is_configuration, is_ordinary

# One search ends after so many objects.
_MOST = 10_000
# The functions of these packages use the environment in their closures only for its spaces, or by
# the attribute ``env`` of a wrapper.
_TRUSTED = ("gymnasium", "numpy", "typing", "abc", "builtins")
# Types of objects that refer to other Python objects only, all of which ``gc`` knows.
_OPEN = (
    *(list, tuple, dict, set, frozenset, deque, types.MappingProxyType, types.CellType),
    *(types.MethodType, functools.partial, functools._lru_cache_wrapper, functools.cached_property),
    *(property, staticmethod, classmethod),
)


def reach_environment(wrappers: Sequence[Any], base: Any) -> bool:
    """Return whether `wrappers` may reach `base`, or its parts, other than by the attribute `env`.

    An object that they hold may reach anything if its content is not known, because it is not
    written in Python, for example. In classes and global variables, such objects are common, and
    are ignored.
    """
    # The objects are kept, because the id of one that is gone may be that of another.
    parts = {id(thing): thing for _, thing in reachable(base, "") if not is_configuration(thing)}
    seen: dict[int, Any] = {id(each): each for each in wrappers}
    held = [value for each in wrappers for name, value in vars(each).items() if name != "env"]
    named: list[Any] = [type(each) for each in wrappers]
    while held or named:
        is_held = bool(held)
        thing = (held or named).pop()
        if id(thing) in seen or (isinstance(thing, ATOMS) and not isinstance(thing, bytearray)):
            continue
        seen[id(thing)] = thing
        is_part = isinstance(thing, gymnasium.Env) or id(thing) in parts
        if is_part or type(thing) in weakref.ProxyTypes or len(seen) > _MOST:
            return True
        inside = _inside(thing)
        if inside is None:
            if is_held:
                return True
        elif is_held:
            held += inside
        else:
            named += inside
        named += _named_by(thing)
    return False


def _inside(thing: Any) -> list[Any] | None:
    """Return what `thing` holds; ``None`` if that is not known."""
    kind: Any = type(thing)
    if isinstance(thing, type | enum.Enum):
        return []
    if kind is np.ndarray:
        items = [] if thing.dtype.kind != "O" else thing.ravel().tolist()
        while kind is np.ndarray:
            thing, kind = thing.base, type(thing.base)
        return items if thing is None or kind in (bytes, bytearray) else None
    if kind is types.FunctionType:
        if _is_trusted(thing.__globals__.get("__name__")):
            return []
        defaults = thing.__defaults__, thing.__kwdefaults__
        return [*(thing.__closure__ or ()), *defaults, thing.__dict__]
    if isinstance(thing, weakref.ref):
        return [thing()]
    if isinstance(thing, types.BuiltinFunctionType | types.MethodWrapperType):
        return [thing.__self__]
    if isinstance(thing, CONFIGURATION) and not isinstance(thing, _OPEN):
        return []
    return gc.get_referents(thing) if isinstance(thing, _OPEN) or is_ordinary(kind) else None


def _named_by(thing: Any) -> list[Any]:
    """Return the global variables that a function uses, and the attributes of a class."""
    if isinstance(thing, type):
        kinds = [each for each in thing.__mro__ if not _is_trusted(each.__module__)]
        return [value for each in kinds for value in vars(each).values()]
    if type(thing) is not types.FunctionType or _is_trusted(thing.__globals__.get("__name__")):
        return []
    found, names, codes = thing.__globals__, set(), [thing.__code__]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        loads = (each for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
        names |= {each.argval for each in loads}
    values = [found[name] for name in sorted(names) if name in found]
    # Functions and classes of other modules do not know the environment.
    own = thing.__module__
    return [
        value
        for value in values
        if not isinstance(value, types.FunctionType | type) or value.__module__ == own
    ]


def _is_trusted(module: Any) -> bool:
    return str(module).partition(".")[0] in _TRUSTED
