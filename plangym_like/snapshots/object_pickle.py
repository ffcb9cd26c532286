"""Pickle Python objects faster than `pickle` alone, and refuse what a pickle would not bring back.

An object of an ordinary class is pickled as a call of a function with the values of its attributes.
This function is made for its class and the names of its attributes. Thus its attributes are neither
put into a dict when it is pickled nor taken from one when it is restored, which halves both times.
If objects refer to each other in a cycle, such calls are impossible; all objects are then pickled
with a dict of their attributes.

How objects of a class are pickled is decided once, when the first one is met (`Reducers`).

A class that other processes cannot import is pickled as its name, and the number that cloudpickle
gives it when it sends the class to a worker.
"""

from __future__ import annotations

import copyreg
import importlib
import inspect
import keyword
import pickle
import threading
import types
from collections.abc import Callable, Sequence
from io import BytesIO
from operator import attrgetter
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle
from numpy.random.bit_generator import ISeedSequence

from plangym_like.snapshots.configuration import (
    CONFIGURATION,
    LOCKS,
    can_be_imported,
    class_named,
    is_figure,
    is_handle_kind,
    is_ordinary,
    kind_of,
    number_of,
    own_pickling,
)
from plangym_like.snapshots.plain_data import in_order_of_memory

Reducer = Callable[[Any], Any]
# A class whose objects have attributes of more different names than this uses dicts.
_MOST_FORMS = 16
# The types of NumPy's scalars that a number of Python describes completely.
_EXACT = frozenset(np.dtype(letter).type for letter in "?bBhHiIlLqQd")
# The types of attributes that `pickle` writes without calling Python.
_PLAIN = frozenset([type(None), bool, int, float, complex, str, bytes])
# The kinds of arrays that their bytes describe completely.
_KINDS = "biufcSU"


class Names(Protocol):
    """The objects that pickles refer to by name."""

    def place_of(self, thing: Any) -> str | None:
        """Return the name of `thing` if it is pickled as a reference, or ``None``."""

    def thing_at(self, place: str) -> Any:
        """Return the object that has this name."""


class _CycleError(Exception):
    """An object refers to itself, through other objects or not."""


class ObjectPickle:
    """Turns objects into bytes, and back.

    Parameters
    ----------
    names : Names
        The objects that are pickled as references.
    """

    def __init__(self, names: Names) -> None:
        self._reducers = Reducers(names)
        self._stream = BytesIO()
        self._pickler = _Pickler(self._stream, 5)
        self._pickler.reducers = self._reducers
        # What pickles call by the names of functions of this module.
        self._found: dict[tuple[str, str], Any] = {
            (__name__, _thing.__name__): names.thing_at,
            (__name__, _maker.__name__): self._reducers.maker_of,
        }

    def dumps(self, value: Any) -> bytes:
        """Return a pickle of `value`.

        Raises
        ------
        Exception
            Something in `value` cannot be pickled.
        """
        reducers = self._reducers
        # The bytes must not depend on what was pickled before. Once there was a cycle, the next one
        # is noticed at once, not by the length of the recursion.
        reducers.has_cycles = False
        if reducers.begun is not None:
            reducers.begun.clear()
        try:
            return self._dump(value)
        except (_CycleError, RecursionError):
            reducers.has_cycles, reducers.begun = True, set()
            return self._dump(value)

    def _dump(self, value: Any) -> bytes:
        stream, pickler = self._stream, self._pickler
        stream.seek(0)
        stream.truncate()
        try:
            pickler.dump(value)
            return stream.getvalue()
        finally:
            pickler.clear_memo()

    def loads(self, data: bytes) -> Any:
        """Return the value that `data` holds; this can run code, so its source must be trusted."""
        unpickler = _Unpickler(BytesIO(data))
        unpickler.found = self._found
        return unpickler.load()

    def dumps_states(self, states: Sequence[dict[str, Any]], also: Any) -> bytes:
        """Return a pickle of `states`, each the attributes of an object, and of plain data `also`.

        If all attributes are numbers, texts, tuples of them or arrays, they are written faster than
        by `dumps`. Arrays in `states` are then replaced.
        """
        arrays = _arrays_in(states)
        if arrays is None:
            return pickle.dumps((self.dumps(states), also), 5)
        for state, name, value in arrays:
            state[name] = [value.shape, value.dtype.str, value.tobytes()]
        return pickle.dumps((states, also), 5)

    def loads_states(self, data: bytes) -> tuple[list[dict[str, Any]], Any]:
        """Return the states that `data` holds, and what was written with them; see `loads`."""
        states, also = pickle.loads(data)
        if type(states) is bytes:
            return self.loads(states), also
        for state in states:
            for name, value in state.items():
                if type(value) is list:
                    state[name] = _array(*value)
        return states, also


def _arrays_in(states: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], str, Any]] | None:
    """Return the arrays in `states` if they are usual ones, and all else is plain, or ``None``."""
    found = []
    for state in states:
        for name, value in state.items():
            kind = type(value)
            if kind is np.ndarray:
                if not value.flags.carray or value.dtype.kind not in _KINDS:
                    return None
                found.append((state, name, value))
            elif kind not in _PLAIN and not (kind is tuple and _PLAIN.issuperset(map(type, value))):
                return None
    if len(found) > 1 and len({id(value) for _, _, value in found}) < len(found):
        return None
    return found


class _Pickler(pickle.Pickler):
    reducers: Reducers

    def reducer_override(self, thing: Any) -> Any:
        return self.reducers[type(thing)](thing)


class _Unpickler(pickle.Unpickler):
    found: dict[tuple[str, str], Any]

    def find_class(self, module: str, name: str) -> Any:
        found = self.found.get((module, name))
        if found is None:
            try:
                found = super().find_class(module, name)
            except (ImportError, AttributeError):
                return class_named(module, name)
            self.found[module, name] = found
        return found


class Reducers(dict[type, Reducer]):
    """For each class, the function that says how its objects are pickled.

    The functions return what ``reducer_override`` of a pickler returns.

    Attributes
    ----------
    has_cycles : bool
        Whether objects refer to each other in cycles.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self.has_cycles = False
        self.begun: set[int] | None = None
        # Functions that make objects from the values of their attributes, by their keys in pickles;
        # and the reverse.
        self._makers: dict[str, Callable[..., Any]] = {}
        # The classes of pickled objects that cannot be imported.
        self._own: dict[tuple[str, str], type] = {}
        self._keys: dict[Any, str] = {}

    def __missing__(self, kind: type) -> Reducer:
        self[kind] = reducer = self._reducer_of(kind)
        return reducer

    def _reducer_of(self, kind: Any) -> Reducer:
        """Decide how objects of class `kind` are pickled."""
        if kind is types.FunctionType:
            return self._reduce_function
        if issubclass(kind, type):
            return _reduce_class
        if issubclass(kind, np.ndarray):
            return _reduce_array if kind is np.ndarray else _reduce_special_array
        if issubclass(kind, gymnasium.Env):
            return self._unless_named(self._ordinary_reducer_of(kind))
        return self._special_reducer_of(kind) or self._ordinary_reducer_of(kind)

    def _special_reducer_of(self, kind: Any) -> Reducer | None:
        if kind is np.random.Generator:
            return self._unless_named(lambda thing: (np.random.Generator, (thing.bit_generator,)))
        if kind is np.random.PCG64:
            return self._unless_named(_reduce_pcg64)
        if kind is np.random.SeedSequence:
            return self._unless_named(lambda thing: (_seeds, (thing.__reduce__()[2],)))
        if kind in _EXACT:
            letter = np.dtype(kind).char
            return lambda thing: (_scalar, (letter, thing.item()))
        if issubclass(kind, np.dtype):
            # NumPy's own method makes a new object each time, so pickles of equal values would
            # differ.
            return lambda thing: (
                (np.dtype, (thing.str,)) if thing.isbuiltin == 1 else NotImplemented
            )
        if kind is types.MethodType:
            return _reduce_method
        if kind in LOCKS:
            return lambda thing: (LOCKS[kind], ())
        if is_handle_kind(kind):
            return lambda thing: (type(None), ())
        return None

    def _ordinary_reducer_of(self, kind: Any) -> Reducer:
        if reason := _refusal_of(kind):
            return _refusing(reason)
        if issubclass(kind, CONFIGURATION):
            return self._unless_named(_as_usual)
        if is_ordinary(kind) and own_pickling(kind) is None and _is_made_simply(kind):
            return self._reducer_by_attributes(kind)
        return _as_usual

    def _unless_named(self, otherwise: Reducer) -> Reducer:
        """Return a reducer for a class of which some objects are pickled as references."""

        def reduce(thing: Any) -> Any:
            place = self._names.place_of(thing)
            return otherwise(thing) if place is None else (_thing, (place,))

        return reduce

    def _reduce_function(self, thing: Any) -> Any:
        if thing in _FUNCTIONS:
            return NotImplemented
        if key := self._keys.get(thing):
            return _maker, (key,)
        place = self._names.place_of(thing)
        return NotImplemented if place is None else (_thing, (place,))

    # Objects of ordinary classes

    def _reducer_by_attributes(self, kind: Any) -> Reducer:
        """Return a reducer for objects whose whole state is in their ``__dict__``."""
        names: tuple[str, ...] = ()
        make: Callable[..., Any] | None = None
        forms: dict[tuple[str, ...], Callable[..., Any] | None] = {}

        def reduce(thing: Any) -> Any:
            nonlocal names, make
            attributes = thing.__dict__
            if (*attributes,) != names or make is None:
                names = (*attributes,)
                if names not in forms:
                    forms[names] = self._maker(kind, names) if len(forms) < _MOST_FORMS else None
                make = forms[names]
            if make is None or self.has_cycles:
                return copyreg.__newobj__, (kind,), attributes  # type: ignore[attr-defined]
            # A pickler does not ask again for an object that is complete.
            if self.begun is not None:
                if id(thing) in self.begun:
                    raise _CycleError
                self.begun.add(id(thing))
            return make, (*attributes.values(),)

        return reduce

    def _maker(self, kind: Any, names: tuple[str, ...]) -> Callable[..., Any] | None:
        """Return a function that makes an object of class `kind` from the values of attributes.

        Return ``None`` if attributes of these names cannot simply be set.
        """
        if not _can_be_set(kind, names):
            return None
        number = "-" if can_be_imported(kind) else number_of(kind)
        name = kind.__qualname__ if number == "-" else kind.__name__
        if number != "-":
            self._own[kind.__module__, name] = kind
        key = " ".join((kind.__module__, name, number, *names))
        given = ", ".join(f"value{at}" for at in range(len(names)))
        lines = [f"    thing.{name} = value{at}" for at, name in enumerate(names)]
        code = "\n".join([f"def make({given}):", "    thing = new(kind)", *lines])
        space: dict[str, Any] = {"new": object.__new__, "kind": kind}
        exec(f"{code}\n    return thing", space)
        make: Callable[..., Any] = space["make"]
        self._makers[key], self._keys[make] = make, key
        return make

    def maker_of(self, key: str) -> Callable[..., Any]:
        """Return the function that has the name `key` in pickles."""
        found = self._makers.get(key)
        if found is None:
            module, name, number, *names = key.split(" ")
            if number == "-":
                kind: Any = attrgetter(name)(importlib.import_module(module))
            else:
                kind = class_named(module, name, number, self._own.get((module, name)))
            found = self._maker(kind, tuple(names))
        if found is None:
            raise TypeError(f"{module}.{name} is another class now")
        return found


def _is_made_simply(kind: Any) -> bool:
    """Return whether the constructor of `kind` needs no arguments, and keeps no list of objects."""
    own = hasattr(kind, "__getnewargs__") or hasattr(kind, "__getnewargs_ex__")
    return kind.__new__ is object.__new__ and not own


def _can_be_set(kind: Any, names: tuple[str, ...]) -> bool:
    """Return whether setting attributes of these names does no more than to store their values."""
    return kind.__setattr__ is object.__setattr__ and all(
        type(name) is str
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and not hasattr(type(inspect.getattr_static(kind, name, None)), "__set__")
        for name in names
    )


def _refusal_of(kind: Any) -> str:
    """Return why objects of class `kind` cannot be restored from a pickle, or ``""``."""
    if issubclass(kind, EzPickle):
        return "{} is an EzPickle; its pickle holds only arguments"
    if issubclass(kind, threading.Thread):
        return "the work of a thread is not part of a state"
    if is_figure(kind):
        return "{} has an image, and pickles hold no images"
    if isinstance(getattr(kind, "__del__", None), types.FunctionType):
        return (
            "{} has a __del__, so it owns something that a pickle does not copy, and each copy of "
            "it would release that"
        )
    return ""


def _refusing(reason: str) -> Reducer:
    def reduce(thing: Any) -> Any:
        raise TypeError(reason.format(kind_of(thing)))

    return reduce


def _as_usual(thing: Any) -> Any:
    return NotImplemented


def _reduce_method(thing: Any) -> Any:
    # By default, a pickle holds only the method's name, which may mean another function.
    if getattr(thing.__self__, thing.__name__, None) != thing:
        return _method, (thing.__func__, thing.__self__)
    return NotImplemented


def _reduce_class(thing: type) -> Any:
    if can_be_imported(thing) or thing.__module__ == "builtins":
        return NotImplemented
    return class_named, (thing.__module__, thing.__name__, number_of(thing))


def _reduce_array(thing: Any) -> Any:
    dtype, flags = thing.dtype, thing.flags
    if flags.writeable and dtype.kind in _KINDS:
        if flags.c_contiguous:
            return _array, (thing.shape, dtype.str, thing.tobytes())
        order, dense = in_order_of_memory(thing)
        return _array, (dense.shape, dtype.str, dense.tobytes(), order)
    return thing.__reduce__()


def _reduce_special_array(thing: Any) -> Any:
    # NumPy's own method leaves out the attributes that a subclass adds, which deepcopy copies.
    found, own = thing.__reduce__(), getattr(thing, "__dict__", None)
    if not own or len(found) != 3:
        return NotImplemented
    make, arguments, state = found
    return make, arguments, (state, own), None, None, _set_special_array


def _reduce_pcg64(thing: Any) -> Any:
    # NumPy's pickle of one takes ten times as long.
    memory = thing.state
    numbers = memory["state"]
    rest = memory["has_uint32"], memory["uinteger"]
    return _pcg64, (numbers["state"], numbers["inc"], *rest, thing.seed_seq)


class _Zeros(ISeedSequence):
    """Seeds a generator whose state is set afterwards; NumPy's own take five times as long."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.zeros(n_words, dtype)


_zeros: Any = _Zeros()
_NEW_SEEDS: Any = np.random.SeedSequence(0).__reduce__()[:2]


# Called by pickles


def _thing(place: str) -> Any:
    """Stand for `Names.thing_at` in pickles."""
    raise KeyError(place)


def _maker(key: str) -> Any:
    """Stand for `Reducers.maker_of` in pickles."""
    raise KeyError(key)


def _pcg64(state: int, inc: int, has_uint32: int, uinteger: int, seeds: Any) -> Any:
    bits: Any = np.random.PCG64(_zeros)
    numbers = {"state": state, "inc": inc}
    memory = {"bit_generator": "PCG64", "state": numbers}
    bits.__setstate__(({**memory, "has_uint32": has_uint32, "uinteger": uinteger}, seeds))
    return bits


def _seeds(state: Any) -> Any:
    function, arguments = _NEW_SEEDS
    made = function(*arguments)
    made.__setstate__(state)
    return made


def _array(shape: Any, dtype: str, data: bytes, order: Sequence[int] = ()) -> Any:
    array = np.ndarray(shape, dtype, data).copy()
    return array.transpose(np.argsort(order)) if order else array


def _set_special_array(array: Any, state: Any) -> None:
    content, own = state
    array.__setstate__(content)
    array.__dict__.update(own)


def _method(function: Any, thing: Any) -> Any:
    return types.MethodType(function, thing)


def _scalar(letter: str, number: Any) -> Any:
    return np.dtype(letter).type(number)


_FUNCTIONS = frozenset(
    [
        *(_thing, _maker, _pcg64, _seeds, _array, _set_special_array, _method, _scalar),
        class_named,
    ]
)
