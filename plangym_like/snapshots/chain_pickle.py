"""`ChainPickle`: saves an environment and its wrappers as one pickle, without windows or locks.

The attributes of the environment and of each wrapper are in one pickle, so that shared objects stay
shared. Spaces, specs, functions and modules are pickled as references: the pickle names the place
where each was found when the environment was made, and another process uses its own object at that
place. Classes of ``__main__`` are looked up among the classes that the environment and its wrappers
use, since a worker process has another ``__main__``.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import hashlib
import io
import pickle
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle

from plangym_like.batch.ownership import releases
from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.snapshots.array_layout import ArrayLayout, OverlapError, refuse_hidden_memory
from plangym_like.snapshots.chain_state import ChainState
from plangym_like.snapshots.chains import links
from plangym_like.snapshots.configuration import (
    LOCKS,
    is_configuration,
    is_figure,
    is_handle,
    is_ordinary,
    loses_attributes,
    own_pickling,
    qualified_name,
)
from plangym_like.snapshots.impure_functions import held_objects, refuse_method_of_data
from plangym_like.snapshots.named_objects import (
    can_be_imported,
    classes_named,
    name_of,
    named_objects,
)
from plangym_like.snapshots.reachable import reachable
from plangym_like.snapshots.separated_memory import SeparatedMemory, is_tensor
from plangym_like.snapshots.set_order import is_set, order_is_kept, order_note
from plangym_like.snapshots.state_owner import StateOwner, kind_of

# A pickle with a set or a frozenset contains one of these; other pickles may do so by chance.
_MARKS_OF_SETS = (pickle.EMPTY_SET + pickle.MEMOIZE, pickle.FROZENSET + pickle.MEMOIZE)
# Types of iterators whose pickles hold copies of the remaining items.
_COPYING_ITERATORS = tuple(
    type(turn(items))
    for table in ({}, collections.OrderedDict())  # type: ignore[var-annotated]
    for items in (table, table.keys(), table.values(), table.items())
    for turn in (iter, reversed)
)
# A set in modules of torch, which is only asked whether it holds a name.
_NAMES_OF_BUFFERS = "_non_persistent_buffers_set"
_WAY_OUT = (
    "write a Simulator for the environment (plangym_like.Simulator), or name the attributes that "
    "are its state in its class: state_attributes = ('name', ...)"
)


class ChainPickle(ChainState):
    """Saves the state of an environment and its wrappers as a pickle.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with its wrappers.

    Attributes
    ----------
    nbytes : int
        Always 0: the wrappers are in the environment's pickle, so they need no further bytes.
    unordered : str
        A message about a set whose order a pickle does not keep; empty if none was found.
    strict : bool
        Whether `dumps` raises an error if it finds a set whose order a pickle does not keep.
    met_set : bool
        Whether a set of any class except `set` and `frozenset` has been pickled.
    plain_kinds : set of type
        Classes whose instances are pickled as `pickle` does.

    Raises
    ------
    SnapshotError
        The environment's class defines its own pickling or keeps state outside ``__dict__``, or a
        function or wrapper cannot be saved. The message says which, and what to do.
    """

    nbytes = 0

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.unordered = ""
        self.strict = self.met_set = False
        self.plain_kinds: set[type] = set()
        self._classes: dict[tuple[str, str], type] = {}
        if getattr(type(links(env)[-1]), "state_attributes", None) is None:
            _check_class(links(env)[-1])
        super().__init__(env, base=True)
        for number, link in enumerate(links(env)):
            self._references[f"link {number}"] = link
        self._ids = {id(thing): place for place, thing in self._references.items()}
        self._constants: dict[str, bytes] = {}
        for place, thing in named_objects(env):
            if id(thing) not in self._ids:
                # An object that cannot be pickled cannot be part of a state either.
                with contextlib.suppress(Exception):
                    content = self._content(thing)
                    self._constants[self._refer(place, thing)] = content
        self._ids |= {id(self._references[place]): place for place in self._constants}

    def restorer(self) -> Callable[[], None]:
        """Return a function that restores the present state; see `ChainState.restorer`."""
        restore = super().restorer()
        # A named object that the first reset changes is still the same object.
        self._constants.clear()
        return restore

    def dumps(self) -> bytes:
        """Return a pickle of the current state of the environment and its wrappers.

        Raises
        ------
        SnapshotError
            A value can no longer be pickled; or `strict` is true, and a value holds a set whose
            order would be lost.
        """
        data = self.encoded()
        if not self.unordered and (self.met_set or any(mark in data for mark in _MARKS_OF_SETS)):
            self._look_for_sets()
        return data

    def check_memory(self) -> None:
        """Raise `SnapshotError` if objects share memory that they would not share once restored."""
        values = [owner.read() for owner in self.owners]
        try:
            *_, watcher = self._pickled(values, watch=True)
        except Exception as error:
            raise self._refused(values, error) from error
        found = watcher.memory.pair()
        if found is not None:
            one, other = (self._named(thing, values) for thing in found)
            raise SnapshotError(
                f"{one} and {other} share memory, but would be separate after they were restored "
                "from a pickle; keep only one of them"
            )

    def _named(self, thing: Any, values: list[Any]) -> str:
        """Return a phrase with the class of `thing`, and its place in `values` if it is found."""
        for owner, value in zip(self.owners, values, strict=True):
            for name, part in owner.items(value):
                for place, inner in reachable(part, f"{owner.place}.{name}"):
                    if inner is thing:
                        return f"{place}, {kind_of(thing)},"
        return kind_of(thing)

    def place_of(self, thing: Any, *, constants: bool = True) -> str | None:
        """Return the place of `thing` if it is pickled as a reference, or ``None`` if it is not.

        With ``constants=False``, objects that `named_objects` found are not pickled as references.
        """
        place = self._ids.get(id(thing))
        if place is None or place not in self._constants:
            return place
        return self._unchanged(place, thing) if constants else None

    def thing_at(self, place: str) -> Any:
        """Return the object that was found at `place`."""
        if place not in self._references:
            raise SnapshotError(f"a state row refers to {place}, which this process does not have")
        thing = self._references[place]
        if place in self._constants:
            self._unchanged(place, thing)
        return thing

    def _unchanged(self, place: str, thing: Any) -> str:
        """Return `place`; raise `SnapshotError` if the content of `thing` has changed."""
        if self._content(thing) != self._constants[place]:
            raise SnapshotError(
                f"{kind_of(thing)} is {place}, so it is shared by all copies of the environment, "
                "and it has changed; keep data that changes in objects made by the environment, or "
                "make the environment with snapshot='replay'"
            )
        return place

    def _content(self, thing: Any) -> bytes:
        """Return a digest of a pickle of `thing` that holds named objects by value."""
        return hashlib.blake2b(self._pickled(thing, constants=False)[0]).digest()

    def has_class(self, kind: type) -> bool:
        """Return whether `kind` is one of the classes that were found in the environment."""
        return self._classes.get(name_of(kind)) is kind

    def class_named(self, module: str, name: str) -> type:
        """Return the class ``module.name``.

        It is looked up among the environment's classes and all classes that their code refers to.

        Raises
        ------
        SnapshotError
            None of them has that name, or several have it.
        """
        if (module, name) not in self._classes:
            found = classes_named(module, name, self._classes.values())
            if len(found) != 1:
                raise SnapshotError(
                    f"a state row holds an object of class {module}.{name}, but this process finds "
                    f"{len(found) or 'no'} classes of that name; put the class into a module that "
                    "every process can import, under a name of its own"
                )
            self._classes[module, name] = found[0]
        return self._classes[module, name]

    def _walk_link(self, owner: StateOwner, link: Any) -> None:
        self._seen |= self._links
        for inner in owner.kind.__mro__:
            self._classes.setdefault(name_of(inner), inner)
        for name, value in vars(link).items():
            place = f"{owner.place}.{name}"
            if name in owner.constant:
                if value is not None and id(value) not in self._links:
                    self._refer(place, value)
            elif getattr(owner.kind, "state_attributes", None) is None and not is_handle(value):
                self._walk_value(place, value)

    def _walk_value(self, root: str, value: Any) -> None:
        """Record the configuration that `value` contains, and the classes of its objects."""
        for place, thing in reachable(value, root, self._seen):
            if isinstance(thing, enum.Enum | type):
                kind = thing if isinstance(thing, type) else type(thing)
                self._classes.setdefault(name_of(kind), kind)
            elif is_configuration(thing) and not isinstance(thing, types.MethodType):
                self._check_function(place, thing)
                self._refer(place, thing)
            elif hasattr(thing, "__dict__"):
                self._classes.setdefault(name_of(type(thing)), type(thing))

    def _check_function(self, place: str, value: Any) -> None:
        refuse_method_of_data(place, value)
        held = [thing for thing in held_objects(value) if id(thing) not in self._links]
        if held:
            raise SnapshotError(
                f"{place} cannot be saved: the function holds {kind_of(held[0])}, which may "
                "have state that a pickle does not include; keep it in an attribute of the "
                "environment or wrapper itself"
            )

    def _encode(self, values: list[Any]) -> bytes:
        return self._pickled(values)[0]

    def _decode(self, data: bytes) -> Any:
        # Unpickling can run code, so the caller must trust the source of `data`.
        try:
            return _Unpickler(io.BytesIO(data), self).load()
        except SnapshotError:
            raise
        except Exception as error:
            raise StateFormatError(
                f"the pickle in a state row cannot be loaded: {type(error).__name__}: {error}; an "
                "object in it cannot be made again from its pickle, or the row is damaged. Keep "
                "such objects out of the environment's attributes, or make it with "
                "snapshot='replay'"
            ) from error

    def _pickled(
        self, value: Any, *, watch: bool = False, constants: bool = True
    ) -> tuple[bytes, Any]:
        """Return a pickle of `value`, and the pickler: a `_Watcher` if `watch` is true."""
        whole: set[int] = set()
        while True:
            stream = io.BytesIO()
            kind = _Watcher if watch else _Pickler
            pickler = kind(stream, self, whole, constants=constants)
            try:
                pickler.dump(value)
            except OverlapError as overlap:
                whole.add(overlap.args[0])
            else:
                return stream.getvalue(), pickler

    def _look_for_sets(self) -> None:
        for owner in self.owners:
            for name, value in owner.items(owner.read()):
                *_, watcher = self._pickled(value, watch=True)
                if watcher.unordered_sets:
                    found = order_note(f"{owner.place}.{name}", watcher.unordered_sets[0])
                    if self.strict:
                        raise SnapshotError(
                            f"{found}. There was no such set when the environment was made; if you "
                            "cannot change this, make the environment with snapshot='replay'"
                        )
                    self.unordered = found
                    return

    def _unsaveable(self, place: str, value: Any, reason: Exception) -> SnapshotError:
        advice = _WAY_OUT
        if self.strict or self.unordered:  # the trial is over
            advice = (
                "the attribute held no such object when the environment was made. Remove it before "
                "each step ends, or make the environment with snapshot='replay', which saves no "
                f"attributes of the environment itself; or {_WAY_OUT}"
            )
        return SnapshotError(f"{place}, {kind_of(value)}, cannot be pickled: {reason}; {advice}")


class _Pickler(pickle.Pickler):
    def __init__(
        self, stream: io.BytesIO, owner: ChainPickle, whole: set[int], *, constants: bool
    ) -> None:
        super().__init__(stream, protocol=5)
        self._owner, self._constants = owner, constants
        self._arrays = ArrayLayout(whole)
        self._plain, self._places = owner.plain_kinds, owner._ids

    def reducer_override(self, thing: Any) -> Any:
        if id(thing) in self._places:
            place = self._owner.place_of(thing, constants=self._constants)
            if place is not None:
                return _thing_at, (place,)
        kind: Any = type(thing)
        if kind in self._plain:
            return NotImplemented
        reduced = self._reduce(thing, kind)
        if reduced is NotImplemented and _is_plain(kind):
            self._plain.add(kind)
        return reduced

    def _reduce(self, thing: Any, kind: Any) -> Any:
        if kind is np.random.PCG64:  # NumPy's pickle of one takes ten times as long
            return _pcg64, (thing.state, thing.seed_seq)
        if kind is np.random.SeedSequence and type(thing.entropy) is int:
            fields = thing.entropy, thing.spawn_key, thing.pool_size, thing.n_children_spawned
            return _seeds, fields
        if isinstance(thing, np.ndarray):
            refuse_hidden_memory(thing)
        if kind is np.ndarray:
            return self._arrays.reduce(thing) or NotImplemented
        if isinstance(thing, np.dtype) and thing.isbuiltin == 1:
            # NumPy's own method makes a new object each time, so pickles of equal values would
            # differ.
            return np.dtype, (thing.str,)
        if isinstance(thing, type):
            if not self._owner.has_class(thing):
                if can_be_imported(thing):
                    return NotImplemented
                if self._owner.class_named(*name_of(thing)) is not thing:
                    raise TypeError(f"several classes are called {qualified_name(thing)}")
            return _class_named, name_of(thing)
        if kind is types.MethodType and getattr(thing.__self__, thing.__name__, None) != thing:
            # By default, a pickle holds only the method's name, which may mean another function.
            return _bound, (thing.__func__, thing.__self__)
        if isinstance(thing, EzPickle):
            raise TypeError(f"{kind_of(thing)} is an EzPickle; its pickle holds only arguments")
        if isinstance(thing, threading.Thread):
            raise TypeError("the work of a thread is not part of a state")
        if kind in weakref.ProxyTypes:
            raise TypeError("a weak proxy would come back as a copy of its object")
        if isinstance(thing, _COPYING_ITERATORS):
            raise TypeError("an iterator over a dict would no longer belong to this dict")
        if loses_attributes(thing):
            raise TypeError(f"the attributes of {kind_of(thing)} would be lost")
        if is_figure(kind):
            raise TypeError(f"{kind_of(thing)} has an image, and pickles hold no images")
        if releases(thing):
            raise TypeError(
                f"{kind_of(thing)} has a __del__, so it owns something that a pickle does not "
                "copy, and each copy of it would release that"
            )
        if kind in LOCKS:
            return LOCKS[kind], ()
        if is_handle(thing):
            return _nothing, ()
        if is_set(thing):
            self._owner.met_set = True
        return NotImplemented


class _Watcher(_Pickler):
    """A pickler that collects sets whose order a pickle does not keep, and all mutable objects."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.unordered_sets: list[Any] = []
        self._never_iterated: list[Any] = []
        self.memory = SeparatedMemory()

    def reducer_override(self, thing: Any) -> Any:
        reduced = super().reducer_override(thing)
        own = getattr(thing, "__dict__", None)
        if type(own) is dict and _NAMES_OF_BUFFERS in own:
            self._never_iterated.append(own[_NAMES_OF_BUFFERS])
        if reduced is NotImplemented and is_tensor(thing):
            # A parameter of torch is pickled as a new tensor over its memory.
            reduced = thing.__reduce_ex__(5)
            for part in filter(is_tensor, reduced[1]):
                self.memory.leave_out(part)
        return reduced

    def persistent_id(self, thing: Any) -> None:
        self.memory.add(thing)
        if is_set(thing) and not order_is_kept(thing):
            if not any(thing is one for one in self._never_iterated):
                self.unordered_sets.append(thing)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, owner: ChainPickle) -> None:
        super().__init__(stream)
        self._owner = owner

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__:
            if name == _thing_at.__name__:
                return self._owner.thing_at
            return self._owner.class_named if name == _class_named.__name__ else _FUNCTIONS[name]
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return self._owner.class_named(module, name)


# Pickles refer to these functions. Instead of the first two, `_Unpickler` calls the methods
# `ChainPickle.thing_at` and `ChainPickle.class_named`.
def _thing_at(place: str) -> Any:
    raise KeyError(place)


def _class_named(module: str, name: str) -> Any:
    raise KeyError(name)


def _nothing() -> None:
    return None


def _bound(function: Callable[..., Any], owner: Any) -> types.MethodType:
    return types.MethodType(function, owner)


def _seeds(entropy: Any, spawn_key: Any, pool_size: int, spawned: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(
        entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=spawned
    )


def _pcg64(state: Any, seeds: Any) -> Any:
    # It is seeded only to be made: `__setstate__` then replaces what the seed determined.
    bits: Any = np.random.PCG64(seeds if type(seeds) is np.random.SeedSequence else 0)
    bits.__setstate__((state, seeds))
    return bits


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (_nothing, _bound, _seeds, _pcg64)
}


def _is_plain(kind: type) -> bool:
    """Return whether `_Pickler` pickles all instances of `kind` as `pickle` does, or none."""
    if issubclass(kind, np.ndarray | np.dtype | type | types.MethodType):
        return False
    return kind.__reduce__ is object.__reduce__ or not kind.__dictoffset__


def _check_class(base: Any) -> None:
    kind = type(base)
    name = qualified_name(kind)
    if isinstance(base, EzPickle):
        raise SnapshotError(
            f"{name} is an EzPickle: its pickle holds only constructor arguments, so it would come "
            f"back from a pickle in its initial state; {_WAY_OUT}"
        )
    method = own_pickling(kind)
    if method is not None:
        raise SnapshotError(
            f"{name} has its own {method}, so a pickle may not hold its whole state; {_WAY_OUT}"
        )
    if not is_ordinary(kind):
        raise SnapshotError(
            f"{name} keeps state outside its __dict__ (__slots__, or a class that is not written "
            f"in Python); {_WAY_OUT}"
        )
