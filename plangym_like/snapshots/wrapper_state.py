"""`WrapperState`: the state of the wrappers around an environment, as a fixed number of bytes.

The state of Gymnasium's own wrappers consists of the attributes that their ``step`` changes. The
state of a wrapper whose class has ``state_attributes = ("name", ...)`` consists of these
attributes. The state of any other wrapper consists of every attribute that is not configuration. If
an attribute is an object of an ordinary Python class, the attributes of this object are part of the
state too.

`NormalizeObservation` and `NormalizeReward` have their running statistics in the state, so a branch
changes only its own statistics; with ``update_running_mean`` false the statistics do not change.
`RecordEpisodeStatistics` is saved without its clock. So ``info["episode"]["t"]`` and ``time_queue``
depend on the process, and differ from run to run.

Data that a wrapper keeps in its class, its module or a C library is not part of the state. If a
wrapper and the environment share an array, the wrapper has a separate array after a restore; such a
wrapper must keep a copy.
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

from plangym_like.batch import spaces
from plangym_like.errors import SnapshotError, StateCapacityError, StateFormatError
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.chain_state import (
    ChainState,
    StateOwner,
    always,
    columns_of,
    held_objects,
    refuse_method_of_data,
)
from plangym_like.snapshots.chains import CONSTANT, links, reachable
from plangym_like.snapshots.configuration import (
    is_configuration,
    is_handle,
    is_ordinary,
    kind_of,
    own_pickling,
)
from plangym_like.states.rows import Row, padded

_NUMBER = np.dtype("<i8")
_ONLY_TIME_LIMIT = TimeLimit, ("_elapsed_steps",)
_NO_STEPS = -1
_SLACK = 256  # bytes reserved for an attribute without a value yet


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
        super().__init__(env, base=False)

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
            self._walk_object(place, value, _attribute(owner.locate, name))

    def _walk_object(self, place: str, value: Any, locate: Callable[[], Any]) -> None:
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
        refuse_method_of_data(place, value)
        for held in held_objects(value):
            self._walk_object(f"{place} -> {type(held).__name__}", held, always(held))
        if not is_configuration(value) and id(value) not in self._seen:
            owner = StateOwner(place, type(value), locate, None)
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
                self._walk_object(inner, thing, always(thing))
                self._refer(inner, thing)

    # The bytes

    def _encode(self, values: list[Any]) -> bytes:
        return plain_data.encode(tuple(values), self._known(), attributes=True)

    def _decode(self, data: bytes) -> Any:
        return plain_data.decode(data, self._known())

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
        The time limit, if no other wrapper has state. The state is then the number of steps that
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
        if [(owner.kind, owner.names) for owner in self.owners] == [_ONLY_TIME_LIMIT]:
            self.time_limit = self.owners[0].locate()
            self.nbytes = _NUMBER.itemsize
        elif self.owners:
            used = _NUMBER.itemsize + len(self.encoded())
            self.nbytes = padded(capacity or self._needed(used))
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
            return
        data = self.encoded()
        end = _NUMBER.itemsize + len(data)
        if end > self.nbytes:
            raise self._too_small(end)
        payload[:8].view(_NUMBER)[0] = len(data)
        payload[8:end] = np.frombuffer(data, np.uint8)
        payload[end : self.nbytes] = 0

    def write(self, payload: Row) -> None:
        """Set the wrappers to the state in `payload`; they share no memory with it.

        Restore the environment first: a wrapper may hold the environment's random generator.

        Raises
        ------
        StateFormatError
            The payload is damaged; nothing has changed.
        """
        if self.time_limit is not None:
            steps = int(payload[:8].view(_NUMBER)[0])
            self.time_limit._elapsed_steps = None if steps == _NO_STEPS else steps
            return
        self.restore(self._payload(payload))

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the numbers in `payloads` ``(N, nbytes)`` by name, as arrays ``(N, ...)``.

        ``elapsed_steps`` is the counter of the outermost `TimeLimit`; any other name is
        ``Wrapper.attribute``.
        """
        if self.time_limit is not None:
            steps = np.ascontiguousarray(payloads[:, :8]).view(_NUMBER)[:, 0]
            return {"elapsed_steps": steps.astype(np.int64)}
        return columns_of([self._named(payload) for payload in payloads] if self.nbytes else [])

    def _payload(self, payload: Row) -> list[Any]:
        """Decode the values of all owners from `payload`."""
        used = int(payload[:8].view(_NUMBER)[0])
        if not 0 <= used <= self.nbytes - _NUMBER.itemsize:
            raise StateFormatError(
                "the wrappers' part of a state row is damaged: its length is wrong"
            )
        return self.decoded(payload[8 : 8 + used].tobytes())

    def _named(self, payload: Row) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for owner, values in zip(self.owners, self._payload(payload), strict=True):
            for name, value in owner.items(values):
                if owner.kind is TimeLimit:
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


def _attribute(locate: Callable[[], Any], name: str) -> Callable[[], Any]:
    return lambda: getattr(locate(), name)
