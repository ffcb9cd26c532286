"""Find wrappers that only change one value of a step, and test what their methods depend on.

Gymnasium's `RewardWrapper`, `ObservationWrapper` and `ActionWrapper` call one method of a subclass
in each step: ``reward``, ``observation`` or ``action``. `Reach` searches everything that such a
method can reach, and notices changes of it.
"""

from __future__ import annotations

import builtins
import cmath
import dis
import functools
import itertools
import math
import operator
import pickle
import types
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import ActionWrapper, ObservationWrapper, RewardWrapper
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.wrappers import TimeLimit

from plangym_like.envs.kernel import NotVectorisableError
from plangym_like.snapshots.chains import CONSTANT, reachable
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.known_wrappers import visible

_METHODS: dict[Any, str] = {
    RewardWrapper: "reward",
    ObservationWrapper: "observation",
    ActionWrapper: "action",
}


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


# What methods can reach


def _numpy_functions() -> Iterator[Any]:
    """Yield the functions and types of NumPy that keep nothing and write no files."""
    files = {"save", "savez", "savez_compressed", "savetxt", "fromfile"}
    kinds = np.ufunc, type(np.mean), types.BuiltinFunctionType
    for module in (np, np.linalg):
        for name, value in vars(module).items():
            is_scalar = isinstance(value, type) and issubclass(value, np.generic)
            if name[0] != "_" and name not in files and (is_scalar or isinstance(value, kinds)):
                yield value
    yield from (np.ndarray, np.dtype, np.ones, np.full, np.eye, np.identity, np.isscalar)


_BUILTINS = (
    *(abs, all, any, bool, complex, dict, divmod, enumerate, filter, float, frozenset, int),
    *(isinstance, iter, len, list, map, max, min, next, pow, range, reversed, round, set, slice),
    *(sorted, sum, tuple, zip, ArithmeticError, IndexError, KeyError, TypeError, ValueError),
)
_MODULES = (math, cmath, operator, itertools, functools, np, np.linalg, gymnasium, gymnasium.spaces)
_SPACES = (Box, Discrete, MultiBinary, MultiDiscrete)
# Functions and types that keep no values between calls, and reach nothing but their arguments. They
# are compared by identity: other objects may claim to be equal.
_PURE: dict[int, Any] = {
    id(each): each
    for each in (
        *_BUILTINS,
        *(f for m in (math, cmath, operator) for f in vars(m).values() if type(f) is type(len)),
        *(kind for name, kind in vars(itertools).items() if name[0] != "_"),
        *(functools.reduce, functools.partial, operator.itemgetter),
        *_numpy_functions(),
        *(
            getattr(gymnasium.spaces, name)
            for name in gymnasium.spaces.__all__
            if name[0].isupper()
        ),
    )
}
# Attributes of wrappers that a method may read; all others of Gymnasium lead to the environment.
_READABLE = {"action_space", "observation_space", *_METHODS.values()}
_LEADS_OUT = {*dir(gymnasium.Wrapper), *dir(gymnasium.Env), *CONSTANT} - _READABLE
# Attributes of other objects by which code draws numbers, writes files, or reaches anything.
_LEADS_OUT |= {"sample", "seed", "dump", "tofile", "base", "ctypes", "data", "format", "format_map"}
_LEADS_OUT |= {"gi_frame", "cr_frame", "ag_frame", "tb_frame"}
# Instructions that change what is not local, import modules, or name attributes as text.
_FOREIGN_OPS = {
    *("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_NAME"),
    *("LOAD_BUILD_CLASS", "MATCH_CLASS", "BEFORE_WITH", "LOAD_SPECIAL"),
}
# Modules of Gymnasium whose wrappers call one function, and change nothing.
_TRUSTED = {"gymnasium.wrappers.utils"} | {
    f"gymnasium.wrappers.transform_{name}" for name in _METHODS.values()
}
# Special attributes of classes that operators do not use.
_NEVER_CALLED = {
    *("__init__", "__new__", "__init_subclass__", "__class_getitem__", "__del__"),
    *("__dict__", "__weakref__", "__annotate__", "__annotate_func__"),
}
_KNOWN = {"gymnasium.core", "gymnasium.utils.record_constructor", "builtins", "typing", "abc"}
_ABSENT: Any = object()
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_REBINDS = {"STORE_DEREF", "DELETE_DEREF"}
_NUMBERS = (type(None), type(...), bool, int, float, complex, str, bytes)


class Reach:
    """Everything that methods of wrappers can reach; notices changes of it.

    A method qualifies if its code, and that of functions it calls, names only its arguments, local
    variables, attributes of its wrapper that hold plain data, modules such as NumPy, pure functions
    of them, and constants. It sets no attributes and no variables of others. So it can change only
    arrays, and lists and similar containers in attributes.

    Parameters
    ----------
    transforms : sequence of gymnasium.Wrapper
        The wrappers whose methods are called.
    base : gymnasium.Env
        The environment inside.

    Raises
    ------
    NotVectorisableError
        A method does not qualify.
    """

    def __init__(self, transforms: Sequence[Any], base: gymnasium.Env[Any, Any]) -> None:
        self._wrappers = transforms
        self._owned = {id(_whole(thing)) for _, thing in reachable(base, type(base).__name__)}
        # The attributes of each class that is not from a library, and of each wrapper.
        kinds = {kind for each in transforms for kind in type(each).__mro__ if _is_searched(kind)}
        classes, self._attributes = [*map(vars, kinds)], [*map(vars, transforms)]
        # Where an attribute that code names may be.
        self._holders: list[Any] = [*classes, *self._attributes]
        self._names: set[str] = set()
        # Where each value was found: a dict or a cell, and the name in it.
        self._found: list[tuple[Any, str, Any]] = []
        self._todo: list[Any] = []
        # Modules and spaces whose attributes have not been searched.
        self._opened: list[Any] = []
        for each in transforms:
            if hasattr(type(each), "__getattr__"):
                raise NotVectorisableError("a wrapper has a method __getattr__")
            self._todo.append(getattr(each, method_of(each)))
        for attributes in classes:
            special = {name for name in attributes if _is_special(name, attributes[name])}
            self._add_named(special, [attributes])
        self._search()
        self.begin()

    def begin(self) -> None:
        """From now on, compare with the present content of what methods can change.

        Raises
        ------
        NotVectorisableError
            A variable has become another object, which has not been searched.
        """
        self._mutable: list[Any] = []
        for holder, name, then in self._found:
            now = _read(holder, name)
            is_own = any(holder is each for each in self._attributes)
            usual = _is_atom(now) and _is_atom(then)
            if now is not then and not usual and not (is_own and _is_plain(now)):
                raise NotVectorisableError(f"{name} has become another object")
            if not _is_atom(now) and _is_plain(now):
                self._mutable.append(now)
        self._content = self._read_content()

    def _read_content(self) -> bytes:
        return pickle.dumps(self._mutable) if self._mutable else b""

    def is_unchanged(self) -> bool:
        """Return whether all arrays and containers have the same content as before."""
        return not self._mutable or self._read_content() == self._content

    # The search

    def _search(self) -> None:
        """Search `_todo`, and everything that it leads to."""
        seen: dict[int, Any] = {}
        while self._todo or self._opened:
            if not self._todo:
                # All names in the code are known now, except those that this adds.
                opened, self._opened = self._opened, []
                self._add_named(self._names, map(vars, opened))
                self._holders += map(vars, opened)
                continue
            thing = self._todo.pop()
            if id(thing) in seen or id(thing) in _PURE or _is_atom(thing):
                continue
            seen[id(thing)] = thing
            if not self._qualifies(thing):
                raise NotVectorisableError(
                    f"methods of wrappers reach a {qualified_name(type(thing))}"
                )

    def _qualifies(self, thing: Any) -> bool:
        """Return whether code may use `thing`; add what it leads to."""
        kind = type(thing)
        if kind is types.FunctionType:
            return self._add_function(thing)
        if kind is types.MethodType:
            self._todo.append(thing.__func__)
            return any(thing.__self__ is each for each in self._wrappers)
        if kind is property:
            self._todo.append(thing.fget)
            return True
        if kind is staticmethod:
            self._todo.append(thing.__func__)
            return True
        if kind is functools.partial:
            self._todo.append(thing.func)
            self._add_all([*thing.args, *thing.keywords.values()])
            return not vars(thing)
        if kind is np.ndarray:
            return _is_plain(thing) and id(_whole(thing)) not in self._owned
        if kind in _SPACES or any(thing is each for each in _MODULES):
            self._opened.append(thing)
            return True
        return isinstance(thing, np.dtype)

    def _add_function(self, function: types.FunctionType) -> bool:
        """Add what the code of `function` names; return whether it does nothing forbidden."""
        outer = function.__code__
        codes = [*codes_in(outer)]
        names = {name for code in codes for name in code.co_names}
        if function.__globals__.get("__name__") in _TRUSTED:
            self._add_names(names - {"env"})
            return "render" not in names
        if names & _LEADS_OUT or any(name[:2] == "__" for name in names) or vars(function):
            return False
        instructions = [each for code in codes for each in dis.get_instructions(code)]
        for each in instructions:
            is_outer = each.opname in _REBINDS and each.argval in outer.co_freevars
            if is_outer or each.opname in _FOREIGN_OPS:
                return False
        self._add_all([*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()])
        for name, cell in zip(outer.co_freevars, function.__closure__ or (), strict=True):
            self._add(cell, name)
        variables = {each.argval for each in instructions if each.opname == "LOAD_GLOBAL"}
        known, builtin = function.__globals__, vars(builtins)
        for name in variables:
            self._add(known if name in known else builtin, name)
        self._add_names(names)
        return True

    def _add_names(self, names: set[str]) -> None:
        """Add what the names of attributes in code may mean for the wrappers."""
        new = names - self._names
        self._names |= new
        self._add_named(new, self._holders)
        for name in new & {"action_space", "observation_space"}:
            self._todo += (getattr(each, name) for each in self._wrappers)

    def _add_named(self, names: Collection[str], holders: Iterable[Any]) -> None:
        """Add the values of those of `names` that `holders` have."""
        for holder in holders:
            for name in names & holder.keys():
                self._add(holder, name)

    def _add_all(self, values: Sequence[Any]) -> None:
        """Add values that nobody can replace, such as defaults."""
        held = {str(at): value for at, value in enumerate(values)}
        self._add_named(held.keys(), [held])

    def _add(self, holder: Any, name: str) -> None:
        """Add the value of a variable or an attribute."""
        value = _read(holder, name)
        self._found.append((holder, name, value))
        is_own = any(holder is each for each in self._attributes)
        if not is_own or type(value) not in _CONTAINERS:
            self._todo.append(value)
        elif not _is_plain(value) or any(
            id(_whole(thing)) in self._owned for _, thing in reachable(value, name)
        ):
            raise NotVectorisableError(f"the content of {name} is not data of its own")


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function, and that of all functions, classes and so on inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def _read(holder: Any, name: str) -> Any:
    """Return the value of `name` in a dict, or the content of a cell; ``_ABSENT`` without one."""
    if type(holder) is not types.CellType:
        return holder.get(name, _ABSENT)
    try:
        return holder.cell_contents
    except ValueError:  # an empty cell
        return _ABSENT


def _is_atom(thing: Any) -> bool:
    kind = type(thing)
    if kind is tuple:
        return all(map(_is_atom, thing))
    return kind in _NUMBERS or (id(kind) in _PURE and issubclass(kind, np.number | np.bool_))


def _is_plain(thing: Any) -> bool:
    """Return whether `thing` is a number, text, an array, or a container of such values."""
    kind = type(thing)
    if kind is np.ndarray:
        return not thing.dtype.hasobject and _whole(thing).base is None
    if kind is dict:
        return all(map(_is_atom, thing)) and all(map(_is_plain, thing.values()))
    return _is_atom(thing) or (kind in _CONTAINERS and all(map(_is_plain, thing)))


def _whole(thing: Any) -> Any:
    """Return the array that owns the memory of `thing` if it is an array, otherwise `thing`."""
    while isinstance(thing, np.ndarray) and isinstance(thing.base, np.ndarray):
        thing = thing.base
    return thing


def _is_searched(kind: type) -> bool:
    """Return whether the attributes of a class must be searched: Gymnasium's own are known."""
    return kind.__module__ not in {*_TRUSTED, *_KNOWN}


def _is_special(name: str, value: Any) -> bool:
    """Return whether `name` is a method that code may call without naming it: an operator."""
    is_method = callable(value) or hasattr(value, "__get__")
    return name[:2] == name[-2:] == "__" and is_method and name not in _NEVER_CALLED
