"""The state of wrappers and environments: which objects own it, and their values as bytes.

The state of Gymnasium's own wrappers consists of the attributes that their ``step`` changes. The
state of a wrapper whose class has ``state_attributes = ("name", ...)`` consists of these
attributes. The state of any other wrapper consists of every attribute that is not configuration
(spaces, functions, classes and similar objects, see `plangym_like.snapshots.configuration`). If an
attribute is an object of an ordinary Python class, the attributes of this object are part of the
state too. Each object that has state gets a `StateOwner`.

`WrapperState` encodes the state of wrappers as plain data, from which no code runs. `ChainPickle`
pickles that of the environment and its wrappers.

`NormalizeObservation` and `NormalizeReward` have their running statistics in the state, so a branch
changes only its own statistics; with ``update_running_mean`` false the statistics do not change.
`RecordEpisodeStatistics` is saved without its clock. So ``info["episode"]["t"]`` and ``time_queue``
depend on the process, and differ from run to run.

What Python code keeps outside of these objects, in a class, a module, a closure or a cache, is not
state. If a wrapper and the environment share an array, the wrapper has a separate array after a
restore; such a wrapper must keep a copy.
"""

from __future__ import annotations

import abc
import enum
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.errors import SnapshotError, StateCapacityError, StateFormatError
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.chains import CONSTANT, links, note_on_sets, reachable, scatter_sets
from plangym_like.snapshots.configuration import (
    is_configuration,
    is_handle,
    is_ordinary,
    kind_of,
    own_pickling,
    qualified_name,
)
from plangym_like.snapshots.known_wrappers import (
    StateOwner,
    columns_of,
    describe_wrappers,
    impossible,
    is_known,
    restart_generators,
    state_names,
    visible,
)
from plangym_like.states.random_state import make_generator
from plangym_like.states.rows import Row, padded

_NUMBER = np.dtype("<i8")
_STEPS = "_elapsed_steps"
_NO_STEPS = -1
_SLACK = 256  # bytes reserved for an attribute without a value yet


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
        A message about a set whose order differs between copies; empty if none was found.
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
            # One that has its own metadata may change them in place.
            constant = CONSTANT - {"env", "metadata"} if link is chain[-1] else CONSTANT
            fixed = {name: value for name, value in vars(link).items() if name in constant}
            name, names = type(link).__name__, state_names(link, within_others=foreign)
            foreign = foreign or not is_known(link)
            owner = StateOwner(name, link, names, fixed)
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
        found = links(self._env)
        values = [value for owner in self.owners for _, value in owner.items(owner.read())]
        restart_generators(values, [vars(found[-1]).get("_np_random"), *found], seed)

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

    @abc.abstractmethod
    def decoded(self, data: bytes) -> list[Any]:
        """Decode the values of all owners from `data`, which `encoded` returned.

        Raises
        ------
        StateFormatError
            The bytes are damaged, or belong to another chain.
        """

    def look_for_sets(self) -> str:
        """Return a message about a set in the state, or ``""``; see `note_on_sets`."""
        notes = (
            note_on_sets(value, f"{owner.place}.{name}")
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


class WrapperValues(ChainState):
    """The values that all wrappers of a chain keep, as plain data.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with all of its wrappers.

    Raises
    ------
    SnapshotError
        A wrapper cannot be saved; the message names it and the attribute, and says what to do.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        # The owners and names of all attributes that are objects with state of their own.
        self._parts: list[tuple[StateOwner, str]] = []
        super().__init__(env, base=False)
        # What they are at first, and for each of them the first that is the same object.
        self._first_parts = [getattr(owner.locate(), name) for owner, name in self._parts]
        self._same = _first_of_each(self._first_parts)

    def encoded(self) -> bytes:
        if len(self._parts) > 1:
            self._check_parts()
        return super().encoded()

    def restore(self, values: list[Any]) -> None:
        """Set the state of the owners to `values`; put back objects that have changed places."""
        if len(self._parts) > 1 and self._parts_now() != self._same:
            for (owner, name), part in zip(self._parts, self._first_parts, strict=True):
                setattr(owner.locate(), name, part)
        super().restore(values)

    def _check_parts(self) -> None:
        """Raise `SnapshotError` if an attribute has become the object of another one."""
        for (owner, name), now, then in zip(
            self._parts, self._parts_now(), self._same, strict=True
        ):
            if now != then:
                first, other = self._parts[min(now, then)]
                raise SnapshotError(
                    f"{owner.place}.{name} and {first.place}.{other} were "
                    f"{'the same object' if now > then else 'two objects'} when the environment "
                    "was made, and rows do not hold that this has changed: keep a number or a text "
                    "that says which object is meant, or make the environment with "
                    "snapshot='replay'"
                )

    def _parts_now(self) -> list[int]:
        return _first_of_each([getattr(owner.locate(), name, None) for owner, name in self._parts])

    def _walk_link(self, owner: StateOwner, link: Any) -> None:
        if owner.names is None:
            self._walk_attributes(owner, link)
        elif getattr(owner.kind, "state_attributes", None) is None:
            for name, value in vars(link).items():
                if name not in CONSTANT and callable(value):
                    locate = _attribute(owner.locate, name)
                    self._walk_object(f"{owner.place}.{name}", value, locate)

    def _walk_attributes(self, owner: StateOwner, thing: Any) -> None:
        """Walk through the attributes of `thing`, and exclude configuration from the state."""
        self._seen.add(id(thing))
        if not is_ordinary(owner.kind) or own_pickling(owner.kind):
            raise self._unsaveable(owner.place, thing)
        for name, value in vars(thing).items():
            if name in CONSTANT:
                owner.fixed[name] = value
                continue
            if is_handle(value):
                continue
            place = f"{owner.place}.{name}"
            if isinstance(value, enum.Enum) or plain_data.is_plain_kind(value):
                self._walk_containers(place, value)
                continue
            if is_configuration(value) or id(value) in self._links:
                owner.fixed[name] = value
            else:
                owner.constant |= {name}
                self._parts.append((owner, name))
            self._walk_object(place, value, _attribute(owner.locate, name))

    def _walk_object(self, place: str, value: Any, locate: Callable[[], Any] | None = None) -> None:
        """Add `value` to the owners of state, unless its type is one that steps do not change.

        Raises
        ------
        SnapshotError
            The state of `value` cannot be saved.
        """
        if id(value) in self._links:
            return
        if isinstance(value, gymnasium.Env):
            raise SnapshotError(
                f"{place} cannot be saved: it is another environment, outside the chain of "
                "wrappers, whose state would be missing from the row; use one environment"
            )
        if isinstance(value, types.MethodType) and is_ordinary(type(value.__self__)):
            held = value.__self__
            self._walk_object(f"{place} -> {type(held).__name__}", held)
        if not is_configuration(value) and id(value) not in self._seen:
            owner = StateOwner(place, value, None, locate=locate)
            self.owners.append(owner)
            self._walk_attributes(owner, value)

    def _walk_containers(self, place: str, value: Any) -> None:
        """Register configuration in the container `value`, so that it is encoded as references."""
        for inner, thing in reachable(value, place, self._seen, into_objects=False):
            if isinstance(thing, enum.Enum):
                for member in type(thing):
                    if not any(member is known for known in self._references.values()):
                        self._refer(inner, member)
            elif not plain_data.is_plain_kind(thing):
                if not (is_configuration(thing) or id(thing) in self._links):
                    raise self._unsaveable(inner, thing)
                self._walk_object(inner, thing)
                self._refer(inner, thing)

    # The bytes

    def _encode(self, values: list[Any]) -> bytes:
        return plain_data.encode(tuple(values), self._known())

    def decoded(self, data: bytes) -> list[Any]:
        values = plain_data.decode(data, self._known())
        if not (
            type(values) is tuple
            and len(values) == len(self.owners)
            and all(map(StateOwner.fits, self.owners, values))
        ):
            raise StateFormatError("a state row does not belong to this chain of wrappers")
        if self.scatters:
            scatter_sets(values, {id(thing) for thing in self._references.values()})
        return [*values]

    def _known(self) -> list[Any]:
        """Return the objects that are encoded as references, in a fixed order."""
        base: Any = links(self._env)[-1]
        own = vars(base).get("_np_random")
        return [base if own is None else own, *self._references.values()]

    def _unsaveable(
        self, place: str, value: Any, reason: Exception | str | None = None
    ) -> SnapshotError:
        return SnapshotError(
            f"{place} cannot be saved: {reason or kind_of(value) + ' is not plain data'}; keep the "
            "state of a wrapper in numbers, strings, arrays, lists, dicts, deques or numpy "
            "Generators, or name the attributes that are its state in its class: "
            "state_attributes = ('name', ...); or make the environment with snapshot='replay'"
        )

    def _needed(self, used: int) -> int:
        """Return the number of bytes to reserve, if `used` bytes are used after a reset."""
        needed = _NUMBER.itemsize + _SLACK
        for owner in self.owners:
            thing, values = owner.locate(), owner.read()
            if owner.names is None:
                needed += 2 * self._length(values) + 4 * _SLACK
            for name, value in owner.items(values):
                if type(value) is deque:
                    length, room = value.maxlen, 16
                    if length is None:
                        length, room = getattr(thing, "delay", 0) + 1, _nbytes_of_one(thing)
                    needed += length * max([room, *map(self._length, value)])
                elif value is None:
                    needed += _nbytes_of_one(thing) if owner.names is None else _SLACK
                elif owner.names is not None:
                    if "." in name and isinstance(value, np.ndarray | np.floating):
                        # Statistics have the dtype of observations at first, but may become
                        # float64.
                        value = np.asarray(value, np.float64)
                    needed += self._length(value)
        return max(needed, used)

    def _length(self, value: Any) -> int:
        return len(plain_data.encode(value, self._known()))


class WrapperState(WrapperValues):
    """The state of all wrappers of a chain, as a fixed number of bytes.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with all of its wrappers. It must have been reset, so that wrappers have the
        attributes that ``reset`` adds.
    capacity : int, optional
        Bytes reserved for the state. By default, at least its current size, with queues counted as
        full; twice the size is reserved for wrappers from outside Gymnasium, whose state may grow.

    Attributes
    ----------
    nbytes : int
        Bytes reserved for the state; 0 if no wrapper has state. Do not call `read` or `write` then.
    time_limit : gymnasium.wrappers.TimeLimit or None
        The time limit, if there is one only. The state then begins with the number of steps that
        it has counted, a little-endian int64; -1 before the first reset.

    Raises
    ------
    SnapshotError
        A wrapper cannot be saved; the message names it and the attribute, and says what to do.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], capacity: int | None = None) -> None:
        super().__init__(env)
        self.unordered = self.look_for_sets()
        self.time_limit: Any = None
        self.nbytes: int = 0
        limits = [each for each in self.owners if each.kind is TimeLimit]
        if len(limits) == 1:
            (limit,) = limits
            self.time_limit, self.nbytes = limit.locate(), _NUMBER.itemsize
            limit.leave_out(_STEPS)
            if limit.names == ():
                self.owners.remove(limit)
        # Where the state of the other wrappers begins: its length, and its bytes.
        self._others_at = self.nbytes
        if self.owners:
            used = self.nbytes + _NUMBER.itemsize + len(self.encoded())
            self.nbytes = padded(capacity or self.nbytes + self._needed(used))
            if used > self.nbytes:
                raise self._too_small(used)

    def read(self, payload: Row) -> None:
        """Read the state of the wrappers into the first `nbytes` bytes of `payload`.

        Raises
        ------
        SnapshotError
            The value of an attribute is no longer plain data.
        StateCapacityError
            The state has grown beyond `nbytes`.
        """
        if self.time_limit is not None:
            steps = self.time_limit._elapsed_steps
            payload[:8].view(_NUMBER)[0] = _NO_STEPS if steps is None else steps
        if not self.owners:
            return
        place = payload[self._others_at : self.nbytes]
        data = self.encoded()
        end = _NUMBER.itemsize + len(data)
        if end > len(place):
            raise self._too_small(self._others_at + end)
        place[:8].view(_NUMBER)[0] = len(data)
        place[8:end] = np.frombuffer(data, np.uint8)
        place[end:] = 0

    def write(self, payload: Row) -> None:
        """Set the wrappers to the state in `payload`; they share no memory with it.

        Restore the environment first: a wrapper may hold the environment's random generator.

        Raises
        ------
        StateFormatError
            The payload is damaged; nothing has changed.
        """
        values = self._payload(payload) if self.owners else []
        if self.time_limit is not None:
            steps = int(payload[:8].view(_NUMBER)[0])
            self.time_limit._elapsed_steps = None if steps == _NO_STEPS else steps
        self.restore(values)

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the numbers in `payloads` ``(N, nbytes)`` by name, as arrays ``(N, ...)``.

        ``elapsed_steps`` is the counter of the outermost `TimeLimit`; any other name is
        ``Wrapper.attribute``.
        """
        found = {}
        if self.time_limit is not None:
            steps = np.ascontiguousarray(payloads[:, :8]).view(_NUMBER)[:, 0]
            found["elapsed_steps"] = steps.astype(np.int64)
        if not self.owners:
            return found
        return {**found, **columns_of([self._named(payload) for payload in payloads])}

    def _payload(self, payload: Row) -> list[Any]:
        """Decode the values of all owners from `payload`."""
        place = payload[self._others_at : self.nbytes]
        used = int(place[:8].view(_NUMBER)[0])
        if not 0 <= used <= len(place) - _NUMBER.itemsize:
            raise StateFormatError(
                "the wrappers' part of a state row is damaged: its length is wrong"
            )
        return self.decoded(place[8 : 8 + used].tobytes())

    def _named(self, payload: Row) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for owner, values in zip(self.owners, self._payload(payload), strict=True):
            for name, value in owner.items(values):
                if owner.kind is TimeLimit and name == _STEPS:
                    named.setdefault("elapsed_steps", _NO_STEPS if value is None else value)
                else:
                    named.setdefault(f"{owner.place}.{name}", value)
        return named

    def _too_small(self, used: int) -> StateCapacityError:
        wrappers = ", ".join(dict.fromkeys(owner.place for owner in self.owners))
        return StateCapacityError(
            f"the state of the wrappers ({wrappers}) takes {used} bytes, but {self.nbytes} are "
            f"reserved; make the environment with state_capacity={padded(2 * used)}"
        )


def _nbytes_of_one(wrapper: Any) -> int:
    """Return the size in bytes of an observation or action, whichever is larger.

    An attribute that is ``None`` now may hold one later.
    """
    lengths = [0]
    for name in ("observation_space", "action_space"):
        space = getattr(wrapper, name, None)
        parts = [] if space is None else spaces.leaves(space)
        lengths.append(sum(int(np.prod(shape)) * kind.itemsize + 64 for shape, kind in parts))
    return max(lengths)


def _first_of_each(things: list[Any]) -> list[int]:
    """Return for each of `things` the index of the first that is the same object."""
    first: dict[int, int] = {}
    return [first.setdefault(id(thing), index) for index, thing in enumerate(things)]


def _attribute(locate: Callable[[], Any], name: str) -> Callable[[], Any]:
    return lambda: getattr(locate(), name)
