"""Find wrappers that only change one value of a step, and test what their methods depend on.

Gymnasium's `RewardWrapper`, `ObservationWrapper` and `ActionWrapper` call one method of a subclass
in each step: ``reward``, ``observation`` or ``action``. `foreign_part` searches everything that
such a method can reach, `EnvWatch` notes whether it has used the environment, and `AttributeWatch`
whether it has changed an attribute of its wrapper.
"""

from __future__ import annotations

import contextlib
import dis
import enum
import functools
import pickle
import sys
import types
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import ActionWrapper, ObservationWrapper, RewardWrapper
from gymnasium.wrappers import TimeLimit

from plangym_like.snapshots.chains import ATOMS, CONSTANT, innermost, links, reachable
from plangym_like.snapshots.configuration import is_configuration, is_ordinary, qualified_name
from plangym_like.snapshots.known_wrappers import visible

_METHODS: dict[Any, str] = {
    RewardWrapper: "reward",
    ObservationWrapper: "observation",
    ActionWrapper: "action",
}
# Attributes of an environment that a method may read, because no step changes them.
_READABLE = CONSTANT | {"unwrapped", "__class__"}
_TRUSTED = {*sys.stdlib_module_names, "gymnasium", "numpy", "plangym_like"} - {"__main__"}
# Code that mentions one of these may reach anything.
_REACH_ALL = {"globals", "eval", "exec", "sys", "gc", "inspect", "importlib", "ctypes"}
_REACH_ALL_OPS = {dis.opmap[name] for name in ("IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")}
_CONTAINERS = (list, tuple, set, frozenset, deque)
# A search that finds more things than this is given up.
_MOST = 2000


def method_of(wrapper: Any) -> str:
    """Return the method by which `wrapper` changes a value of a step, its only part in steps.

    Return ``""`` if its class, or the wrapper itself, has a ``step`` or ``reset`` of its own.

    >>> from gymnasium.wrappers import ClipReward, NormalizeReward
    >>> env = gymnasium.make("CartPole-v1")
    >>> method_of(ClipReward(env, 0, 1)), method_of(NormalizeReward(env))
    ('reward', '')
    """
    kind: Any = type(wrapper)
    for base, name in _METHODS.items():
        if isinstance(wrapper, base):
            inherits = kind.step is base.step and kind.reset is base.reset
            usual = kind.__getattribute__ is object.__getattribute__
            own = vars(wrapper).keys() & {"step", "reset"}
            return name if inherits and usual and not own else ""
    return ""


def passes_infos(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether the infos of steps of the chain `env` are those of the environment inside."""
    return all(type(each) is TimeLimit or method_of(each) for each in visible(env))


def transforms_of(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """Return the wrappers of the chain `env` that only change a value of a step, innermost first.

    The list is empty if there are none, or if another wrapper than `TimeLimit` takes part in steps.
    """
    wrappers = [each for each in reversed(visible(env)) if type(each) is not TimeLimit]
    return wrappers if all(map(method_of, wrappers)) else []


def functions_of(transforms: Sequence[Any]) -> list[Any]:
    """Return everything callable in the classes and attributes of `transforms` that steps call."""
    found: list[Any] = []
    for wrapper in transforms:
        kind: Any = type(wrapper)
        found += kind, kind.step, kind.reset, getattr(kind, method_of(wrapper) or "step")
        found += filter(callable, vars(wrapper).values())
    return found


class EnvWatch:
    """Notes whether code in a ``with`` block uses the environment inside some wrappers.

    Within the block, the environment, and all wrappers except `transforms`, are objects of a
    subclass that notes reads and writes of attributes. Attributes that no step changes, such as
    spaces, are left out.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with all of its wrappers.
    transforms : sequence of gymnasium.Wrapper
        The wrappers whose methods are called.

    Attributes
    ----------
    used : list of str
        The names of the attributes that were used; the caller clears it.

    Raises
    ------
    TypeError
        A class cannot be watched, because it is not an ordinary Python class.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], transforms: Sequence[Any]) -> None:
        self.used: list[str] = []
        others = [link for link in links(env) if all(link is not each for each in transforms)]
        self._kinds = [(link, type(link), _noting(type(link), self.used)) for link in others]
        with self:
            pass

    def __enter__(self) -> None:
        for link, _, noting in self._kinds:
            object.__setattr__(link, "__class__", noting)

    def __exit__(self, *error: object) -> None:
        for link, kind, _ in self._kinds:
            object.__setattr__(link, "__class__", kind)

    def reset(self) -> None:
        """Clear `used`, and end a block that an interrupt has ended while it began."""
        self.__exit__()
        self.used.clear()


def _noting(kind: Any, used: list[str]) -> type:
    """Return a subclass of `kind` that adds the names of attributes that are used to `used`."""
    read, write = kind.__getattribute__, kind.__setattr__

    def note_read(self: Any, name: str) -> Any:
        if name not in _READABLE:
            used.append(name)
        return read(self, name)

    def note_write(self: Any, name: str, value: Any) -> None:
        used.append(name)
        write(self, name, value)

    names = {
        "__slots__": (),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__getattribute__": note_read,
        "__setattr__": note_write,
    }
    found: type = type(kind)(kind.__name__, (kind,), names)
    return found


class AttributeWatch:
    """Notices changes of attributes of wrappers, except of those from Gymnasium itself.

    A block of rows may change an attribute and change it back, so this is asked after each row.

    Parameters
    ----------
    transforms : sequence of gymnasium.Wrapper
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        own = [each for each in transforms if not _is_trusted(type(each))]
        self._attributes = [vars(each) for each in own]
        self.begin()

    def begin(self) -> None:
        """From now on, compare with the present attributes, whose values are kept."""
        self._values = [value for each in self._attributes for value in each.values()]
        self._ids = [[*map(id, each.values())] for each in self._attributes]
        self._mutable = [
            value
            for each in self._attributes
            for name, value in each.items()
            if name not in CONSTANT and not _is_atom(value) and not is_configuration(value)
        ]
        self._content = self._read_content()

    def _read_content(self) -> bytes:
        return pickle.dumps(self._mutable) if self._mutable else b""

    def are_unchanged(self) -> bool:
        """Return whether all attributes are the same objects as before, with the same content."""
        for attributes, ids in zip(self._attributes, self._ids, strict=True):
            if [*map(id, attributes.values())] != ids:
                return False
        return not self._mutable or self._read_content() == self._content


# What methods can reach


def foreign_part(transforms: Sequence[Any], env: gymnasium.Env[Any, Any]) -> str:
    """Return the first thing that the methods of `transforms` can reach and should not, or ``""``.

    They may reach plain data of their own, functions, classes, spaces, ordinary objects, and the
    environment and its wrappers themselves, which `EnvWatch` watches. They must not reach parts of
    the environment, such as an array or a simulation that it holds, nor objects whose content is
    not known, such as random generators, and they must not set global variables.

    Parameters
    ----------
    transforms : sequence of gymnasium.Wrapper
    env : gymnasium.Env
        The environment with all of its wrappers.
    """
    base = innermost(env)
    parts = reachable(base, type(base).__name__)
    owned = {id(thing) for _, thing in parts if not is_configuration(thing)}
    chain = {id(link) for link in links(env)}
    pending: list[Any] = []
    for wrapper in transforms:
        pending += (value for name, value in vars(wrapper).items() if name not in CONSTANT)
        pending.append(type(wrapper))
    seen: set[int] = set()
    kept: list[Any] = []  # so that ids are not used again
    while pending:
        thing = pending.pop()
        if _is_atom(thing) or id(thing) in seen or id(thing) in chain:
            continue
        seen.add(id(thing))
        kept.append(thing)
        inside = None if id(thing) in owned or len(kept) > _MOST else _inside(thing, owned)
        if inside is None:
            return qualified_name(type(thing))
        pending += inside
    return ""


def _inside(thing: Any, owned: set[int]) -> list[Any] | None:
    """Return everything that code which has `thing` can reach directly; ``None`` if unknown."""
    if isinstance(thing, types.FunctionType):
        return _inside_function(thing)
    if isinstance(thing, type):
        return _inside_class(thing)
    if isinstance(thing, dict):
        return [*thing, *thing.values()]
    if isinstance(thing, _CONTAINERS):
        return [*thing]
    if isinstance(thing, np.ndarray):
        whole = thing
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        is_own = whole.base is None and id(whole) not in owned
        return None if not is_own else thing.ravel().tolist() if thing.dtype.hasobject else []
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, functools._lru_cache_wrapper):
        return [thing.__wrapped__]
    if isinstance(thing, property):
        return [thing.fget, thing.fset]
    if isinstance(thing, staticmethod | classmethod):
        return [thing.__func__]
    if isinstance(thing, types.BuiltinFunctionType | types.MethodWrapperType):
        holder = thing.__self__
        return [] if isinstance(holder, types.ModuleType) else [holder]
    if isinstance(thing, types.ModuleType):
        return [] if _is_trusted(thing) else None
    if is_configuration(thing):
        return []
    ordinary = is_ordinary(type(thing)) and not isinstance(thing, gymnasium.Env)
    return [type(thing), *vars(thing).values()] if ordinary else None


def _is_atom(thing: Any) -> bool:
    return isinstance(thing, ATOMS) and not isinstance(thing, enum.Enum | bytearray)


def _is_trusted(thing: Any) -> bool:
    module = thing.__name__ if isinstance(thing, types.ModuleType) else thing.__module__
    return str(module).partition(".")[0] in _TRUSTED


def _inside_class(kind: type) -> list[Any]:
    """Return the methods and other attributes of a class; its constructor has been called already.

    Special attributes that are not functions are left out, such as ``__dict__``.
    """
    if _is_trusted(kind):
        return []
    found: list[Any] = [*kind.__bases__]
    for name, value in vars(kind).items():
        special = name.startswith(("__", "_abc_")) and not isinstance(value, types.FunctionType)
        if name != "__init__" and not special:
            found.append(value)
    return found


def _inside_function(function: types.FunctionType) -> list[Any] | None:
    """Return the closure and the defaults of `function`, and all globals that it mentions.

    Globals of Gymnasium, NumPy and the standard library are left out. Return ``None`` if the
    function imports modules, sets global variables or those of another function, or mentions a name
    by which it may reach anything.
    """
    found = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    found += vars(function).values()
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            found.append(cell.cell_contents)
    if _is_trusted(function):
        return found
    outer, names = function.__code__, set()
    for code in _codes(outer):
        names |= {*code.co_names}
        for instruction in dis.get_instructions(code):
            rebinds = (
                instruction.opname == "STORE_DEREF" and instruction.argval in outer.co_freevars
            )
            if rebinds or instruction.opcode in _REACH_ALL_OPS:
                return None
    if names & _REACH_ALL:
        return None
    return found + _named_values(function.__globals__, names, set())


def _named_values(variables: dict[str, Any], names: set[str], seen: set[int]) -> list[Any]:
    """Return the values of `names` in `variables`, and in the modules among them."""
    found: list[Any] = []
    for name in names & variables.keys():
        value = variables[name]
        if not isinstance(value, types.ModuleType):
            found.append(value)
        elif not _is_trusted(value) and id(value) not in seen:
            seen.add(id(value))
            found += _named_values(vars(value), names, seen)
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
