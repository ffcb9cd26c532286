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
import enum
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

from plangym_like.snapshots.chains import sets_in
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
    qualified_name,
)
from plangym_like.snapshots.plain_data import in_order_of_memory

Reducer = Callable[[Any], Any]
# A class whose objects have attributes of more different names than this uses dicts.
_MOST_FORMS = 16
# The types of NumPy's scalars that a number of Python describes completely.
_EXACT = frozenset(np.dtype(letter).type for letter in "?bBhHiIlLqQd")
# The types of attributes that `pickle` writes without calling Python.
_PLAIN = frozenset([type(None), bool, int, float, complex, str, bytes])
# What begins the items of a set in a pickle, and what ends those of a frozenset.
_SET, _FROZENSET = (
    pickle.EMPTY_SET + pickle.MEMOIZE + pickle.MARK,
    pickle.FROZENSET + pickle.MEMOIZE,
)
# The kinds of arrays that their bytes describe completely.
_KINDS = "biufcSU"


class Names(Protocol):
    """The objects that pickles refer to by name."""

    def place_of(self, thing: Any) -> str | None:
        """Return the name of `thing` if it is pickled as a reference, or ``None``."""

    def thing_at(self, place: str) -> Any:
        """Return the object that has this name."""


class Generator(Protocol):
    """A random generator whose state is pickled apart."""

    def read(self, value: Any) -> tuple[bytes, Any] | None:
        """Return the state of `value` if it is this generator, or ``None``."""


class _CycleError(Exception):
    """An object refers to itself, through other objects or not."""


class _UnsortedError(Exception):
    """There is a set whose order differs between processes."""


class ObjectPickle:
    """Turns objects into bytes, and back.

    Parameters
    ----------
    names : Names
        The objects that are pickled as references.
    own : Generator, optional
        The generator that is saved apart.
    """

    def __init__(self, names: Names, own: Generator | None = None) -> None:
        self._reducers = Reducers(names)
        self._own = own
        # Whether there are sets whose order differs between processes; ``None`` before there is a
        # set with an item.
        self._sorts_sets: bool | None = None
        # What pickles from this module are made by, besides the methods of `pickle` itself.
        self._makes: dict[str, Callable[..., Any]] = {
            **_MAKES,
            "thing": names.thing_at,
            "maker": self._reducers.maker_of,
        }
        self._found: dict[tuple[str, str], Any] = {(__name__, _make.__name__): self._make}

    def dumps(self, value: Any) -> bytes:
        """Return a pickle of `value`.

        Raises
        ------
        Exception
            Something in `value` cannot be pickled.
        """
        return self._repeated(self._dump, value)

    def dumps_states(self, states: Sequence[dict[str, Any]]) -> bytes:
        """Return a pickle of `states`, each the attributes of an object, faster than `dumps`.

        Numbers, texts and arrays are written without calling Python for each of them. The generator
        that is saved apart is an attribute of the last object.
        """
        return self._repeated(self._dump_states, states)

    def loads_states(self, data: bytes) -> list[dict[str, Any]]:
        """Return the states that `data` holds; see `loads`.

        The generator that is saved apart is replaced by its state, a tuple.
        """
        states: list[dict[str, Any]]
        states, rest = pickle.loads(data)
        arrays: list[Any] = []
        for state in states:
            for name, value in state.items():
                if type(value) is tuple and len(value) == 3:
                    shape, dtype, memory = value
                    state[name] = np.ndarray(shape, dtype, memory).copy()
                    arrays.append(state[name])
        if rest:
            self._makes["attribute"] = arrays.__getitem__
            for state, others in zip(states, self.loads(rest), strict=True):
                state.update(others)
        return states

    def _repeated(self, write: Callable[[Any], bytes], value: Any) -> bytes:
        """Return ``write(value)``; call it again after a cycle or a set."""
        reducers = self._reducers
        # The bytes must not depend on what was pickled before. Once there was a cycle, the next one
        # is noticed at once, not by the length of the recursion.
        reducers.has_cycles = False
        while True:
            reducers.attributes = {}
            if reducers.begun is not None:
                reducers.begun.clear()
            try:
                return write(value)
            except (_CycleError, RecursionError):
                if reducers.has_cycles:
                    raise
                reducers.has_cycles, reducers.begun = True, set()
            except _UnsortedError:
                self._sorts_sets = True

    def _dump(self, value: Any) -> bytes:
        stream = BytesIO()
        (_SortingPickler if self._sorts_sets else _Pickler)(stream, self._reducers).dump(value)
        data = stream.getvalue()
        if self._sorts_sets is None and (_SET in data or _FROZENSET in data):
            sets = [found for _, found in sets_in(value, "") if found]
            if any(_has_unstable(items) for items in sets):
                raise _UnsortedError
            self._sorts_sets = False if sets else None
        return data

    def _dump_states(self, states: Sequence[dict[str, Any]]) -> bytes:
        rest: list[dict[str, Any]] = [{} for _ in states]
        plain = [*map(self._plain_part, states, rest)]
        own = None if self._own is None else self._own.read(rest[-1].get("_np_random"))
        if own is not None:
            del rest[-1]["_np_random"]
            plain[-1]["_np_random"] = own
        return pickle.dumps((plain, self._dump(rest) if any(rest) else b""), 5)

    def _plain_part(self, state: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
        """Return what `pickle` alone writes of `state`, and put everything else into `others`."""
        plain = {}
        for name, value in state.items():
            kind = type(value)
            if kind in _PLAIN:
                plain[name] = value
            elif kind is np.ndarray and (data := self._reducers.data_of(value)):
                plain[name] = data
            else:
                others[name] = value
        return plain

    def loads(self, data: bytes) -> Any:
        """Return the value that `data` holds; this can run code, so its source must be trusted."""
        return _Unpickler(data, self._found).load()

    def _make(self, name: str, *arguments: Any) -> Any:
        return self._makes[name](*arguments)


class _Pickler(pickle.Pickler):
    def __init__(self, stream: BytesIO, reducers: Reducers) -> None:
        super().__init__(stream, protocol=5)
        self._reducers = reducers

    def reducer_override(self, thing: Any) -> Any:
        return self._reducers[type(thing)](thing)


class _SortingPickler(_Pickler):
    """Writes sets of texts in sorted order, because each process iterates them in another order.

    It is slower, since it is asked about each object.
    """

    def __init__(self, stream: BytesIO, reducers: Reducers) -> None:
        super().__init__(stream, reducers)
        self._sorted: dict[int, list[Any] | None] = {}

    def persistent_id(self, thing: Any) -> list[Any] | None:
        kind, key = type(thing), id(thing)
        if (kind is not set and kind is not frozenset) or not _has_unstable(thing):
            return None
        if key not in self._sorted:
            try:
                self._sorted[key] = [kind is frozenset, *sorted(thing, key=_key_of)]
            except TypeError:
                self._sorted[key] = None
        return self._sorted[key]


def _has_unstable(items: Any) -> bool:
    """Return whether one of `items` may have another hash in another process."""
    return any(
        _has_unstable(item)
        if type(item) is tuple
        else type(item) not in (int, float, bool, complex) and not isinstance(item, np.number)
        for item in items
    )


def _key_of(item: Any) -> str:
    """Return what the items of a set are sorted by; raise `TypeError` for other than plain data."""
    if isinstance(item, enum.Enum):
        return f"{qualified_name(type(item))}.{item.name}"
    if type(item) is tuple:
        return f"({','.join(map(_key_of, item))})"
    if type(item) in _PLAIN or isinstance(item, np.generic):
        return repr(item)
    raise TypeError(f"{kind_of(item)} has no order that is the same in every process")


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, found: dict[tuple[str, str], Any]) -> None:
        super().__init__(BytesIO(data))
        self._found = found
        self._sets: dict[int, tuple[Any, Any]] = {}

    def persistent_load(self, items: Any) -> Any:
        """Return the set that `_SortingPickler` has written as `items`: the same for the same."""
        if id(items) not in self._sets:
            frozen, *rest = items
            self._sets[id(items)] = items, (frozenset if frozen else set)(rest)
        return self._sets[id(items)][1]

    def find_class(self, module: str, name: str) -> Any:
        found = self._found.get((module, name))
        if found is None:
            try:
                found = super().find_class(module, name)
            except (ImportError, AttributeError):
                return class_named(module, name)
            self._found[module, name] = found
        return found


class Reducers(dict[type, Reducer]):
    """For each class, the function that says how its objects are pickled.

    The functions return what ``reducer_override`` of a pickler returns.

    Attributes
    ----------
    attributes : dict of int to int
        The numbers of the arrays that are attributes, by their ids.
    has_cycles : bool
        Whether objects refer to each other in cycles.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self.attributes: dict[int, int] = {}
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
            return self._reduce_array if kind is np.ndarray else _as_usual
        if issubclass(kind, gymnasium.Env):
            return self._unless_named(self._ordinary_reducer_of(kind))
        return self._special_reducer_of(kind) or self._ordinary_reducer_of(kind)

    def _special_reducer_of(self, kind: Any) -> Reducer | None:
        if kind is np.random.Generator:
            return self._unless_named(lambda thing: (_make, ("generator", thing.bit_generator)))
        if kind is np.random.PCG64:
            return self._unless_named(_reduce_pcg64)
        if kind is np.random.SeedSequence:
            return self._unless_named(lambda thing: (_make, ("seeds", thing.__reduce__()[2])))
        if kind in _EXACT:
            letter = np.dtype(kind).char
            return lambda thing: (_make, ("scalar", letter, thing.item()))
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
            return lambda thing: (_make, ("nothing",))
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
            return otherwise(thing) if place is None else (_make, ("thing", place))

        return reduce

    def _reduce_function(self, thing: Any) -> Any:
        if thing is _make:
            return NotImplemented
        if key := self._keys.get(thing):
            return _make, ("maker", key)
        place = self._names.place_of(thing)
        return NotImplemented if place is None else (_make, ("thing", place))

    # Arrays

    def data_of(self, thing: Any) -> tuple[Any, ...] | None:
        """Return shape, dtype and bytes of an array that is an attribute, and give it a number.

        Return ``None`` if it has to be reduced, because it is not contiguous or was written.
        """
        dtype, flags, key = thing.dtype, thing.flags, id(thing)
        if dtype.kind not in _KINDS or not (flags.c_contiguous and flags.writeable):
            return None
        if key in self.attributes:
            return None
        self.attributes[key] = len(self.attributes)
        return thing.shape, dtype.str, thing.tobytes()

    def _reduce_array(self, thing: Any) -> Any:
        number = self.attributes.get(id(thing))
        if number is not None:
            return _make, ("attribute", number)
        dtype, flags = thing.dtype, thing.flags
        if flags.writeable and dtype.kind in _KINDS:
            if flags.c_contiguous:
                return _make, ("array", thing.shape, dtype.str, thing.tobytes())
            order, dense = in_order_of_memory(thing)
            return _make, ("array", dense.shape, dtype.str, dense.tobytes(), order)
        return thing.__reduce__()

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
        return _make, ("method", thing.__func__, thing.__self__)
    return NotImplemented


def _reduce_pcg64(thing: Any) -> Any:
    # NumPy's pickle of one takes ten times as long.
    memory = thing.state
    numbers = memory["state"]
    rest = memory["has_uint32"], memory["uinteger"]
    return _make, ("pcg64", numbers["state"], numbers["inc"], *rest, thing.seed_seq)


def _make(name: str, *arguments: Any) -> Any:
    """Stand for `ObjectPickle._make`, the only function that pickles call by its name."""
    raise KeyError(name)


class _Zeros(ISeedSequence):
    """Seeds a generator whose state is set afterwards; NumPy's own take five times as long."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.zeros(n_words, dtype)


_zeros: Any = _Zeros()


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


def _reduce_class(thing: type) -> Any:
    if can_be_imported(thing) or thing.__module__ == "builtins":
        return NotImplemented
    return _make, ("class", thing.__module__, thing.__name__, number_of(thing))


_NEW_SEEDS: Any = np.random.SeedSequence(0).__reduce__()[:2]
_MAKES: dict[str, Callable[..., Any]] = {
    "array": _array,
    "class": class_named,
    "generator": np.random.Generator,
    "method": types.MethodType,
    "nothing": lambda: None,
    "pcg64": _pcg64,
    "scalar": lambda letter, number: np.dtype(letter).type(number),
    "seeds": _seeds,
}
