"""An environment and its wrappers as one pickle, without what only shows the state.

Pickled in one go are the attributes of the base and of each wrapper, so that what they share
stays shared. Spaces, specs, functions and modules stand for themselves: the pickle names the
place where they were found when the environment was made, and another process finds its own
there. Windows and locks are left out. Classes of ``__main__`` are found through the environment's
own classes, since a worker process has another ``__main__``.
"""

from __future__ import annotations

import enum
import io
import pickle
import threading
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle

from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.snapshots.array_layout import ArrayLayout
from plangym_like.snapshots.class_names import can_be_imported, classes_named, name_of
from plangym_like.snapshots.configuration import (
    LOCKS,
    is_configuration,
    is_handle,
    is_ordinary,
    own_pickling,
    qualified_name,
)
from plangym_like.snapshots.known_wrappers import chain, describe_wrappers, impossible, memory_of
from plangym_like.snapshots.memory_holder import (
    CONSTANT,
    MemoryHolder,
    kind_of,
    restart_generators,
)
from plangym_like.snapshots.outside_memory import held_objects
from plangym_like.snapshots.plain_data_writer import OverlapError
from plangym_like.snapshots.set_order import is_set, order_is_kept, told

_MAX_DEPTH = 30
# Bytes in every pickle that holds a set or a frozenset; other data may have them by chance.
_MARKS_OF_SETS = (pickle.EMPTY_SET + pickle.MEMOIZE, pickle.FROZENSET + pickle.MEMOIZE)
_VALUES = (type(None), bool, int, float, str, bytes)
_WAY_OUT = (
    "write a Simulator for the environment (plangym_like.Simulator), or name the attributes that "
    "are its memory in its class: state_attributes = ('name', ...)"
)


class ChainPickle:
    """Turns what a chain of environments remembers into bytes and back.

    Parameters
    ----------
    env : gymnasium.Env
        The chain, reset at least once.

    Attributes
    ----------
    nbytes : int
        0: what the wrappers remember has no bytes of its own beside the base's.
    unordered : str
        Which set was found whose order no pickle keeps, and what to do; empty: there was none.
    strict : bool
        Whether such a set is an error from now on.
    met_set : bool
        Whether an object of a subclass of sets was pickled.

    Raises
    ------
    SnapshotError
        A class decides for itself how it is pickled, or an attribute cannot be; the message says
        which and what to do.
    """

    nbytes = 0

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._base: Any = env.unwrapped
        self._meaning = describe_wrappers(env)
        self.unordered = ""
        self.strict = self.met_set = False
        links: list[Any] = [*chain(env), env.unwrapped]
        if getattr(type(links[-1]), "state_attributes", None) is None:
            _check_class(links[-1])
        self._things: dict[str, Any] = {}
        self._classes: dict[tuple[str, str], type] = {}
        self.holders: list[MemoryHolder] = []
        for number, link in enumerate(links):
            self._things[f"link {number}"] = link
            reason = impossible(link)
            if reason is not None:
                name = qualified_name(type(link))
                raise SnapshotError(f"wrapper {name} cannot be saved: {reason}")
        self._ids = {id(thing): place for place, thing in self._things.items()}
        self._seen: set[int] = set(self._ids)
        for number, link in enumerate(links):
            self._add(link, base=number == len(links) - 1)
        self._ids = {id(thing): place for place, thing in self._things.items()}
        self.dumps()

    def meaning(self) -> list[Any]:
        """Return classes and arguments of the wrappers, as JSON-able values."""
        return self._meaning

    def reseed(self, seed: int) -> None:
        """Restart every generator in an attribute, but for the base's ``np_random``."""
        restart_generators(self.holders, vars(self._base).get("_np_random"), seed)

    def dumps(self) -> bytes:
        """Return the memory of the chain.

        Raises
        ------
        SnapshotError
            Something has become unpicklable, or holds a set whose order is lost.
        """
        memories = [holder.read() for holder in self.holders]
        try:
            data = self._dumps(memories)
        except Exception as error:
            raise self._culprit(memories, error) from error
        if not self.unordered and (self.met_set or any(mark in data for mark in _MARKS_OF_SETS)):
            self._look_for_sets(memories)
        return data

    def loads(self, data: bytes | memoryview) -> list[Any]:
        """Return the memories in `data`, which must come from `dumps`: this runs code.

        Raises
        ------
        StateFormatError
            The bytes are damaged, or of another chain.
        """
        try:
            memories: list[Any] = _Unpickler(io.BytesIO(data), self).load()
            fits = list(map(MemoryHolder.fits, self.holders, memories))
        except SnapshotError:
            raise
        except Exception as error:
            raise StateFormatError(f"the pickle in a state row is damaged: {error}") from error
        if len(memories) != len(self.holders) or not all(fits):
            raise StateFormatError("the pickle in a state row is of another environment")
        return memories

    def restore(self, memories: list[Any]) -> None:
        """Make `memories`, which `loads` returned, the chain's own."""
        for holder, memory in zip(self.holders, memories, strict=True):
            holder.write(memory)

    def place_of(self, thing: Any) -> str | None:
        """Return the place of `thing` if it stands for itself."""
        return self._ids.get(id(thing))

    def thing_at(self, place: str) -> Any:
        """Return what stands for itself at `place`."""
        return self._things[place]

    def has_class(self, kind: type) -> bool:
        """Tell whether `kind` was found in the environment when it was made."""
        return self._classes.get(name_of(kind)) is kind

    def class_named(self, module: str, name: str) -> type:
        """Return a class, by way of the environment's own classes.

        Raises
        ------
        SnapshotError
            Neither they nor what their methods use have that name, or several of them have it.
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

    def _dumps(self, value: Any, lost: list[Any] | None = None) -> bytes:
        whole: set[int] = set()
        while True:
            stream = io.BytesIO()
            pickler = _Pickler(stream, self, whole)
            if lost is not None:
                pickler = _SetWatcher(stream, self, whole)
                pickler.lost = lost
            try:
                pickler.dump(value)
            except OverlapError as overlap:
                whole.add(overlap.args[0])
            else:
                return stream.getvalue()

    def _look_for_sets(self, memories: list[Any]) -> None:
        for holder, memory in zip(self.holders, memories, strict=True):
            for name, value in holder.items(memory):
                lost: list[Any] = []
                self._dumps(value, lost)
                if lost:
                    found = told(f"{holder.place}.{name}", lost[0])
                    if self.strict:
                        raise SnapshotError(
                            f"{found}. It held none when the environment was made; make it with "
                            "snapshot='replay' if that cannot be changed"
                        )
                    self.unordered = found
                    return

    def _add(self, link: Any, *, base: bool) -> None:
        kind = type(link)
        names = memory_of(link)
        holder = MemoryHolder(kind.__name__, kind, lambda: link, names, constant=_constant(base))
        if names != ():
            self.holders.append(holder)
        for inner in kind.__mro__:
            self._classes.setdefault(name_of(inner), inner)
        if getattr(kind, "state_attributes", None) is None:
            for name, value in vars(link).items():
                if name not in holder.constant and not is_handle(value):
                    self._gather(f"{kind.__name__}.{name}", value, 0)
        for name in holder.constant & set(vars(link)):
            if vars(link)[name] is not None:
                self._things.setdefault(f"{kind.__name__}.{name}", vars(link)[name])

    def _gather(self, place: str, value: Any, depth: int) -> None:
        """Find what stands for itself in `value`."""
        if depth > _MAX_DEPTH or isinstance(value, _VALUES):
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, dict):
            for key, item in value.items():
                self._gather(f"{place}[{key!r}]", item, depth + 1)
        elif isinstance(value, list | tuple | deque):
            for index, item in enumerate(value):
                self._gather(f"{place}[{index}]", item, depth + 1)
        elif isinstance(value, types.MethodType):
            self._gather(f"{place}.__self__", value.__self__, depth + 1)
        elif isinstance(value, enum.Enum | type):
            kind = value if isinstance(value, type) else type(value)
            self._classes.setdefault(name_of(kind), kind)
        elif is_configuration(value):
            self._check_function(place, value)
            self._things[place] = value
        elif hasattr(value, "__dict__"):
            kind = type(value)
            self._classes.setdefault(name_of(kind), kind)
            for name, item in vars(value).items():
                self._gather(f"{place}.{name}", item, depth + 1)

    def _check_function(self, place: str, value: Any) -> None:
        held = [thing for thing in held_objects(value) if id(thing) not in self._ids]
        if held:
            raise SnapshotError(
                f"{place} cannot be saved: the function holds {kind_of(held[0])}, which may "
                "remember something, out of reach of a pickle; keep it in an attribute of the "
                "environment or wrapper itself"
            )

    def _culprit(self, memories: list[Any], error: Exception) -> SnapshotError:
        for holder, memory in zip(self.holders, memories, strict=True):
            for name, value in holder.items(memory):
                try:
                    self._dumps(value)
                except Exception as reason:
                    place = f"{holder.place}.{name}, {kind_of(value)},"
                    return SnapshotError(f"{place} cannot be pickled: {reason}; {_WAY_OUT}")
        return SnapshotError(f"the environment cannot be pickled: {error}; {_WAY_OUT}")


class _Pickler(pickle.Pickler):
    lost: list[Any]

    def __init__(self, stream: io.BytesIO, owner: ChainPickle, whole: set[int]) -> None:
        super().__init__(stream, protocol=5)
        self._owner = owner
        self._arrays = ArrayLayout(whole)

    def reducer_override(self, thing: Any) -> Any:
        place = self._owner.place_of(thing)
        if place is not None:
            return _thing_at, (place,)
        if type(thing) is np.ndarray:
            return self._arrays.reduce(thing) or NotImplemented
        if isinstance(thing, np.dtype) and thing.isbuiltin == 1:
            # NumPy's own way makes a new object each time, and so another pickle the next time.
            return np.dtype, (thing.str,)
        if isinstance(thing, type):
            if not self._owner.has_class(thing):
                if can_be_imported(thing):
                    return NotImplemented
                if self._owner.class_named(*name_of(thing)) is not thing:
                    raise TypeError(f"several classes are called {qualified_name(thing)}")
            return _class_named, name_of(thing)
        if isinstance(thing, EzPickle):
            raise TypeError(f"{kind_of(thing)} is an EzPickle and would come back as it was made")
        if isinstance(thing, threading.Thread):
            raise TypeError("what a thread does is no part of a state")
        if type(thing) in LOCKS:
            return LOCKS[type(thing)], ()
        if is_handle(thing):
            return _nothing, ()
        if is_set(thing):
            self._owner.met_set = True
        return NotImplemented


class _SetWatcher(_Pickler):
    """Notes in `lost` the sets whose order a pickle does not keep."""

    def persistent_id(self, thing: Any) -> None:
        if is_set(thing) and not order_is_kept(thing):
            self.lost.append(thing)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, owner: ChainPickle) -> None:
        super().__init__(stream)
        self._owner = owner

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__:
            own: dict[str, Callable[..., Any]] = {
                _thing_at.__name__: self._owner.thing_at,
                _class_named.__name__: self._owner.class_named,
                _nothing.__name__: _nothing,
            }
            return own[name]
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return self._owner.class_named(module, name)


# Pickles name these functions; the unpickler puts the chain's own in their place.
def _thing_at(place: str) -> Any:
    raise KeyError(place)


def _class_named(module: str, name: str) -> Any:
    raise KeyError(name)


def _nothing() -> None:
    return None


def _constant(base: bool) -> frozenset[str]:
    # An environment may well keep the game itself in an attribute called env.
    return CONSTANT - {"env"} if base else CONSTANT


def _check_class(base: Any) -> None:
    kind = type(base)
    name = qualified_name(kind)
    if isinstance(base, EzPickle):
        raise SnapshotError(
            f"{name} is an EzPickle: it wraps a simulator that is not written in Python, and would "
            f"come back from a pickle unstepped; {_WAY_OUT}"
        )
    method = own_pickling(kind)
    if method is not None:
        raise SnapshotError(
            f"{name} has its own {method}, so a pickle of it need not be its state; {_WAY_OUT}"
        )
    if not is_ordinary(kind):
        raise SnapshotError(
            f"{name} keeps state outside its __dict__ (__slots__, or a class that is not written "
            f"in Python); {_WAY_OUT}"
        )
