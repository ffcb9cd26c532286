"""`ChainPickle`: saves an environment and its wrappers as one pickle, without windows or locks.

The attributes of the environment and of each wrapper are in one pickle, so that shared objects stay
shared. Spaces, specs, functions and modules are pickled as references: the pickle names the place
where each was found when the environment was made, and another process uses its own object at that
place. So are the objects that code refers to by name, since it may compare them by identity.

Classes defined in ``__main__`` or in a function are sent to workers by cloudpickle, which keeps
module and ``__name__`` but not ``__qualname__``. A worker cannot import such a class, so it looks
for the class among the environment's other classes and everything that their code can refer to.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import hashlib
import io
import pickle
import sys
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
from plangym_like.snapshots.array_layout import (
    ArrayLayout,
    OverlapError,
    refuse_hidden_memory,
    shared_memory,
)
from plangym_like.snapshots.chain_state import (
    ChainState,
    StateOwner,
    held_objects,
    refuse_method_of_data,
)
from plangym_like.snapshots.chains import links, reachable
from plangym_like.snapshots.configuration import (
    LOCKS,
    is_configuration,
    is_figure,
    is_handle,
    is_ordinary,
    kind_of,
    loses_attributes,
    own_pickling,
    qualified_name,
)
from plangym_like.snapshots.outside_values import CodeSearch, named_objects

# Types of iterators whose pickles hold copies of the remaining items.
_COPYING_ITERATORS = tuple(
    type(turn(items))
    for table in ({}, collections.OrderedDict())  # type: ignore[var-annotated]
    for items in (table, table.keys(), table.values(), table.items())
    for turn in (iter, reversed)
)
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
        self.plain_kinds: set[type] = set()
        self._classes: dict[tuple[str, str], type] = {}
        if getattr(type(links(env)[-1]), "state_attributes", None) is None:
            _check_class(links(env)[-1])
        super().__init__(env, base=True)
        for number, link in enumerate(links(env)):
            self._references[f"link {number}"] = link
        self._ids = {id(thing): place for place, thing in self._references.items()}
        # Digests of the objects that code refers to by name, by their ids.
        self._named: dict[int, bytes] = {}
        search = CodeSearch(env, self._classes.values())
        self._kinds = search.kinds
        for place, thing in named_objects(search):
            if id(thing) in self._ids:
                continue
            if id(thing) not in self._named:
                # An object that cannot be pickled cannot be part of a state either.
                with contextlib.suppress(Exception):
                    self._named[id(thing)] = self._content(thing)
            if id(thing) in self._named:
                self._refer(place, thing)
        for place, thing in self._references.items():
            self._ids.setdefault(id(thing), place)

    def restorer(self) -> Callable[[], None]:
        """Return a function that restores the present state; see `ChainState.restorer`."""
        restore = super().restorer()
        # A named object that the first reset changes is still the same object.
        self._named.clear()
        return restore

    def check_memory(self) -> None:
        """Raise `SnapshotError` if objects share memory that they would not share once restored."""
        parts = {
            f"{owner.place}.{name}": value
            for owner in self.owners
            for name, value in owner.items(owner.read())
        }
        found = shared_memory(parts)
        if found is not None:
            one, other = found
            raise SnapshotError(
                f"{one} and {other} share memory, but would be separate after they were restored "
                "from a pickle; keep only one of them"
            )

    def place_of(self, thing: Any, *, by_value: bool = False) -> str | None:
        """Return the place of `thing` if it is pickled as a reference, or ``None`` if it is not.

        If `by_value` is true, objects that code refers to by name are not pickled as references.
        """
        place = self._ids.get(id(thing))
        if place is not None and id(thing) in self._named:
            return None if by_value else self._unchanged(place, thing)
        return place

    def thing_at(self, place: str) -> Any:
        """Return the object that was found at `place`."""
        if place not in self._references:
            raise SnapshotError(f"a state row refers to {place}, which this process does not have")
        thing = self._references[place]
        if id(thing) in self._named:
            self._unchanged(place, thing)
        return thing

    def _unchanged(self, place: str, thing: Any) -> str:
        """Return `place`; raise `SnapshotError` if the content of `thing` has changed."""
        if self._content(thing) != self._named[id(thing)]:
            raise SnapshotError(
                f"{kind_of(thing)} is {place}, so it is shared by all copies of the environment, "
                "and it has changed; keep data that changes in objects made by the environment, or "
                "make the environment with snapshot='replay'"
            )
        return place

    def _content(self, thing: Any) -> bytes:
        """Return a digest of a pickle of `thing` that holds named objects by value."""
        return hashlib.blake2b(self._pickled(thing, by_value=True)).digest()

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
            found = [kind for kind in self._kinds if name_of(kind) == (module, name)]
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
        return self._pickled(values)

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

    def _pickled(self, value: Any, *, by_value: bool = False) -> bytes:
        """Return a pickle of `value`; see `place_of` for `by_value`."""
        whole: set[int] = set()
        while True:
            stream = io.BytesIO()
            try:
                _Pickler(stream, self, whole, by_value=by_value).dump(value)
            except OverlapError as overlap:
                whole.add(overlap.args[0])
            else:
                return stream.getvalue()

    def _unsaveable(self, place: str, value: Any, reason: Exception) -> SnapshotError:
        advice = _WAY_OUT
        if self.strict or self.unordered:
            advice = (
                "the attribute held no such object when the environment was made. Remove it before "
                "each step ends, or make the environment with snapshot='replay', which saves no "
                f"attributes of the environment itself; or {_WAY_OUT}"
            )
        return SnapshotError(f"{place}, {kind_of(value)}, cannot be pickled: {reason}; {advice}")


class _Pickler(pickle.Pickler):
    def __init__(
        self, stream: io.BytesIO, owner: ChainPickle, whole: set[int], *, by_value: bool
    ) -> None:
        super().__init__(stream, protocol=5)
        self._owner, self._by_value = owner, by_value
        self._arrays = ArrayLayout(whole)
        self._plain, self._places = owner.plain_kinds, owner._ids

    def reducer_override(self, thing: Any) -> Any:
        if id(thing) in self._places:
            place = self._owner.place_of(thing, by_value=self._by_value)
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
        return NotImplemented


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


# Classes that cannot be imported


def name_of(kind: type) -> tuple[str, str]:
    """Return the module and the name of a class."""
    return kind.__module__, kind.__name__


def can_be_imported(kind: type) -> bool:
    """Return whether `kind` can be imported by name; always false for classes of ``__main__``."""
    found: Any = None if kind.__module__ == "__main__" else sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind
