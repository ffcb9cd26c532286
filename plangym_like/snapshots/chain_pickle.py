"""`ChainPickle`: saves an environment and its wrappers as one pickle, without windows or locks.

The attributes of the environment and of each wrapper are in one pickle, so that shared objects stay
shared. Spaces, functions and modules are pickled as references: the pickle names the place where
each was found when the environment was made, and another process uses its own object at that place.
The same holds for objects without parts that code finds in its modules (`OutsideObjects`).

Classes defined in ``__main__`` or in a function are sent to workers by cloudpickle, which keeps
module and ``__name__`` but not ``__qualname__``. A worker cannot import such a class, so it looks
for the class among the environment's other classes and everything that their code can refer to.
"""

from __future__ import annotations

import contextlib
import copyreg
import enum
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Collection, Iterable
from itertools import islice
from operator import attrgetter, is_, itemgetter
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle

from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.snapshots.chain_state import ChainState, StateOwner, held_objects
from plangym_like.snapshots.chains import links, reachable
from plangym_like.snapshots.configuration import (
    CONFIGURATION,
    is_configuration,
    is_handle,
    is_ordinary,
    kind_of,
    own_pickling,
    qualified_name,
)
from plangym_like.snapshots.object_pickle import ObjectPickle
from plangym_like.snapshots.outside_values import CodeSearch
from plangym_like.states import random_state

# Configuration that pickles hold by value, or by a name that can be imported.
_BY_VALUE = (
    *(types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType, functools.partial),
    *(enum.Enum, type),
)
# So many objects inside an object of a module are looked at.
_MOST_PARTS = 10_000
_ABSENT = object()
# The types of attributes whose values cannot change.
_ATOMS = frozenset(
    [
        *(type(None), bool, int, float, complex, str, bytes),
        *(type, types.FunctionType, types.BuiltinFunctionType),
    ]
)
# Of objects of these types, the value counts, or they have a mechanism of their own.
_VALUES = (
    *(int, float, complex, str, bytes, list, dict, set, frozenset, deque, bytearray, np.ndarray),
    *(gymnasium.Env, np.random.Generator, np.random.RandomState, random.Random),
)
# The generators of the modules `random` and `numpy.random`.
_GLOBAL = {
    "random": random.random.__self__,  # type: ignore[attr-defined]
    "numpy.random": np.random.random.__self__,  # type: ignore[attr-defined]
}
_WAY_OUT = (
    "make the environment with snapshot='replay', which saves no attributes of the environment "
    "itself; write a Simulator for the environment (plangym_like.Simulator), or name the "
    "attributes that are its state in its class: state_attributes = ('name', ...)"
)


class ChainPickle(ChainState):
    """Saves the state of an environment and its wrappers as a pickle.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with its wrappers.
    shared : iterable of (str, object)
        Objects that code finds in its modules; see `CodeSearch.shared_objects`.
    by_value : set of str
        The places of those that steps change, so that they are pickled with their attributes.

    Attributes
    ----------
    outside : OutsideObjects
        The objects in modules.
    by_value : set of str
        As the argument; `forget` adds places.
    kinds : set of type
        The classes of the objects in modules that are pickled as references.
    nbytes : int
        Always 0: the wrappers are in the environment's pickle, so they need no further bytes.

    Raises
    ------
    SnapshotError
        The environment's class defines its own pickling or keeps state outside ``__dict__``, or a
        function or wrapper cannot be saved. The message says which, and what to do.
    """

    nbytes = 0

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        shared: Iterable[tuple[str, Any]] = (),
        by_value: Iterable[str] = (),
    ) -> None:
        self._classes: dict[tuple[str, str], type] = {}
        if getattr(type(links(env)[-1]), "state_attributes", None) is None:
            _check_class(links(env)[-1])
        super().__init__(env, base=True)
        self._generator = _OwnGenerator(links(env)[-1])
        self._references |= {f"link {number}": link for number, link in enumerate(links(env))}
        self._references |= _GLOBAL
        self.by_value = {*by_value}
        self.outside = OutsideObjects(shared, self.by_value)
        found = {place: each.thing for place, each in self.outside.shared.items()}
        self._references = found | self._references
        self.kinds = {*map(type, found.values())}
        self._places = {id(thing): place for place, thing in self._references.items()}
        self._pickle = ObjectPickle(self, self._generator)

    # What pickles refer to by name

    def place_of(self, thing: Any) -> str | None:
        """Return the place of `thing` if it is pickled as a reference, or ``None`` if it is not."""
        place = self._places.get(id(thing))
        if place is None:
            return self._generator.place_of(thing)
        self._check_unchanged(place)
        return place

    def thing_at(self, place: str) -> Any:
        """Return the object that was found at `place`."""
        if place.partition(".")[0] == "np_random":
            return self._generator.thing_at(place)
        if place not in self._references:
            raise SnapshotError(f"a state row refers to {place}, which this process does not have")
        self._check_unchanged(place)
        return self._references[place]

    def _check_unchanged(self, place: str) -> None:
        """Raise `SnapshotError` if an object of a module has changed."""
        shared = self.outside.shared.get(place)
        if shared is not None and (name := _changed_attribute(shared)) is not None:
            raise SnapshotError(
                f"the attribute {name!r} of {place} has changed since the environment was made, "
                "and state rows refer to this object; keep caches and all that steps change out of "
                "objects of a module, or make the environment with snapshot='replay'"
            )

    def forget(self, place: str) -> None:
        """From now on, pickle the object of a module at `place` with its attributes."""
        self.by_value.add(place)
        del self.outside.shared[place], self._places[id(self._references.pop(place))]

    def content(self, thing: Any) -> bytes:
        """Return a pickle of `thing` and all that it holds."""
        return self._pickle.dumps(thing)

    def is_named(self, kind: type) -> bool:
        """Return whether the class `kind` cannot be imported, so that `class_named` has to find it.

        Raises
        ------
        TypeError
            Several classes have its name.
        """
        if can_be_imported(kind):
            return False
        if self.class_named(*name_of(kind)) is not kind:
            raise TypeError(f"several classes are called {qualified_name(kind)}")
        return True

    def class_named(self, module: str, name: str) -> type:
        """Return the class ``module.name``.

        It is looked up among the environment's classes and all classes that their code refers to.

        Raises
        ------
        SnapshotError
            None of them has that name, or several have it.
        """
        if (module, name) not in self._classes:
            kinds = CodeSearch(self._env, self._classes.values()).kinds
            found = [kind for kind in kinds if name_of(kind) == (module, name)]
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
            if name in owner.fixed:
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
            elif isinstance(thing, CONFIGURATION):
                self._check_function(place, thing)
                if not isinstance(thing, _BY_VALUE):
                    self._refer(place, thing)
            elif hasattr(thing, "__dict__"):
                self._classes.setdefault(name_of(type(thing)), type(thing))

    def _check_function(self, place: str, value: Any) -> None:
        held = () if isinstance(value, _BY_VALUE) else held_objects(value)
        held = [thing for thing in held if id(thing) not in self._links]
        if held:
            raise SnapshotError(
                f"{place} cannot be saved: the function holds {kind_of(held[0])}, which may "
                "have state that a pickle does not include; keep it in an attribute of the "
                "environment or wrapper itself"
            )

    def encoded(self) -> bytes:
        try:
            return self._pickle.dumps_states(
                [_as_dict(owner, owner.read()) for owner in self.owners]
            )
        except SnapshotError:
            raise
        except Exception as error:
            raise self._refused([owner.read() for owner in self.owners], error) from error

    def restore(self, values: list[Any]) -> None:
        base = values[-1]
        state = _as_dict(self.owners[-1], base)
        if type(own := state.get("_np_random")) is tuple:
            state["_np_random"] = self._generator.write(own)
            values[-1] = state if type(base) is dict else (*state.values(),)
        super().restore(values)

    def _encode(self, values: list[Any]) -> bytes:
        return self._pickle.dumps(values)

    def _decode(self, data: bytes) -> Any:
        # Unpickling can run code, so the caller must trust the source of `data`.
        try:
            return [
                state if owner.names is None else tuple(map(state.__getitem__, owner.names))
                for owner, state in zip(self.owners, self._pickle.loads_states(data), strict=True)
            ]
        except SnapshotError:
            raise
        except Exception as error:
            raise StateFormatError(
                f"the pickle in a state row cannot be loaded: {type(error).__name__}: {error}; an "
                "object in it cannot be made again from its pickle, or the row is damaged. Keep "
                "such objects out of the environment's attributes, or make it with "
                "snapshot='replay'"
            ) from error

    def _unsaveable(self, place: str, value: Any, reason: Exception) -> SnapshotError:
        return SnapshotError(
            f"{place}, {kind_of(value)}, cannot be pickled: {reason}; remove such objects before "
            f"each step ends; {_WAY_OUT}"
        )


def _as_dict(owner: StateOwner, state: Any) -> dict[str, Any]:
    return state if type(state) is dict else dict(owner.items(state))


class _Shared(NamedTuple):
    """An object that code finds in a module, and its attributes when the environment was made."""

    thing: Any
    attributes: dict[str, Any]


class OutsideObjects:
    """Objects that code finds in its modules and may compare by ``is``, such as kinds of tiles.

    Parameters
    ----------
    found : iterable of (str, object)
        Where objects are, and the objects.
    by_value : set of str
        Places of objects that steps change.

    Attributes
    ----------
    shared : dict of str to _Shared
        The objects to which pickles can refer, by their places: their attributes hold no other
        objects, and no other object has the same place.
    others : dict of int to str
        The ids of all other such objects but tuples, and of those inside them. Each has the place
        of the object that was found.
    roots : dict of str to object
        The objects that were found and are among the `others`.
    containers : dict of int to str
        The ids of the lists, dicts and arrays in roots that hold no other such objects.
    """

    def __init__(self, found: Iterable[tuple[str, Any]], by_value: Collection[str] = ()) -> None:
        instances = sorted((each for each in found if _is_instance(each[1])), key=itemgetter(0))
        ids: dict[str, set[int]] = {}
        for place, thing in instances:
            ids.setdefault(place, set()).add(id(thing))
        self.shared: dict[str, _Shared] = {}
        known: set[int] = set()
        for place, thing in instances:
            attributes = _flat_attributes(thing)
            if attributes is not None and len(ids[place]) == 1 and id(thing) not in known:
                known.add(id(thing))
                if place not in by_value:
                    self.shared[place] = _Shared(thing, attributes)
        self.others: dict[int, str] = {}
        self.roots: dict[str, Any] = {}
        self.containers: dict[int, str] = {}
        for place, thing in instances:
            if id(thing) in known or id(thing) in self.others or isinstance(thing, tuple):
                continue
            while place in self.roots:
                place += "'"
            self.roots[place] = thing
            parts = [part for _, part in islice(reachable(thing, place), _MOST_PARTS)]
            inside = [part for part in parts if _is_instance(part) and id(part) not in known]
            self.others |= {id(part): place for part in inside if id(part) not in self.others}
            if len(inside) == 1:
                self.containers |= {id(part): place for part in parts if part is not thing}


def _is_instance(thing: Any) -> bool:
    """Return whether code may compare `thing` by ``is``.

    Values of builtin types and of their subclasses do not count, except named tuples.
    """
    kind = type(thing)
    in_python = kind is object or (kind.__module__ != "builtins" and kind.__flags__ & 1 << 9)
    return bool(in_python) and not (
        isinstance(thing, _VALUES) or is_configuration(thing) or is_handle(thing)
    )


def _flat_attributes(thing: Any) -> dict[str, Any] | None:
    """Return the attributes of `thing`; ``None`` if it holds an object that can change."""
    kind = type(thing)
    slots = copyreg._slotnames(kind)  # type: ignore[attr-defined]
    size = object.__basicsize__ + 8 * (len(slots) + bool(kind.__weakrefoffset__))
    is_slotted = not kind.__dictoffset__ and not kind.__itemsize__ and kind.__basicsize__ == size
    if not (is_ordinary(kind) or is_slotted or (isinstance(thing, tuple) and not slots)):
        return None
    values = [*_attributes_of(thing).values(), *(thing if isinstance(thing, tuple) else ())]
    return dict(_attributes_of(thing)) if all(map(_is_flat, values)) else None


def _attributes_of(thing: Any) -> dict[str, Any]:
    if type(own := getattr(thing, "__dict__", None)) is dict:
        return own
    slots = copyreg._slotnames(type(thing))  # type: ignore[attr-defined]
    return {name: getattr(thing, name) for name in slots if hasattr(thing, name)}


def _is_flat(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_flat, value))
    return value is _ABSENT or type(value) in _ATOMS or isinstance(value, enum.Enum | np.generic)


def _changed_attribute(shared: _Shared) -> str | None:
    """Return the name of an attribute that has changed, or ``None``.

    A `functools.cached_property` adds one that is no change, if nothing in it can change.
    """
    thing, before = shared
    now = _attributes_of(thing)
    if now.keys() == before.keys() and all(map(is_, now.values(), before.values())):
        return None
    for name in {**before, **now}:
        value, known = now.get(name, _ABSENT), before.get(name, _ABSENT)
        is_same = value is known or (type(value) is type(known) and value == known)
        is_cache = isinstance(getattr(type(thing), name, None), functools.cached_property)
        if not _is_flat(value) or not (is_same or is_cache):
            return name
    return None


class StepsOutside:
    """Finds out which objects of its modules an environment refers to and changes.

    Parameters
    ----------
    pickle : ChainPickle
        Saves the environment. Objects that steps change are no longer pickled as references.
    """

    def __init__(self, pickle: ChainPickle) -> None:
        self._pickle = pickle
        self._before = {place: self._content(place) for place in pickle.outside.roots}
        self._met: dict[str, str] = {}
        self._state: set[str] = set()

    def look(self) -> None:
        """Look at the present state, after a reset or a step."""
        pickle, others = self._pickle, self._pickle.outside.others
        for place in [*pickle.outside.shared]:
            if _changed_attribute(pickle.outside.shared[place]) is not None:
                pickle.forget(place)
        if not others:
            return
        values = [
            (f"{owner.place}.{name}", value)
            for owner in pickle.owners
            for name, value in owner.items(owner.read())
        ]
        for name, value in values:
            for at, thing in reachable(value, name):
                if id(thing) in others:
                    self._met.setdefault(others[id(thing)], at)
        containers, outside = pickle.outside.containers, {*others}
        for name, value in values if self._met else ():
            for _, thing in reachable(value, name, {*outside}):
                if id(thing) in containers:
                    self._state.add(containers[id(thing)])

    def refuse(self) -> None:
        """Raise `SnapshotError` if a state refers to an object that no step has changed.

        A restored state would hold a copy of it, but the code may compare it with the original. If
        the state also refers to a list or array of the object itself, the object is state.
        """
        for place, at in self._met.items():
            if place in self._state:
                continue
            before = self._before[place]
            if before is None or before == self._content(place):
                raise SnapshotError(
                    f"{at} refers to {place}, which holds other objects or shares its name with "
                    f"another object; a restored state could not refer to the same one; {_WAY_OUT}"
                )

    def _content(self, place: str) -> bytes | None:
        thing = self._pickle.outside.roots[place]
        if len([*islice(reachable(thing, place), _MOST_PARTS)]) == _MOST_PARTS:
            return None
        with contextlib.suppress(Exception):
            return self._pickle.content(thing)
        return None


class _OwnGenerator:
    """The ``np_random`` of the environment, which is saved apart and restored in place.

    Its state is the 40 bytes of `save_generator`, and the data of its `SeedSequence`: their pickles
    would take longer. A generator of another kind is pickled like any other object.
    """

    def __init__(self, base: Any) -> None:
        self._base = base
        self._memory = random_state.GeneratorMemory(base)
        self._scratch = np.zeros(random_state.GENERATOR_NBYTES, np.uint8)
        # The last generator whose state was of this form.
        self._known: Any = None

    def read(self, value: Any) -> tuple[bytes, Any] | None:
        """Return the state of `value` if it is ``np_random`` and of the usual kind, or ``None``."""
        if value is None or value is not self._own():
            return None
        self._memory.save(self._scratch, 0)
        return self._scratch.tobytes(), random_state.spawner_of(value)

    def write(self, state: tuple[bytes, Any]) -> Any:
        """Set the state of the generator that `thing_at` has returned, and return it."""
        memory, spawner = state
        generator = self._base._np_random = self.thing_at("np_random")
        if spawner != random_state.spawner_of(generator):
            entropy, key, size, count = spawner
            fresh: Any = np.random.SeedSequence(
                entropy, spawn_key=key, pool_size=size, n_children_spawned=count
            )
            # In place, because other objects may refer to it.
            generator.bit_generator.seed_seq.__setstate__(fresh.__reduce__()[2])
        self._memory.load(np.frombuffer(memory, np.uint8), 0)
        return generator

    def place_of(self, thing: Any) -> str | None:
        """Return the place of the generator, its bit generator or its seeds, or ``None``."""
        if (generator := self._own()) is None:
            return None
        if thing is generator:
            return "np_random"
        if thing is generator.bit_generator:
            return "np_random.bit_generator"
        is_seeds = thing is generator.bit_generator.seed_seq
        return "np_random.bit_generator.seed_seq" if is_seeds else None

    def thing_at(self, place: str) -> Any:
        """Return the object at `place`: of the present generator, of the last one, or a new one."""
        generator = self._own() or self._known
        if generator is None:
            generator = self._known = random_state.seeded_generator(0)
        _, _, path = place.partition(".")
        return attrgetter(path)(generator) if path else generator

    def _own(self) -> Any:
        """Return ``np_random`` if its state is of the usual form, or ``None``."""
        generator = vars(self._base).get("_np_random")
        if generator is self._known or type(generator) is not np.random.Generator:
            return generator if generator is self._known else None
        bits: Any = generator.bit_generator
        if type(bits) is np.random.PCG64 and type(bits.seed_seq) is np.random.SeedSequence:
            if type(bits.seed_seq.entropy) is int:
                self._known = generator
                return generator
        return None


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
