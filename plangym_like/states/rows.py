"""State rows: layout, header, fingerprint and checksum.

A row has ``state_nbytes`` contiguous bytes: a header of 32 bytes, and a payload that the family
defines.

========  =========  ==========================================================================
bytes     type       meaning
========  =========  ==========================================================================
0 to 3    char[4]    ``PLS1``: a state row of format 1
4 to 7    char[4]    the family, for example ``ATAR``
8 to 15   uint64     fingerprint of the payload's meaning
16 to 23  uint64     bytes of payload in use (the rest of the row is zero)
24 to 31  uint64     checksum of the payload; 0 in families that need none
========  =========  ==========================================================================
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

from plangym_like.errors import (
    InputError,
    StateFormatError,
    StateMismatchError,
)

Row = NDArray[np.uint8]
# One row, an array of rows ``(N, state_nbytes)``, or a sequence of rows.
States = Row | Sequence[Row]

HEADER_NBYTES = 32
MAGIC = b"PLS1"
# The fields that all rows have in common, the bytes in use, and the checksum.
_HEAD = struct.Struct("=16sQQ")
_NUMBER = struct.Struct("=Q")
_BYTE = np.dtype(np.uint8)
# NumPy copies a header faster as one value than as four words.
_HEADER = np.dtype((np.void, HEADER_NBYTES))
# The constants of XXH64, and the first values of its four sums.
_XXH = np.array(
    [
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    ],
    np.uint64,
)
_XXH_FIRST = np.stack([_XXH[:1] + _XXH[1:2], _XXH[1:2], 0 * _XXH[:1], 0 - _XXH[:1]])
# NumPy hashes rows of more words no faster than XXH64 does one by one.
_SHORT_WORDS = 32
_known_fingerprints: dict[int, str] = {}
_session_key: bytes | None = None


def session_key() -> bytes:
    """Return the secret key (32 bytes) that tags the pickled rows of this session.

    A session is a process together with its workers and Ray actors.
    """
    global _session_key
    if _session_key is None:
        _session_key = os.urandom(32)
    return _session_key


def adopt_session_key(key: bytes) -> None:
    """Use `key`, the key of the session that this process belongs to."""
    global _session_key
    _session_key = bytes(key)


def padded(nbytes: int) -> int:
    """Return `nbytes` rounded up to whole 64-bit words."""
    return (nbytes + 7) // 8 * 8


class StateFormat:
    """The format of one environment's state rows, with methods to make and check rows.

    Parameters
    ----------
    family : str
        Four ASCII letters.
    fingerprint_fields : mapping
        Everything that determines the payload's meaning (ids, digests, versions, dynamics). The
        fingerprint is a hash of these fields, the family and the width; environments can share rows
        if and only if their fingerprints are equal.
    payload_nbytes : int
        Bytes reserved for the payload.
    checksum : bool
        Whether rows carry a checksum of their payload.
    variable : bool
        Whether payloads may be shorter than `payload_nbytes`.
    """

    def __init__(
        self,
        family: str,
        fingerprint_fields: Mapping[str, Any],
        payload_nbytes: int,
        *,
        checksum: bool = False,
        variable: bool = False,
    ) -> None:
        self.family = family
        self.fingerprint_fields = json.dumps(fingerprint_fields, sort_keys=True, default=str)
        self.payload_nbytes = padded(payload_nbytes)
        self.checksum = checksum
        self.variable = variable
        self.state_nbytes = HEADER_NBYTES + self.payload_nbytes
        text = f"{family} {self.state_nbytes} {self.fingerprint_fields}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        self.fingerprint = int.from_bytes(digest, "little")
        _known_fingerprints[self.fingerprint] = self.fingerprint_fields
        header = np.zeros(4, np.uint64)
        header.view(np.uint8)[:8] = np.frombuffer(MAGIC + family.encode("ascii"), np.uint8)
        header[1] = self.fingerprint
        header[2] = self.payload_nbytes
        self.header = header
        self.header_bytes = header.view(np.uint8)
        self._head = header.tobytes()
        self._fields = self._head[:16]
        self._tiled = (1, self._head)
        self._shape = (self.state_nbytes,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateFormat) and bool(
            self.fingerprint == other.fingerprint and self.family == other.family
        )

    def __hash__(self) -> int:
        return self.fingerprint

    def seal(self, rows: Row) -> None:
        """Write the checksums of `rows` ``(N, state_nbytes)``, if the format has checksums."""
        if self.checksum:
            rows[:, 24:HEADER_NBYTES].view(np.uint64)[:, 0] = _checksums(rows)

    def seal_row(self, row: Row) -> None:
        """Write the checksum of one row ``(state_nbytes,)``, if the format has checksums."""
        if self.checksum:
            _NUMBER.pack_into(row.data, 24, _checksum(row))

    def check(self, states: Any, *, sums: bool = True) -> Row:
        """Return `states` as rows ``(N, state_nbytes)`` after checking all of them at once.

        `states` may be one row, a 2-D array, or a sequence of rows. ``sums=False`` leaves the
        checksums, which take most of the time, to `verify`.

        Raises
        ------
        StateFormatError
            The type, size, header or checksum is wrong.
        StateMismatchError
            The rows belong to another environment, version or configuration.
        """
        rows = self._as_rows(states)
        heads = rows[:, :HEADER_NBYTES]
        if not self.variable and not self.checksum:
            if heads.view(_HEADER).tobytes() == self._headers(len(rows)):
                return rows
        words = heads.view(np.uint64)
        wanted = 2 if self.variable else 3
        if not (words[:, :wanted] == self.header[:wanted]).all():
            self._refuse_foreign(rows)
            index = int(np.argmax((words[:, :wanted] != self.header[:wanted]).any(axis=1)))
            begins_right = rows[index, : len(MAGIC)].tobytes() == MAGIC
            raise self._damaged(index, "its length" if begins_right else "its header")
        if self.variable and (words[:, 2] > self.payload_nbytes).any():
            raise self._damaged(int(np.argmax(words[:, 2] > self.payload_nbytes)), "its length")
        if self.checksum:
            if sums:
                self.verify(rows)
        elif words[:, 3].any():
            raise self._damaged(int(np.argmax(words[:, 3] != 0)), "its header")
        return rows

    def check_row(self, state: Any) -> Row:
        """Return `state` as a single row ``(state_nbytes,)``, after the same checks as `check`.

        Raises
        ------
        InputError
            There is not exactly one row.
        """
        # Most rows of a search need only these quick tests; `check` explains what is wrong.
        is_usual = type(state) is np.ndarray and state.shape == self._shape
        if is_usual and state.dtype == _BYTE and state.strides == (1,):
            row: Row = state
            if self.checksum:
                memory, full = state.data, self.payload_nbytes
                fields, used, checksum = _HEAD.unpack_from(memory)
                fits = used == full or (self.variable and used < full)
                if fields == self._fields and fits:
                    payload = memory[HEADER_NBYTES : HEADER_NBYTES + used]
                    if checksum == xxh64_intdigest(payload, used):
                        return row
            elif not self.variable:
                words = row.view(np.uint64)
                if words.flags.aligned and words[:4].tobytes() == self._head:
                    return row
        rows = self.check(state)
        if len(rows) != 1:
            raise InputError(f"expected one state row, got {len(rows)}; step_batch takes several")
        only: Row = rows[0]
        return only

    def verify(self, rows: Row, first: int = 0) -> None:
        """Raise `StateFormatError` if a checksum is wrong; its message names the row.

        In the message, the first of `rows` has the number `first`.
        """
        wrong = rows[:, 24:HEADER_NBYTES].view(np.uint64)[:, 0] != _checksums(rows)
        if wrong.any():
            raise self._damaged(first + int(np.argmax(wrong)), "its checksum")

    def _headers(self, count: int) -> bytes:
        """Return `count` headers without checksums, for payloads of full length."""
        tiled = self._tiled
        if tiled[0] != count:
            tiled = self._tiled = (count, self.header.tobytes() * count)
        return tiled[1]

    def _as_rows(self, states: Any) -> Row:
        given = states
        if not isinstance(states, np.ndarray) or states.dtype == object:
            try:
                stacked = np.stack([np.asarray(row) for row in states])
                if stacked.dtype == object:
                    raise TypeError("not all rows are arrays")
            except (TypeError, ValueError) as error:
                raise StateFormatError(
                    "states must be uint8 rows of equal width, and no row may be missing; "
                    f"got an object of class {type(states).__name__}{_hint(states)}"
                ) from error
            states = stacked
        if states.dtype != np.uint8:
            raise StateFormatError(
                f"state rows are uint8 arrays, got dtype {states.dtype}{_hint(given)}"
            )
        if states.ndim == 1:
            states = states[None]
        if states.ndim != 2 or states.shape[1] != self.state_nbytes:
            if states.ndim == 2 and states.shape[1] >= HEADER_NBYTES:
                self._refuse_foreign(states)
            raise StateFormatError(
                f"a state row of this environment has {self.state_nbytes} bytes, "
                f"got an array of shape {states.shape}"
            )
        # Rows are read as 64-bit words, which must be aligned. The flag is cheaper to read than the
        # address: `ctypes` takes 3 us.
        if not states.flags.c_contiguous or not states.view(np.uint64).flags.aligned:
            states = np.array(states, order="C")
        rows: Row = states
        return rows

    def _refuse_foreign(self, rows: Row) -> None:
        """Raise `StateMismatchError` if some rows, of any width, are of another environment."""
        heads = np.ascontiguousarray(rows[:, :HEADER_NBYTES])
        are_rows = (heads[:, : len(MAGIC)] == np.frombuffer(MAGIC, np.uint8)).all(axis=1)
        words = heads.view(np.uint64)
        foreign = are_rows & (words[:, :2] != self.header[:2]).any(axis=1)
        if foreign.any():
            index = int(np.argmax(foreign))
            family = heads[index, 4:8].tobytes().decode("ascii", "replace")
            fingerprint = int(words[index, 1])
            known = _known_fingerprints.get(fingerprint, f"fingerprint {fingerprint:016x}")
            raise mismatch(
                f"state row {index} is", self.family, self.fingerprint_fields, family, known
            )

    @staticmethod
    def _damaged(index: int, what: str) -> StateFormatError:
        return StateFormatError(
            f"state row {index} is damaged: {what} is wrong. Its bytes were changed, or it was "
            "never filled with a state of this version of the library"
        )


def _checksum(row: Row) -> int:
    """Return the checksum of a row: the XXH64 hash of its payload, seeded with its length.

    Bytes behind a payload that is shorter than the row mean nothing, so they are left out.
    XXH64 is specified at https://xxhash.com. XXH3 is faster for many rows at once, but its vector
    instructions slow down an emulator's next step by more time than XXH3 saves.
    """
    content = row.data
    (used,) = _NUMBER.unpack_from(content, 16)
    return xxh64_intdigest(content[HEADER_NBYTES : HEADER_NBYTES + used], used)


def _checksums(rows: Row) -> NDArray[np.uint64]:
    """Return the checksums of rows ``(N, state_nbytes)``; many short rows are hashed together."""
    count, size = len(rows), (rows.shape[1] - HEADER_NBYTES) // 8
    are_short = size <= _SHORT_WORDS and count >= 48 + 8 * size
    if not are_short or (rows[:, 16:24].view(np.uint64) != 8 * size).any():
        return np.fromiter(map(_checksum, rows), np.uint64, count)
    # XXH64, with one lane of 64 bits of all rows at a time. Products are modulo 2**64.
    words = np.ascontiguousarray(rows[:, 16:].view(np.uint64).T)
    seed, lanes = words[0], words[2:]
    sums = seed + _XXH_FIRST
    for start in range(0, size - 3, 4):
        sums = _rotated(sums + lanes[start : start + 4] * _XXH[1], 31) * _XXH[0]
    found: NDArray[np.uint64] = seed + _XXH[4]
    if size >= 4:
        found = _rotated(sums[0], 1) + _rotated(sums[1], 7)
        found += _rotated(sums[2], 12) + _rotated(sums[3], 18)
        for each in _rotated(sums * _XXH[1], 31) * _XXH[0]:
            found = (found ^ each) * _XXH[0] + _XXH[3]
    found += np.uint64(8 * size)
    for lane in lanes[size // 4 * 4 :]:
        found = _rotated(found ^ (_rotated(lane * _XXH[1], 31) * _XXH[0]), 27)
        found = found * _XXH[0] + _XXH[3]
    for shift, factor in ((33, _XXH[1]), (29, _XXH[2])):
        found ^= found >> np.uint64(shift)
        found *= factor
    found ^= found >> np.uint64(32)
    return found


def _rotated(words: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    high: NDArray[np.uint64] = words << np.uint64(bits)
    high |= words >> np.uint64(64 - bits)
    return high


def _hint(given: Any) -> str:
    """Return a hint about what to give as states instead of `given`; empty if there is none."""
    for name in ("states", "state"):
        if name in getattr(given, "_fields", ()):
            return f"; give its .{name}"
    if isinstance(given, (int, float, np.number)):
        return "; a dt is given by name, as dt=4"
    with suppress(ValueError, TypeError, RuntimeError):
        if np.asarray(given).dtype.kind == "f":
            return "; an observation is not a state: give the state that was returned with it"
    return ""


def mismatch(what: str, family: str, fields: str, its_family: str, its: str) -> StateMismatchError:
    """Return the error for a state of another environment; it names the difference.

    Parameters
    ----------
    what : str
        The beginning of the message, such as ``"state row 3 is"``.
    family, fields : str
        The family and the fingerprint fields of the environment.
    its_family, its : str
        The family and the fields of the state; `its` is any text if the fields are unknown.

    Examples
    --------
    >>> str(mismatch("this row is", "ATAR", '{"game": "pong", "mode": 1}',
    ...              "ATAR", '{"game": "pong", "mode": 2}'))
    'this row is of another environment, version or configuration: mode is 2 in the row and 1 here'
    """
    told: list[str] = []
    if its_family != family:
        told = [f"it is of the family {its_family}, but the environment is of {family}"]
    else:
        with suppress(ValueError):  # unknown fields are not JSON
            ours, theirs = json.loads(fields), json.loads(its)
            differing = [name for name in ours if ours[name] != theirs.get(name)]
            # If names differ, models and options differ too, which adds no information.
            named = [name for name in differing if name in ("id", "game")] or differing[:3]
            told = [
                f"{name} is {_short(theirs.get(name))} in the row and {_short(ours[name])} here"
                for name in named
            ]
    if not told:
        told = [f"it has {_short(its)}, but the environment has {_short(fields)}"]
    return StateMismatchError(
        f"{what} of another environment, version or configuration: {'; '.join(told)}",
        f"{family} {fields}",
        f"{its_family} {its}",
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}...{text[-15:]}"
