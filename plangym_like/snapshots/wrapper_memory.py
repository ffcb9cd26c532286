"""The memory of the wrappers around an environment, as a fixed number of bytes.

What counts as memory: of Gymnasium's own wrappers the attributes that their source changes while
it steps; of a wrapper whose class has ``state_attributes = ("name", ...)`` those; of any other
wrapper every attribute that is not configuration. An attribute that is an object of an ordinary
Python class is looked into: its attributes are memory then.

`NormalizeObservation` and `NormalizeReward` have their running statistics in the state, so a
branch changes none but its own; with ``update_running_mean`` false the statistics stay what they
are. `RecordEpisodeStatistics` is saved without its clock: ``info["episode"]["t"]`` and
``time_queue`` belong to this process, the only values that differ from run to run.

Not seen is what a wrapper keeps in its class, its module or a C library, and an array of its own
that is at the same time the environment's: such a wrapper has to keep a copy.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from plangym_like import spaces
from plangym_like.errors import SnapshotError, StateCapacityError, StateFormatError
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.configuration import (
    describe,
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
from plangym_like.states import Row, padded

_NUMBER = np.dtype("<i8")
_NO_STEPS = -1
_SLACK = 256
_MAX_DEPTH = 60


class WrapperMemory:
    """What all wrappers of a chain remember.

    Parameters
    ----------
    env : gymnasium.Env
        The chain, reset at least once, so that its wrappers hold what they hold in an episode.
    capacity : int, optional
        Bytes reserved for the memory; by default what is used now, with queues counted as full,
        and twice that and more where a wrapper is not Gymnasium's.

    Attributes
    ----------
    nbytes : int
        Bytes that the memory takes; 0 where no wrapper has any.
    time_limit : gymnasium.wrappers.TimeLimit or None
        The wrapper whose step counter is the whole memory; then that is one little-endian int64,
        -1 standing for ``None``.

    Raises
    ------
    SnapshotError
        A wrapper cannot be saved; the message names it, the attribute, and a way out.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], capacity: int | None = None) -> None:
        self._wrappers = list(chain(env))
        self._env = env
        self._links = {id(link) for link in (*self._wrappers, env.unwrapped)}
        self._known: list[Any] = []
        self._holders: list[MemoryHolder] = []
        self._seen: set[int] = set()
        for wrapper in self._wrappers:
            self._add_wrapper(wrapper)
        self._holders = [holder for holder in self._holders if holder.names != ()]
        self._meaning = describe_wrappers(env)
        self.time_limit: Any = None
        self.nbytes: int = 0
        if len(self._holders) == 1 and self._holders[0].kind is TimeLimit:
            self.time_limit = self._holders[0].locate()
            self.nbytes = _NUMBER.itemsize
        elif self._holders:
            used = _NUMBER.itemsize + len(self._encoded())
            self.nbytes = padded(capacity or self._needed(used))
            if used > self.nbytes:
                raise self._too_small(used)

    def meaning(self) -> list[Any]:
        """Return classes and arguments of the wrappers, outermost first, as JSON-able values."""
        return self._meaning

    def read(self, payload: Row) -> None:
        """Write the memory into `payload`, ``(nbytes,)`` or longer.

        Raises
        ------
        SnapshotError
            An attribute has become something that is not plain data.
        StateCapacityError
            The memory has grown beyond `nbytes`.
        """
        if self.time_limit is not None:
            steps = self.time_limit._elapsed_steps
            payload[:8].view(_NUMBER)[0] = _NO_STEPS if steps is None else steps
            return
        if not self.nbytes:
            return
        data = self._encoded()
        end = _NUMBER.itemsize + len(data)
        if end > self.nbytes:
            raise self._too_small(end)
        payload[:8].view(_NUMBER)[0] = len(data)
        payload[8:end] = np.frombuffer(data, np.uint8)
        payload[end : self.nbytes] = 0

    def write(self, payload: Row) -> None:
        """Make the memory in `payload` the wrappers' own; they share nothing with it.

        The base's state has to be written first: a wrapper may draw from the base's generator.

        Raises
        ------
        StateFormatError
            The payload is damaged; nothing has changed then.
        """
        if self.time_limit is not None:
            steps = int(payload[:8].view(_NUMBER)[0])
            self.time_limit._elapsed_steps = None if steps == _NO_STEPS else steps
            return
        if not self.nbytes:
            return
        for holder, memory in zip(self._holders, self._decoded(payload), strict=True):
            holder.write(memory)

    def reseed(self, seed: int) -> None:
        """Restart every random generator that a wrapper keeps for itself from `seed`."""
        if self.time_limit is not None or not self.nbytes:
            return
        restart_generators(self._holders, self._externals()[0], seed)

    def fields(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the parts of `payloads` ``(N, nbytes)`` that are numbers, each ``(N, ...)``.

        ``elapsed_steps`` is the outermost `TimeLimit`'s counter; any other part is called
        ``Wrapper.attribute``.
        """
        if self.time_limit is not None:
            steps = np.ascontiguousarray(payloads[:, :8]).view(_NUMBER)[:, 0]
            return {"elapsed_steps": steps.astype(np.int64)}
        rows = [self._named(payload) for payload in payloads] if self.nbytes else []
        found: dict[str, NDArray[Any]] = {}
        for name in rows[0] if rows else ():
            parts = [np.asarray(row.get(name)) for row in rows]
            if len({(part.shape, part.dtype) for part in parts}) == 1 and parts[0].dtype != object:
                found[name] = np.stack(parts)
        return found

    # What is memory

    def _add_wrapper(self, wrapper: gymnasium.Wrapper[Any, Any, Any, Any]) -> None:
        kind = type(wrapper)
        reason = impossible(wrapper)
        if reason is not None:
            raise SnapshotError(f"wrapper {qualified_name(kind)} cannot be saved: {reason}")
        names = memory_of(wrapper)
        if names is None:
            self._open(kind.__name__, wrapper, _constant(wrapper))
            return
        self._holders.append(MemoryHolder(kind.__name__, kind, _constant(wrapper), names))
        if getattr(kind, "state_attributes", None) is not None:
            return
        for name, value in vars(wrapper).items():
            if name not in CONSTANT and callable(value):
                place = f"{kind.__name__}.{name}"
                self._leave_alone(place, value, _attribute(_constant(wrapper), name))

    def _open(self, place: str, thing: Any, locate: Callable[[], Any]) -> None:
        """Count the attributes of `thing` as memory, but for those that are configuration."""
        if id(thing) in self._seen:
            return
        self._seen.add(id(thing))
        if not is_ordinary(type(thing)) or own_pickling(type(thing)):
            raise unsaveable(place, thing)
        holder = MemoryHolder(place, type(thing), locate, None)
        self._holders.append(holder)
        for name, value in vars(thing).items():
            if name in CONSTANT or is_handle(value):
                continue
            inner = f"{place}.{name}"
            if isinstance(value, enum.Enum) or plain_data.is_plain_kind(value):
                self._look_into(inner, value, 0)
                continue
            if is_configuration(value) or id(value) in self._links:
                holder.fixed[name] = value
            else:
                holder.opened.add(name)
            self._leave_alone(inner, value, _attribute(locate, name))

    def _look_into(self, place: str, value: Any, depth: int) -> None:
        """Note the configuration inside plain containers; it stands for itself in the bytes."""
        if depth > _MAX_DEPTH:
            raise SnapshotError(f"{place} cannot be saved: it is nested too deep, or holds itself")
        if isinstance(value, enum.Enum):
            if not any(value is thing for thing in self._known):
                self._known += list(type(value))
        elif isinstance(value, dict):
            for key, item in value.items():
                self._look_into(place, key, depth + 1)
                self._look_into(f"{place}[{key!r}]", item, depth + 1)
        elif isinstance(value, set | frozenset):
            for item in sorted(value, key=lambda item: repr(describe(item))):
                self._look_into(place, item, depth + 1)
        elif isinstance(value, list | tuple | deque):
            for item in value:
                self._look_into(place, item, depth + 1)
        elif not plain_data.is_plain_kind(value):
            if not (is_configuration(value) or id(value) in self._links):
                raise unsaveable(place, value)
            self._leave_alone(place, value, _constant(value))
            self._known.append(value)

    def _leave_alone(self, place: str, value: Any, locate: Callable[[], Any]) -> None:
        """Check that `value` needs no saving, or open it where it is an ordinary object."""
        if id(value) in self._links:
            return
        if isinstance(value, gymnasium.Env):
            raise SnapshotError(
                f"{place} cannot be saved: it is another environment, outside the chain of "
                "wrappers, whose state would be missing from the row; use one environment"
            )
        for held in held_objects(value):
            self._leave_alone(f"{place} -> {type(held).__name__}", held, _constant(held))
        if not is_configuration(value):
            self._open(place, value, locate)

    # The bytes

    def _externals(self) -> list[Any]:
        """Return the objects that stand for themselves in the bytes, in a fixed order."""
        base: Any = self._env.unwrapped  # where there are several copies of it, the current one
        own = vars(base).get("_np_random")
        return [base if own is None else own, *self._known]

    def _encoded(self) -> bytes:
        memories = tuple([holder.read() for holder in self._holders])
        try:
            return plain_data.encode(memories, self._externals())
        except SnapshotError as error:
            raise self._culprit(memories, error) from error

    def _decoded(self, payload: Row) -> tuple[Any, ...]:
        used = int(payload[:8].view(_NUMBER)[0])
        if not 0 <= used <= self.nbytes - _NUMBER.itemsize:
            raise StateFormatError("the wrappers' part of a state row is damaged: its length")
        memories = plain_data.decode(payload[8 : 8 + used].tobytes(), self._externals())
        if not (
            type(memories) is tuple
            and len(memories) == len(self._holders)
            and all(map(MemoryHolder.fits, self._holders, memories))
        ):
            raise StateFormatError("the wrappers' part of a state row is not of these wrappers")
        return memories

    def _culprit(self, memories: tuple[Any, ...], error: SnapshotError) -> SnapshotError:
        for holder, memory in zip(self._holders, memories, strict=True):
            for name, value in holder.items(memory):
                try:
                    plain_data.encode(value, self._externals())
                except SnapshotError as reason:
                    return unsaveable(f"{holder.place}.{name}", value, str(reason))
        return SnapshotError(f"the memory of the wrappers cannot be saved: {error}")

    def _named(self, payload: Row) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for holder, memory in zip(self._holders, self._decoded(payload), strict=True):
            for name, value in holder.items(memory):
                if holder.kind is TimeLimit:
                    named.setdefault("elapsed_steps", _NO_STEPS if value is None else value)
                elif isinstance(value, bool | int | float | np.generic | np.ndarray):
                    named.setdefault(f"{holder.place}.{name}", value)
        return named

    # How many there are

    def _needed(self, used: int) -> int:
        needed = _NUMBER.itemsize + _SLACK
        for holder in self._holders:
            thing, memory = holder.locate(), holder.read()
            if holder.names is None:
                needed += 2 * self._length(memory) + 4 * _SLACK
            for name, value in holder.items(memory):
                if type(value) is deque:
                    length, room = value.maxlen, 16
                    if length is None:
                        length, room = getattr(thing, "delay", 0) + 1, _nbytes_of_one(thing)
                    needed += length * max([room, *map(self._length, value)])
                elif value is None:
                    needed += _nbytes_of_one(thing) if holder.names is None else _SLACK
                elif holder.names is not None:
                    if "." in name and isinstance(value, np.ndarray | np.floating):
                        # Statistics begin in the observations' type and may go on in float64.
                        value = np.asarray(value, np.float64)
                    needed += self._length(value)
        return max(needed, used)

    def _length(self, value: Any) -> int:
        return len(plain_data.encode(value, self._externals()))

    def _too_small(self, used: int) -> StateCapacityError:
        wrappers = ", ".join(dict.fromkeys(holder.place for holder in self._holders))
        return StateCapacityError(
            f"the memory of the wrappers ({wrappers}) takes {used} bytes, but {self.nbytes} are "
            f"reserved; make the environment with state_capacity={padded(2 * used)}"
        )


def unsaveable(place: str, value: Any, reason: str | None = None) -> SnapshotError:
    """Return the error that says why `value` cannot be saved, and what to do about it."""
    return SnapshotError(
        f"{place} cannot be saved: {reason or kind_of(value) + ' is not plain data'}; keep what a "
        "wrapper remembers in numbers, strings, arrays, lists, dicts, deques or numpy Generators, "
        "or name the attributes that are memory in its class: state_attributes = ('name', ...)"
    )


def _nbytes_of_one(wrapper: Any) -> int:
    """Return how long an observation or an action may be, for what is not there yet."""
    lengths = [0]
    for name in ("observation_space", "action_space"):
        space = getattr(wrapper, name, None)
        parts = [] if space is None else spaces.leaves(space) or []
        lengths.append(sum(int(np.prod(shape)) * kind.itemsize + 64 for shape, kind in parts))
    return max(lengths)


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _attribute(locate: Callable[[], Any], name: str) -> Callable[[], Any]:
    return lambda: getattr(locate(), name)
