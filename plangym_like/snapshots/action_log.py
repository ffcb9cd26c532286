"""`ActionLogFormat`: encodes the start of an episode and every later action as bytes.

A log is a sequence of entries. Each is a tag byte and the fields of that tag, little-endian:

======  ====================================================================================
tag     what follows
======  ====================================================================================
``S``   uint32 length, then plain data: the fields of `Start`, each of which may be ``None``
``A``   an action with the space's shape and dtype: its packed bytes, whose number is fixed
``D``   an action with the space's shape but another dtype: its type character, then its bytes
``P``   uint32 length, then plain data: any other action
``R``   uint64: the seed with which the random generators were replaced
``C``   uint32 length, then plain data: an attribute that was set from outside
======  ====================================================================================

Every log begins with its only ``S`` entry. No entry's bytes are a prefix of another entry's. So one
log continues another if and only if its bytes begin with all bytes of the other.
"""

from __future__ import annotations

import contextlib
import copy
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from plangym_like.batch import spaces
from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.snapshots import plain_data

START, RESEED, CHANGE = b"S", b"R", b"C"
# The tags of actions.
ACTION, OTHER_DTYPE, PLAIN = b"A", b"D", b"P"
ACTIONS = (ACTION, OTHER_DTYPE, PLAIN)
# The entries of so many different numbers are kept.
_KEPT_ENTRIES = 1024
_LENGTH = struct.Struct("<cI")
_SEED = struct.Struct("<cQ")


class Start(NamedTuple):
    """How an episode began: from a seed, or from the random generator's state before the reset.

    `spawner` is what `random_state.spawner_of` returned for this generator. `carried` is what the
    chain takes over from the episode before, as `CarriedState.read` returned it.
    """

    seed: int | None
    generator: bytes | None
    options: dict[str, Any] | None
    spawner: tuple[Any, ...] | None = None
    carried: bytes | None = None


class Change(NamedTuple):
    """An attribute that was set from outside.

    `link` is the position of its owner in `links`, 0 for the outermost wrapper.
    """

    link: int
    name: str
    value: Any


class ActionLogFormat:
    """Writes and reads the action logs of one environment.

    Parameters
    ----------
    action_space : gymnasium.Space
        The space that most actions belong to; actions outside it can be written too.

    Attributes
    ----------
    action_nbytes : int
        The size in bytes of an action's entry (for a `Box`, of a float64 action); 0 if it varies.
    number : type, optional
        The type of actions that are single numbers of the space.

    Examples
    --------
    >>> logs = ActionLogFormat(gymnasium.spaces.Discrete(4))
    >>> log = logs.start(Start(7, None, None)) + logs.action(np.int64(2))[0]
    >>> [(tag, value) for tag, value, _ in logs.entries(log)][1]
    (b'A', np.int64(2))
    """

    def __init__(self, action_space: gymnasium.Space[Any]) -> None:
        leaves = spaces.leaves(action_space) if spaces.is_leaf(action_space) else None
        self._usual = leaves is not None
        self.action_nbytes = 0
        self.number: type[np.generic] | None = None
        self._entries: dict[Any, bytes] = {}
        if leaves is not None:
            self._shape, self._dtype = leaves[0]
            # The spaces' own samples of shape () are arrays in a `Box`, and numbers elsewhere.
            self._arrays = bool(self._shape) or isinstance(action_space, gymnasium.spaces.Box)
            if not self._arrays:
                self.number = self._dtype.type
            self._packed = _narrowest(action_space, self._dtype)
            self._is_narrowed = self._packed != self._dtype
            self._width = int(np.prod(self._shape)) * self._packed.itemsize
            self.action_nbytes = 1 + self._width
            if isinstance(action_space, gymnasium.spaces.Box):
                self.action_nbytes = 2 + 8 * int(np.prod(self._shape))

    def entry(self, event: Start | np.generic | bytes) -> bytes:
        """Return the entry for a reset or for an action of type `number`, or an entry itself."""
        if type(event) is bytes:
            return event
        return self.start(event) if type(event) is Start else self.action(event)[0]

    def start(self, start: Start) -> bytes:
        """Return the entry for a reset.

        Raises
        ------
        SnapshotError
            The options are not plain data.
        """
        try:
            data = plain_data.encode(tuple(start))
        except SnapshotError as error:
            raise SnapshotError(
                f"the options of reset, {start.options!r}, cannot be kept in a state row: {error}"
            ) from error
        return _LENGTH.pack(START, len(data)) + data

    def action(self, action: Any) -> tuple[bytes, Any]:
        """Return the entry for a step, and the action as `entries` will read it, a copy.

        A number and an array of shape () are the same action, and so are whole numbers of any type
        in a `Discrete` space.

        Raises
        ------
        SnapshotError
            The action is not plain data.
        """
        if self._usual:
            if not self._arrays:
                action = self._as_choice(action)
                if type(action) is self._dtype.type:  # it cannot change, so it needs no copy
                    entry = self._entries.get(action)
                    if entry is None:
                        entry = self._entry(action)
                        if len(self._entries) < _KEPT_ENTRIES:
                            self._entries[action] = entry
                    return entry, action
            elif type(action) is np.ndarray and not self._is_narrowed:  # the usual case
                if action.dtype == self._dtype and action.shape == self._shape:
                    return ACTION + action.tobytes(), action.copy()
            if isinstance(action, (np.ndarray, np.generic)) and action.shape == self._shape:
                if action.dtype == self._dtype or (
                    action.dtype.kind in "iuf" and action.dtype.isnative
                ):
                    return self._entry(action), self._formed(action.copy())
        data = plain_data.encode(action)
        return _LENGTH.pack(PLAIN, len(data)) + data, copy.deepcopy(action)

    def _entry(self, action: Any) -> bytes:
        """Return the entry for a step with numbers of the action space's shape."""
        if action.dtype == self._dtype:
            if not self._is_narrowed:
                return ACTION + bytes(action.tobytes())
            packed = action.astype(self._packed)
            if (packed == action).all():
                return ACTION + bytes(packed.tobytes())
        return OTHER_DTYPE + bytes(action.dtype.char.encode() + action.tobytes())

    def _as_choice(self, action: Any) -> Any:
        """Return `action` in the space's dtype if it is one whole number, else unchanged."""
        if type(action) is self._dtype.type:
            return action
        kind = getattr(getattr(action, "dtype", None), "kind", "")
        if type(action) is int or (kind in ("i", "u") and action.shape == ()):
            with contextlib.suppress(OverflowError):
                return self._dtype.type(int(action))
        return action

    def _formed(self, action: Any) -> Any:
        """Return `action` as an array or as a number, as the space's samples are."""
        return np.asarray(action) if self._arrays else action[()]

    def reseed(self, seed: int) -> bytes:
        """Return the entry for replacing the random generators with some made from `seed`."""
        return _SEED.pack(RESEED, seed)

    def change(self, change: Change) -> bytes:
        """Return the entry for an attribute that was set from outside.

        Raises
        ------
        SnapshotError
            The new value is not plain data.
        """
        data = plain_data.encode(tuple(change))
        return _LENGTH.pack(CHANGE, len(data)) + data

    def entries(self, log: bytes, start: int = 0) -> Iterator[tuple[bytes, Any, int]]:
        """Yield ``(tag, value, end)`` for each entry from byte `start` on.

        Each value is a new object; `end` is the index after the entry's last byte.

        Raises
        ------
        StateFormatError
            The bytes are not an action log.
        """
        while start < len(log):
            tag = log[start : start + 1]
            try:
                value, start = self._read(tag, log, start)
            except (struct.error, ValueError, TypeError) as error:
                raise StateFormatError(
                    f"the action log in a state row is damaged: {error}"
                ) from error
            yield tag, value, start

    def _read(self, tag: bytes, log: bytes, start: int) -> tuple[Any, int]:
        if tag == ACTION and self._usual:
            end = start + 1 + self._width
            packed = np.frombuffer(log[start + 1 : end], self._packed).reshape(self._shape)
            return self._formed(packed.astype(self._dtype)), end
        if tag == OTHER_DTYPE and self._usual:
            dtype = np.dtype(log[start + 1 : start + 2].decode("ascii"))
            if dtype.kind not in "iuf":
                raise ValueError(f"actions of dtype {dtype}")
            end = start + 2 + int(np.prod(self._shape)) * dtype.itemsize
            action = np.frombuffer(log[start + 2 : end], dtype).reshape(self._shape)
            return self._formed(action.copy()), end
        if tag == RESEED:
            _, seed = _SEED.unpack_from(log, start)
            return seed, start + _SEED.size
        if tag not in (START, PLAIN, CHANGE):
            raise ValueError(f"there are no entries of kind {tag!r}")
        _, length = _LENGTH.unpack_from(log, start)
        end = start + _LENGTH.size + length
        if end > len(log):
            raise ValueError("it ends too early")
        value = plain_data.decode(log[start + _LENGTH.size : end])
        kind: Any = _NAMED.get(tag)
        return value if kind is None else kind(*value), end


_NAMED = {START: Start, CHANGE: Change}


def _narrowest(space: gymnasium.Space[Any], dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the smallest unsigned dtype for elements of `space`, or `dtype` if none fits."""
    if isinstance(space, gymnasium.spaces.Discrete):
        first, last = int(space.start), int(space.start + space.n) - 1
    elif isinstance(space, gymnasium.spaces.MultiDiscrete) and space.nvec.size:
        first, last = int(np.min(space.start)), int(np.max(space.start + space.nvec)) - 1
    else:
        return dtype
    return np.dtype(np.min_scalar_type(last)) if first >= 0 else dtype
