"""The objects in a wrapper chain that own state, and their values as bytes.

`ChainState` walks through the attributes of each wrapper and, if `base` is true, of the environment
inside them; each object that has state gets a `StateOwner`. Spaces, functions, classes and similar
objects are configuration, and are encoded as references. Subclasses define how all other objects
are encoded.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import random
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.snapshots.chains import CONSTANT, links, note_on_sets, scatter_sets
from plangym_like.snapshots.configuration import (
    FUNCTIONS,
    NO_HANDLES,
    is_configuration,
    is_handle,
    kind_of,
    qualified_name,
)
from plangym_like.snapshots.known_wrappers import (
    describe_wrappers,
    impossible,
    is_known,
    state_names,
    visible,
)
from plangym_like.states.random_state import make_generator, restart

_MISSING = object()
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_GLOBAL: tuple[Any, Any] = (random.random.__self__, np.random.random.__self__)  # type: ignore[attr-defined]
# `np._NoValue` is the default of many arguments of NumPy's functions.
_PLAIN = (type(None), type(np._NoValue), bool, int, float, complex, str, bytes, np.generic, tuple)
_CONTAINERS = (list, dict, set, bytearray, deque, np.ndarray)


@dataclass(slots=True)
class StateOwner:
    """An object, and the names of the attributes that are its state.

    Attributes
    ----------
    place : str
        The name of the object in error messages.
    kind : type
        The class of the object.
    locate : callable
        Returns the current object; a wrapper may replace it in ``reset``.
    names : tuple of str or None
        The attributes that are the object's state; a dotted name is an attribute of an attribute.
        ``None`` means all attributes except handles (see `is_handle`), those in `constant`, and
        those that are still what they were at first, as in `fixed`.
    constant : set of str
        Attributes that are never state of this object.
    fixed : dict
        The values of attributes that are configuration. Such an attribute is state only if it is
        another object now.
    """

    place: str
    kind: type
    locate: Callable[[], Any]
    names: tuple[str, ...] | None
    constant: frozenset[str] = frozenset(["_cached_spec"])
    fixed: dict[str, Any] = field(default_factory=dict)
    _get: Callable[[Any], Any] = field(init=False)

    def __post_init__(self) -> None:
        names = self.names or ()
        one = attrgetter(*names) if names else lambda thing: ()
        self._get = (lambda thing: (one(thing),)) if len(names) == 1 else one

    def read(self) -> Any:
        """Return the state: a tuple in the order of `names`, or a dict if `names` is ``None``.

        The keys of the dict are sorted.
        """
        thing = self._thing()
        if self.names is not None:
            try:
                return self._get(thing)
            except AttributeError as error:
                raise SnapshotError(f"{self.place} cannot be saved: {error}") from error
        attributes, fixed, constant = vars(thing), self.fixed, self.constant
        state = {}
        for name in sorted(attributes):
            value = attributes[name]
            if fixed.get(name, _MISSING) is not value and name not in constant:
                if type(value) in NO_HANDLES or not is_handle(value):
                    state[name] = value
        return state

    def write(self, state: Any) -> None:
        """Set the state of the object to `state`; ``fits(state)`` must be true."""
        thing = self._thing()
        attributes = vars(thing)
        if self.names is not None:
            for name, value in zip(self.names, state, strict=True):
                path, _, last = name.rpartition(".")
                setattr(attrgetter(path)(thing) if path else thing, last, value)
            return
        fixed, handles = self.fixed, {}
        for name, value in [*attributes.items()]:
            if name in state:
                if type(value) not in NO_HANDLES and is_handle(value):
                    handles[name] = value
            elif name in fixed:
                attributes[name] = fixed[name]
            elif name not in self.constant and not is_handle(value):
                del attributes[name]
        attributes.update(state)
        attributes.update(handles)

    def fits(self, state: Any) -> bool:
        """Return whether `state` has the form of this object's state."""
        if self.names is not None:
            return type(state) is tuple and len(state) == len(self.names)
        return type(state) is dict and self.constant.isdisjoint(state)

    def items(self, state: Any) -> Iterator[tuple[str, Any]]:
        """Yield the name and value of each attribute in `state`."""
        yield from state.items() if self.names is None else zip(self.names, state, strict=True)

    def leave_out_missing(self) -> None:
        """Leave out the named attributes that the object does not have yet."""
        if self.names is not None:
            thing = self.locate()
            self.names = tuple(name for name in self.names if _has(thing, name))
            self.__post_init__()

    def _thing(self) -> Any:
        try:
            thing = self.locate()
        except AttributeError as error:
            raise SnapshotError(f"{self.place} no longer exists: {error}") from error
        if type(thing) is not self.kind:
            raise SnapshotError(
                f"{self.place} was an object of class {qualified_name(self.kind)} when the "
                f"environment was made and is {kind_of(thing)} now; keep one object, or plain data"
            )
        return thing


def _has(thing: Any, name: str) -> bool:
    try:
        attrgetter(name)(thing)
    except AttributeError:
        return False
    return True


def restart_generators(owners: list[StateOwner], own: Any, seed: int) -> None:
    """Restart the random generators in the attributes of `owners`, except `own`, from `seed`."""
    number = 0
    for owner in owners:
        for _, value in owner.items(owner.read()):
            if isinstance(value, np.random.Generator) and value is not own:
                bits: Any = value.bit_generator
                start = np.random.SeedSequence(int(seed), spawn_key=(number,))
                restart(bits, type(bits)(start))
                number += 1


def always(value: Any) -> Callable[[], Any]:
    """Return a function that returns `value`."""
    return lambda: value


def held_objects(function: Any) -> list[Any]:
    """Return the objects in the closure, the defaults or the bound arguments of `function`.

    Only objects that may have state are returned, such as the object of a bound method. Numbers,
    containers and configuration are left out. Functions that `function` holds are searched too.

    >>> held_objects(functools.partial(max, [1, 2]))
    []
    """
    stateless = (*_PLAIN, frozenset, *_CONTAINERS, *_GENERATORS, types.GeneratorType)
    found: list[Any] = []
    pending, seen = [function], set()
    while pending:
        value = pending.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FUNCTIONS):
            pending[:0] = _held(value)
        elif not (value is function or isinstance(value, stateless) or is_configuration(value)):
            found.append(value)
    return found


def _held(function: Any) -> Iterator[Any]:
    """Yield the function inside `function`, if it is written in Python, and all that it holds."""
    inner = getattr(function, "__wrapped__", None)
    if isinstance(function, types.MethodType):
        inner = function.__func__
        yield function.__self__
    elif isinstance(function, functools.partial):
        inner = function.func
        yield from (*function.args, *function.keywords.values())
    elif isinstance(function, types.FunctionType):
        inner = None
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                yield cell.cell_contents
        yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if isinstance(inner, FUNCTIONS):
        yield inner


def refuse_method_of_data(place: str, value: Any) -> None:
    """Raise `SnapshotError` if `value` is a method of a container or of a random generator.

    The global generators of `random` and `numpy.random` are allowed.
    """
    if isinstance(value, types.BuiltinMethodType | types.MethodWrapperType | types.MethodType):
        thing = value.__self__
        if thing is not _GLOBAL[0] and thing is not _GLOBAL[1]:
            if isinstance(thing, (*_CONTAINERS, *_GENERATORS)):
                raise SnapshotError(
                    f"{place} cannot be saved: it is a method of {kind_of(thing)}, and would still "
                    "belong to this object after a restore, which makes a copy of the object; look "
                    "the method up each time it is called"
                )


class ChainState(abc.ABC):
    """The state of a chain of wrappers, and of the environment inside them if `base` is true.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with all of its wrappers. It must have been reset, so that wrappers have the
        attributes that ``reset`` adds.
    base : bool
        Whether to walk through the attributes of the environment inside the wrappers, too.

    Attributes
    ----------
    owners : list of StateOwner
        The objects that own state, outermost wrapper first.
    unordered : str
        A message about a set whose order no trial can test; empty if none was found.
    scatters : bool
        Whether restored sets are iterated in another order than the saved ones. In trials, and in
        copies for audits, they are, to find steps that depend on the order.

    Raises
    ------
    SnapshotError
        A wrapper cannot be saved; the message names it and the attribute, and says what to do.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, base: bool) -> None:
        self._env = env
        self.unordered = ""
        self.scatters = False
        chain = links(env)
        self._links = {id(link) for link in chain}
        self._fingerprint_fields = describe_wrappers(env)
        self.owners: list[StateOwner] = []
        # Objects that are encoded as references, by the place where they were found.
        self._references: dict[str, Any] = {}
        self._seen: set[int] = set()
        foreign = False
        for link in [*visible(env), *chain[-1:]] if base else visible(env):
            reason = impossible(link)
            if reason is not None:
                name = qualified_name(type(link))
                raise SnapshotError(f"wrapper {name} cannot be saved: {reason}")
            # An environment may keep the game itself in an attribute called env.
            constant = CONSTANT - {"env"} if link is chain[-1] else CONSTANT
            fixed = {name: value for name, value in vars(link).items() if name in constant}
            name, names = type(link).__name__, state_names(link, within_others=foreign)
            foreign = foreign or not is_known(link)
            owner = StateOwner(name, type(link), always(link), names, fixed=fixed)
            if names != ():
                self.owners.append(owner)
            self._walk_link(owner, link)

    def restorer(self) -> Callable[[], None]:
        """Return a function that restores the present state of the chain, before its first reset.

        The function may be called several times. It removes attributes that the first reset
        creates, except handles, such as windows.

        Raises
        ------
        SnapshotError
            An attribute holds something that cannot be saved.
        """
        for owner in self.owners:
            owner.leave_out_missing()
        found = [vars(owner.locate()) for owner in self.owners]
        kept = [dict(attributes) for attributes in found]
        data = self.encoded()

        def restore() -> None:
            for attributes, before in zip(found, kept, strict=True):
                handles = {name: value for name, value in attributes.items() if is_handle(value)}
                attributes.clear()
                attributes.update(before | handles)
            # The data may refer to the generator of the environment, which may be missing now.
            make_generator(links(self._env)[-1])
            self.restore(self.decoded(data))

        return restore

    def fingerprint_fields(self) -> list[Any]:
        """Return the classes and arguments of the wrappers, outermost first, as JSON data."""
        return self._fingerprint_fields

    def reseed(self, seed: int) -> None:
        """Restart the owners' random generators from `seed`, except the base's ``np_random``."""
        if not self.owners:
            return
        own = vars(links(self._env)[-1]).get("_np_random")
        restart_generators(self.owners, own, seed)

    def encoded(self) -> bytes:
        """Return the values of all owners as bytes.

        Raises
        ------
        SnapshotError
            An attribute holds something that cannot be saved.
        """
        values = [owner.read() for owner in self.owners]
        try:
            return self._encode(values)
        except Exception as error:
            raise self._refused(values, error) from error

    def decoded(self, data: bytes) -> list[Any]:
        """Decode the values of all owners from `data`, which `encoded` returned.

        Raises
        ------
        StateFormatError
            The bytes are damaged, or belong to another chain.
        """
        values: list[Any] = self._decode(data)
        if not (
            type(values) in (list, tuple)
            and len(values) == len(self.owners)
            and all(map(StateOwner.fits, self.owners, values))
        ):
            raise StateFormatError("a state row does not belong to this chain of wrappers")
        if self.scatters:
            scatter_sets(values, {id(thing) for thing in self._references.values()})
        return values

    def look_for_sets(self, *, testable: bool = False) -> str:
        """Return a message about a set in the state, or ``""``; see `note_on_sets`."""
        notes = (
            note_on_sets(value, f"{owner.place}.{name}", testable=testable)
            for owner in self.owners
            for name, value in owner.items(owner.read())
        )
        return next(filter(None, notes), "")

    def restore(self, values: list[Any]) -> None:
        """Set the state of the owners to `values`, which `decoded` returned."""
        for owner, value in zip(self.owners, values, strict=True):
            owner.write(value)

    @abc.abstractmethod
    def _walk_link(self, owner: StateOwner, link: Any) -> None:
        """Walk through the attributes of `link`; `owner` reads and writes their values."""

    @abc.abstractmethod
    def _encode(self, values: list[Any]) -> bytes:
        """Return `values` as bytes."""

    @abc.abstractmethod
    def _decode(self, data: bytes) -> Any:
        """Return the values that `data` encodes."""

    @abc.abstractmethod
    def _unsaveable(self, place: str, value: Any, reason: Exception) -> SnapshotError:
        """Return the error for the attribute `place`, whose `value` cannot be saved."""

    def _refer(self, place: str, value: Any) -> str:
        """From now on, encode `value` as a reference; return a unique name of its place."""
        while place in self._references:
            place += "'"
        self._references[place] = value
        return place

    def _refused(self, values: list[Any], error: Exception) -> SnapshotError:
        """Find the attribute in `values` that cannot be saved, and return an error for it."""
        for owner, value in zip(self.owners, values, strict=True):
            for name, part in owner.items(value):
                try:
                    self._encode([part])
                except Exception as reason:
                    return self._unsaveable(f"{owner.place}.{name}", part, reason)
        return SnapshotError(f"the environment cannot be saved: {error}")


def columns_of(rows: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    """Stack the values of all `rows` by key.

    A key is left out unless its values are numbers or arrays, all with the same shape and dtype.
    """
    found: dict[str, NDArray[Any]] = {}
    for name, value in rows[0].items() if rows else ():
        if isinstance(value, bool | int | float | np.generic | np.ndarray):
            parts = [np.asarray(row.get(name)) for row in rows]
            if len({(part.shape, part.dtype) for part in parts}) == 1 and parts[0].dtype != object:
                found[name] = np.stack(parts)
    return found
