"""`ChainPickle`: saves an environment and its wrappers as one pickle, without windows or locks.

The attributes of the environment and of each wrapper are in one pickle, so that shared objects stay
shared. Spaces, functions and modules are pickled as references: the pickle names the place where
each was found when the environment was made, and another process uses its own object at that place.
`SharedObjects` does the same for objects that code also finds in its modules.

Classes defined in ``__main__`` or in a function are sent to workers by cloudpickle, which keeps
module and ``__name__`` but not ``__qualname__``. A worker cannot import such a class, so it looks
for the class among the environment's other classes and everything that their code can refer to.
"""

from __future__ import annotations

import contextlib
import copyreg
import enum
import functools
import hashlib
import json
import random
import sys
import types
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle

from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.snapshots.chain_state import ChainState, StateOwner, held_objects
from plangym_like.snapshots.chains import links, reachable
from plangym_like.snapshots.configuration import (
    CONFIGURATION,
    describe,
    is_configuration,
    is_handle,
    is_ordinary,
    kind_of,
    own_pickling,
    qualified_name,
)
from plangym_like.snapshots.object_pickle import Names, ObjectPickle
from plangym_like.snapshots.outside_values import CodeSearch
from plangym_like.states import random_state

# Configuration that pickles hold by value, or by a name that can be imported.
_BY_VALUE = (
    *(types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType, functools.partial),
    *(enum.Enum, type),
)
# Objects that hold more objects than this are not shared.
_MOST_PARTS = 100
_NEVER_SHARED = (gymnasium.Env, np.random.Generator, np.random.RandomState, random.Random)
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

    Attributes
    ----------
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
        self, env: gymnasium.Env[Any, Any], shared: Iterable[tuple[str, Any]] = ()
    ) -> None:
        self._classes: dict[tuple[str, str], type] = {}
        if getattr(type(links(env)[-1]), "state_attributes", None) is None:
            _check_class(links(env)[-1])
        super().__init__(env, base=True)
        self._generator = _OwnGenerator(links(env)[-1])
        self._references |= {f"link {number}": link for number, link in enumerate(links(env))}
        self._references |= _GLOBAL
        self._places = {id(thing): place for place, thing in self._references.items()}
        self._shared = SharedObjects(shared, self)
        # Their sets must keep their order in trials, as all that is pickled as a reference.
        self._references |= self._shared.things()
        self._pickle = ObjectPickle(self, self._shared, self._generator)

    # What pickles refer to by name

    def place_of(self, thing: Any) -> str | None:
        """Return the place of `thing` if it is pickled as a reference, or ``None`` if it is not."""
        return self._places.get(id(thing)) or self._generator.place_of(thing)

    def thing_at(self, place: str) -> Any:
        """Return the object that was found at `place`."""
        if place.partition(".")[0] == "np_random":
            return self._generator.thing_at(place)
        if place not in self._references:
            raise SnapshotError(f"a state row refers to {place}, which this process does not have")
        return self._references[place]

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
    """An object that code finds in a module.

    `attributes` are those that it had when the environment was made, if no number or text in them
    can change in place; otherwise ``None``. `data` is a pickle of the object; ``None`` if it has no
    attributes.
    """

    place: str
    thing: Any
    attributes: dict[str, Any] | None
    data: bytes | None


class SharedObjects:
    """Objects that code finds in its modules and may compare by ``is``, such as kinds of tiles.

    A pickle holds the place of such an object, so that the restored state holds the object itself.
    It does so only while the object is as it was when the environment was made: afterwards, it is
    pickled with its attributes, and pickles that hold its place come back with a copy of what it
    was. The place contains a digest of the attributes, so that another process does not mistake
    another object for it.

    Parameters
    ----------
    found : iterable of (str, object)
        Where objects are, and the objects. Those that cannot be shared are left out.
    names : Names
        What else is pickled as a reference.

    Attributes
    ----------
    kinds : set of type
        The classes of the objects.
    """

    def __init__(self, found: Iterable[tuple[str, Any]], names: Names) -> None:
        self._pickle = ObjectPickle(names)
        self._by_id: dict[int, _Shared] = {}
        for place, thing in found:
            if id(thing) not in self._by_id and _can_be_shared(thing):
                # An object that cannot be pickled or described is not shared.
                with contextlib.suppress(Exception):
                    self._by_id[id(thing)] = self._new(place, thing)
        self._by_place = {shared.place: shared for shared in self._by_id.values()}
        self.kinds = {type(shared.thing) for shared in self._by_id.values()}

    def _new(self, place: str, thing: Any) -> _Shared:
        if type(thing) is object:
            return _Shared(place, thing, {}, None)
        parts = [part for _, part in islice(reachable(thing, place), _MOST_PARTS + 1)]
        if len(parts) > _MOST_PARTS or any(isinstance(part, _NEVER_SHARED) for part in parts):
            raise ValueError(place)
        content = json.dumps([[qualified_name(type(part)), _content(part)] for part in parts])
        digest = hashlib.blake2b(content.encode(), digest_size=4).hexdigest()
        flat = len(parts) == 1 and is_ordinary(type(thing))
        kept = dict(vars(thing)) if flat else None
        return _Shared(f"{place} {digest}", thing, kept, self._pickle.dumps(thing))

    def things(self) -> dict[str, Any]:
        """Return the objects by their places."""
        return {place: shared.thing for place, shared in self._by_place.items()}

    def place_of(self, thing: Any) -> str | None:
        """Return the place of `thing` if it is shared and has not changed, or ``None``."""
        shared = self._by_id.get(id(thing))
        return shared.place if shared is not None and self._is_unchanged(shared) else None

    def thing_at(self, place: str) -> Any:
        """Return the object at `place`, or a copy of what it was if it has changed."""
        shared = self._by_place.get(place)
        if shared is None:
            raise SnapshotError(
                f"a state row refers to {place}, which this process does not have, or which has "
                "other attributes here"
            )
        if shared.data is None or self._is_unchanged(shared):
            return shared.thing
        return self._pickle.loads(shared.data)

    def _is_unchanged(self, shared: _Shared) -> bool:
        if shared.data is None:
            return True
        if shared.attributes is not None and vars(shared.thing) == shared.attributes:
            return True
        return self._pickle.dumps(shared.thing) == shared.data


def _can_be_shared(thing: Any) -> bool:
    """Return whether code may compare `thing` by ``is``: not if it is a builtin type's value."""
    kind = type(thing)
    in_python = kind is object or (kind.__module__ != "builtins" and kind.__flags__ & 1 << 9)
    return bool(in_python) and not (is_configuration(thing) or is_handle(thing))


def _content(part: Any) -> Any:
    """Return the items or attributes of `part` as JSON data that are the same in every process."""
    if isinstance(part, tuple | list | dict | set | frozenset | np.ndarray):
        return describe(part)
    slots = copyreg._slotnames(type(part))  # type: ignore[attr-defined]
    found = {name: getattr(part, name) for name in slots if hasattr(part, name)}
    return describe({**found, **getattr(part, "__dict__", {})})


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
