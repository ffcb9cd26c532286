"""Whether a function remembers anything between its calls, as far as its code and closure tell.

A wrapper may hold a function (``TransformReward(env, func)``). Restoring a state leaves functions
alone, so one that remembers must be refused. Seen are: assignments to closure and global
variables; containers of the closure, the defaults, a partial's arguments and the globals that the
code changes by a method or a subscript; random generators. Not seen is what happens under another
name or in a call.
"""

from __future__ import annotations

import dis
import functools
import random
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from plangym_like.snapshots.configuration import FUNCTIONS, is_configuration

_CONTAINERS = (list, dict, set, bytearray, deque, np.ndarray)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, types.GeneratorType)
_VALUES = (type(None), bool, int, float, complex, str, bytes, np.generic)
_CHANGING_METHODS = frozenset(
    [
        *("add", "append", "appendleft", "clear", "difference_update", "discard", "extend"),
        *("extendleft", "fill", "insert", "intersection_update", "pop", "popitem", "popleft"),
        *("remove", "resize", "reverse", "rotate", "setdefault", "sort", "update"),
    ]
)
# Operation -> how many values lie above the changed object on the interpreter's stack.
_CHANGING_OPERATIONS = {"STORE_SUBSCR": 1, "DELETE_SUBSCR": 1, "STORE_SLICE": 2, "DELETE_SLICE": 2}
_LOADS = ("LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST")
_NUMPY_GLOBAL = frozenset(vars(np.random)) & frozenset(dir(np.random.RandomState))


def hidden_memory(function: Any) -> tuple[str | None, list[Any]]:
    """Return why `function` cannot be left alone, or ``None``; and the objects that it holds.

    The objects are those whose kind does not say whether they change: the object that a method is
    bound to, and instances of user-written classes.

    >>> total = []
    >>> hidden_memory(lambda reward: total.append(reward))[0]
    "changes the global 'total', a list"
    """
    objects: list[Any] = []
    return _why(function, objects, set()), objects


def _why(function: Any, objects: list[Any], seen: set[int]) -> str | None:
    if id(function) in seen or not isinstance(function, FUNCTIONS):
        return None
    seen.add(id(function))
    if isinstance(function, types.MethodType):
        objects.append(function.__self__)
        return _why(function.__func__, objects, seen)
    if isinstance(function, functools.partial):
        return _why_partial(function, objects, seen)
    if not isinstance(function, types.FunctionType):
        return _why(function.__wrapped__, objects, seen)
    assigned: set[str] = set()
    changed: set[str] = set()
    for code in _codes(function.__code__):
        instructions = [x for x in dis.get_instructions(code) if x.opname != "CACHE"]
        for instruction in instructions:
            if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                return f"assigns to the global {instruction.argval!r}"
            if instruction.opname in ("STORE_DEREF", "DELETE_DEREF"):
                assigned.add(instruction.argval)
        changed.update(_changed_names(instructions))
        drawn = _global_randomness(instructions, function.__globals__)
        if drawn is not None:
            return f"draws from the global generator of {drawn}"
    outer = assigned & set(function.__code__.co_freevars)
    if outer:
        return f"assigns to {sorted(outer)[0]!r} of its closure"
    for place, name, value in _held(function):
        reason = _why_held(f"{place}{name!r}", value, name in changed, objects, seen)
        if reason is not None:
            return reason
    return None


def _why_partial(
    function: functools.partial[Any], objects: list[Any], seen: set[int]
) -> str | None:
    for value in (*function.args, *function.keywords.values()):
        # An array is nearly always a constant; any other container is there to be filled.
        changed = isinstance(value, _CONTAINERS) and not isinstance(value, np.ndarray)
        reason = _why_held("the argument of a partial", value, changed, objects, seen)
        if reason is not None:
            return reason
    return _why(function.func, objects, seen)


def _why_held(
    place: str, value: Any, changed: bool, objects: list[Any], seen: set[int]
) -> str | None:
    if isinstance(value, _GENERATORS):
        return f"draws from {place}, a {type(value).__name__}"
    if isinstance(value, _CONTAINERS):
        return f"changes {place}, a {type(value).__name__}" if changed else None
    if isinstance(value, FUNCTIONS):
        return _why(value, objects, seen)
    if not (is_configuration(value) or _is_value(value)):
        objects.append(value)
    return None


def _held(function: types.FunctionType) -> Iterator[tuple[str, str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield "", name, cell.cell_contents
        except ValueError:
            continue
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        yield "the default of ", name, value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield "the default of ", name, value
    for name in sorted({name for part in _codes(code) for name in part.co_names}):
        value = function.__globals__.get(name)
        if isinstance(value, (*_CONTAINERS, *_GENERATORS)):
            yield "the global ", name, value


def _changed_names(instructions: list[dis.Instruction]) -> Iterator[str]:
    for index, instruction in enumerate(instructions):
        if instruction.opname in ("LOAD_METHOD", "LOAD_ATTR"):
            before = instructions[index - 1]
            if instruction.argval in _CHANGING_METHODS and before.opname.startswith(_LOADS):
                yield before.argval
        above = _CHANGING_OPERATIONS.get(instruction.opname)
        if above is None:
            continue
        depth = 0
        for before in reversed(instructions[:index]):
            depth += dis.stack_effect(before.opcode, before.arg, jump=False)
            if depth == above + 1:
                if before.opname.startswith(_LOADS):
                    yield before.argval
                break


def _global_randomness(instructions: list[dis.Instruction], scope: dict[str, Any]) -> str | None:
    for first, second, third in zip(
        instructions, instructions[1:], [*instructions[2:], None], strict=False
    ):
        module = scope.get(first.argval) if first.opname == "LOAD_GLOBAL" else None
        if module is random and second.argval in dir(random.Random):
            return "the module random"
        if module is np and second.argval == "random" and third is not None:
            if third.argval in _NUMPY_GLOBAL:
                return "numpy.random"
        if module is np.random and second.argval in _NUMPY_GLOBAL:
            return "numpy.random"
    return None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _is_value(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(_is_value(item) for item in value)
    return isinstance(value, _VALUES)
