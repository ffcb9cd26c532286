"""`ChainPickle`: saves an environment and its wrappers as one pickle, without windows or locks.

The attributes of the environment and of each wrapper are in one pickle, so that shared objects stay
shared. Spaces, functions and modules are pickled as references: the pickle names the place where
each was found when the environment was made, and another process uses its own object at that place.
What a restore brings back is what `copy.deepcopy` would copy: an array that was a view of another
one becomes an array of its own, and ``tile is WALL`` may become false.
"""

from __future__ import annotations

import enum
import functools
import types
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle

from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.snapshots.chain_state import ChainState
from plangym_like.snapshots.chains import links, reachable, scatter_sets
from plangym_like.snapshots.configuration import (
    CONFIGURATION,
    is_handle,
    is_ordinary,
    kind_of,
    own_pickling,
    qualified_name,
)
from plangym_like.snapshots.known_wrappers import StateOwner
from plangym_like.snapshots.object_pickle import ObjectPickle
from plangym_like.states import random_state

# Configuration that pickles hold by value, or by a name that can be imported.
_BY_VALUE = (
    *(types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType, functools.partial),
    *(enum.Enum, type),
)
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

    Attributes
    ----------
    nbytes : int
        Always 0: the wrappers are in the environment's pickle, so they need no further bytes.

    Raises
    ------
    SnapshotError
        The environment's class defines its own pickling or keeps state outside ``__dict__``, or a
        wrapper cannot be saved. The message says which, and what to do.
    """

    nbytes = 0

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        if getattr(type(links(env)[-1]), "state_attributes", None) is None:
            _check_class(links(env)[-1])
        super().__init__(env, base=True)
        self._generator = _OwnGenerator(links(env)[-1])
        self._references |= {f"link {number}": link for number, link in enumerate(links(env))}
        self._places = {id(thing): place for place, thing in self._references.items()}
        self._pickle = ObjectPickle(self)

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

    def _walk_link(self, owner: StateOwner, link: Any) -> None:
        self._seen |= self._links
        for name, value in vars(link).items():
            place = f"{owner.place}.{name}"
            if name in owner.fixed:
                if value is not None and id(value) not in self._links:
                    self._refer(place, value)
            elif getattr(owner.kind, "state_attributes", None) is None and not is_handle(value):
                for inner, thing in reachable(value, place, self._seen):
                    if isinstance(thing, CONFIGURATION) and not isinstance(thing, _BY_VALUE):
                        self._refer(inner, thing)

    def encoded(self) -> bytes:
        try:
            states = [
                owner.read() if owner.names is None else dict(owner.items(owner.read()))
                for owner in self.owners
            ]
            return self._pickle.dumps_states(states, self._generator.taken_from(states[-1]))
        except SnapshotError:
            raise
        except Exception as error:
            raise self._refused([owner.read() for owner in self.owners], error) from error

    def decoded(self, data: bytes) -> list[dict[str, Any]]:
        """Return the attributes of all owners; the generator's state is a tuple."""
        # Unpickling can run code, so the caller must trust the source of `data`.
        try:
            states, generator = self._pickle.loads_states(data)
        except SnapshotError:
            raise
        except Exception as error:
            raise StateFormatError(
                f"the pickle in a state row cannot be loaded: {type(error).__name__}: {error}; an "
                "object in it cannot be made again from its pickle, or the row is damaged. Keep "
                "such objects out of the environment's attributes, or make it with "
                "snapshot='replay'"
            ) from error
        if len(states) != len(self.owners):
            raise StateFormatError("a state row does not belong to this chain of wrappers")
        if generator is not None:
            states[-1]["_np_random"] = generator
        if self.scatters:
            scatter_sets(states, {id(thing) for thing in self._references.values()})
        return states

    def restore(self, values: list[dict[str, Any]]) -> None:
        base = values[-1]
        if type(generator := base.get("_np_random")) is tuple:
            base["_np_random"] = self._generator.write(generator)
        for owner, state in zip(self.owners, values, strict=True):
            names = owner.names
            owner.write(state if names is None else [state[name] for name in names])

    def _encode(self, values: list[Any]) -> bytes:
        return self._pickle.dumps(values)

    def _unsaveable(self, place: str, value: Any, reason: Exception) -> SnapshotError:
        return SnapshotError(
            f"{place}, {kind_of(value)}, cannot be pickled: {reason}; remove such objects before "
            f"each step ends; {_WAY_OUT}"
        )


class _OwnGenerator:
    """The ``np_random`` of the environment, which is saved apart and restored in place.

    Its state is the 40 bytes of `save_generator`, and the data of its `SeedSequence`: their pickles
    would take longer. A generator of another kind is pickled like any other object.
    """

    def __init__(self, base: Any) -> None:
        self._base = base
        # The last generator whose state was of this form, its memory, and its seeds.
        self._known: Any = None
        self._memory: list[memoryview] = []
        self._seeds: tuple[Any, Any] = (None, None)

    def taken_from(self, state: dict[str, Any]) -> tuple[bytes, Any] | None:
        """Remove ``np_random`` from `state`, and return its state; ``None`` if it is unusual."""
        generator = state.get("_np_random")
        if generator is None or not (generator is self._known or self._is_usual(generator)):
            return None
        del state["_np_random"]
        memory = b"".join(self._memory) or random_state.save_generator(generator)
        return memory, self._spawner(generator)

    def write(self, state: tuple[bytes, Any]) -> Any:
        """Set the state of the generator that `thing_at` has returned, and return it."""
        memory, spawner = state
        generator = self._present()
        if spawner != self._spawner(generator):
            entropy, key, size, count = spawner
            fresh: Any = np.random.SeedSequence(
                entropy, spawn_key=key, pool_size=size, n_children_spawned=count
            )
            # In place, because other objects may refer to it.
            generator.bit_generator.seed_seq.__setstate__(fresh.__reduce__()[2])
            self._seeds = None, None
        if self._memory:
            numbers, rest = self._memory
            numbers[:], rest[:] = memory[:-8], memory[-8:]
        else:
            random_state.load_generator(memory, generator)
        return generator

    def _spawner(self, generator: Any) -> Any:
        """Return `random_state.spawner_of`, which changes when the generator spawns others."""
        seeds, (known, spawner) = generator.bit_generator.seed_seq, self._seeds
        if seeds is not known or seeds.n_children_spawned != spawner[-1]:
            spawner = random_state.spawner_of(generator)
            self._seeds = seeds, spawner
        return spawner

    def place_of(self, thing: Any) -> str | None:
        """Return the place of the generator, its bit generator or its seeds, or ``None``."""
        generator = self._known
        if generator is None or self._base._np_random is not generator:
            return None
        if thing is generator:
            return "np_random"
        if thing is generator.bit_generator:
            return "np_random.bit_generator"
        is_seeds = thing is generator.bit_generator.seed_seq
        return "np_random.bit_generator.seed_seq" if is_seeds else None

    def thing_at(self, place: str) -> Any:
        """Return the object at `place`: of the present generator, of the last one, or a new one."""
        _, _, path = place.partition(".")
        return attrgetter(path)(self._present()) if path else self._present()

    def _present(self) -> Any:
        generator = self._base.__dict__.get("_np_random")
        if generator is None or not (generator is self._known or self._is_usual(generator)):
            if self._known is None:
                self._is_usual(random_state.seeded_generator(0))
        return self._known

    def _is_usual(self, generator: Any) -> bool:
        """Return whether the state of `generator` is of this form; keep it if it is."""
        if type(generator) is not np.random.Generator:
            return False
        bits: Any = generator.bit_generator
        if type(bits) is np.random.PCG64 and type(bits.seed_seq) is np.random.SeedSequence:
            if type(bits.seed_seq.entropy) is int:
                self._known, self._memory = generator, random_state.memory_views(generator)
                return True
        return False


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
