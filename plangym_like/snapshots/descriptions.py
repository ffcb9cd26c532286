"""`describe`: configuration as JSON-serialisable data, for the fingerprints of state rows."""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import enum
import functools
import hashlib
import inspect
import pathlib
import re
import types
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from plangym_like.snapshots.configuration import is_configuration, is_handle, qualified_name

_CONSTRUCTORS = ("__init__", "__new__", "__post_init__", "__setstate__")


def describe(value: Any, user: type | None = None) -> Any:
    """Return `value` as JSON-serialisable data that is the same in every process.

    It contains no memory addresses. Of an object, it contains the attributes that no method of its
    class or of `user` assigns, except constructors, and whose values cannot change in place:
    numbers, text, tuples, functions and other objects. All other attributes may be state. Of a
    frozen dataclass, it contains every field.

    Parameters
    ----------
    value : object
        The value to describe.
    user : type, optional
        The class of the object that uses `value`.

    Examples
    --------
    >>> describe({"skip": 4, "kind": int})
    {'skip': 4, 'kind': 'builtins.int'}
    """
    return _Describer(frozenset() if user is None else _assigned_by(user)).describe(value)


class _Describer:
    """Describes one value, in which an object may occur several times or contain itself.

    Parameters
    ----------
    changing : set of str
        Names of attributes that are left out.
    """

    def __init__(self, changing: frozenset[str]) -> None:
        self._changing = changing
        self._seen: set[int] = set()

    def describe(self, value: Any) -> Any:
        """Return the description of `value`."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.generic):
            return [str(value.dtype), repr(value.item())]
        if isinstance(value, np.ndarray):
            content = value.tolist() if value.dtype == object else _digest(value.tobytes())
            return [value.dtype.str, list(value.shape), self.describe(content)]
        if isinstance(value, bytes | bytearray):
            return _digest(bytes(value))
        if isinstance(value, list | tuple):
            return [self.describe(item) for item in value]
        if isinstance(value, set | frozenset):
            return sorted((self.describe(item) for item in value), key=repr)
        if isinstance(value, Mapping):
            return {str(key): self.describe(item) for key, item in value.items()}
        return self._configuration(value)

    def _configuration(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return f"{qualified_name(type(value))}.{value.name}"
        if isinstance(value, functools.partial):
            return [self.describe(part) for part in (value.func, value.args, value.keywords)]
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return [qualified_name(value.__func__), self.describe(value.__self__)]
        if isinstance(value, functools._lru_cache_wrapper):
            return self.describe(value.__wrapped__)
        if isinstance(value, gymnasium.Space | np.dtype | range | slice | re.Pattern):
            return repr(value)
        if isinstance(value, pathlib.PurePath):
            return str(value)
        if isinstance(value, type | types.BuiltinFunctionType):
            return qualified_name(value)
        if isinstance(value, types.ModuleType | np.ufunc | type(np.mean)):
            return str(value.__name__)
        return self._object(value)

    def _function(self, function: types.FunctionType) -> Any:
        name = qualified_name(function)
        if id(function) in self._seen:
            return name
        self._seen.add(id(function))
        held = [self.describe(function.__defaults__)]
        if function.__kwdefaults__:
            held.append(self.describe(function.__kwdefaults__))
        for cell in function.__closure__ or ():
            # An empty cell has no content.
            with contextlib.suppress(ValueError):
                value = cell.cell_contents
                # A container in a closure may be state.
                state = isinstance(value, list | bytearray | set | Mapping)
                held.append(qualified_name(type(value)) if state else self.describe(value))
        return [name, _code_digest(function.__code__), held]

    def _object(self, thing: Any) -> Any:
        kind = type(thing)
        name = qualified_name(kind)
        attributes = getattr(thing, "__dict__", None)
        closed = isinstance(thing, gymnasium.Env) or is_configuration(thing) or is_handle(thing)
        if closed or type(attributes) is not dict or id(thing) in self._seen:
            return name
        self._seen.add(id(thing))
        if _is_frozen(kind):
            kept = attributes
        else:
            changing = self._changing | _assigned_by(kind)
            kept = {
                key: value
                for key, value in attributes.items()
                if key not in changing and not _may_change(value)
            }
        return [name, {key: self.describe(kept[key]) for key in sorted(kept)}] if kept else name


def _is_frozen(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _may_change(value: Any) -> bool:
    """Return whether `value` is, or contains, a container whose content can be replaced."""
    if isinstance(value, tuple | frozenset):
        return any(map(_may_change, value))
    return isinstance(value, list | set | bytearray | Mapping) or (
        isinstance(value, np.ndarray) and value.flags.writeable
    )


@functools.lru_cache(maxsize=256)
def _assigned_by(kind: type) -> frozenset[str]:
    """Return the names of all attributes that methods of `kind`, except constructors, assign."""
    names: set[str] = set()
    for link in kind.__mro__:
        for name, value in vars(link).items():
            parts = (getattr(value, part, None) for part in ("__func__", "fget", "fset"))
            for method in (value, *parts):
                if isinstance(method, types.FunctionType) and name not in _CONSTRUCTORS:
                    names |= _assigned_in(inspect.unwrap(method).__code__)
    return frozenset(names)


def _assigned_in(code: types.CodeType) -> set[str]:
    steps = dis.get_instructions(code)
    names = {str(step.argval) for step in steps if step.opname in ("STORE_ATTR", "DELETE_ATTR")}
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return names.union(*map(_assigned_in, inner))


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
