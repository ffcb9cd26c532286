"""`Addresses`: replaces the pointers in an emulator's states with offsets.

Some emulator cores save pointers into their own library (tables of their sound chips), which is
loaded at a different address in every process. In a row, such a pointer is replaced by its offset
in the library.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_MAPS = Path("/proc/self/maps")
_COUNT = struct.Struct("<I")
_WORD = np.arange(8)
# In all pointers into one library, this byte and the higher ones have at most two different values.
_HIGH = 5


class Addresses:
    """Replaces pointers into one library with offsets, and offsets with pointers.

    Parameters
    ----------
    library : str
        The file name of the core.

    Attributes
    ----------
    known : bool
        Whether this system reports where libraries are loaded.
    """

    def __init__(self, library: str) -> None:
        self._first, self._end = 0, 0
        self.known = _MAPS.exists()
        last = ""
        for line in _MAPS.read_text().splitlines() if self.known else ():
            fields = line.split(maxsplit=5)
            first, end = (int(part, 16) for part in fields[0].split("-"))
            path = fields[5] if len(fields) > 5 else ""
            # A library's zero-initialised memory is listed after it, without a name.
            if path.endswith("/" + library) or (not path and last and first == self._end):
                self._first = self._first or first
                self._end, last = end, library
            else:
                last = ""
        kinds = range(self._first >> 8 * _HIGH, (self._end - 1 >> 8 * _HIGH) + 1)
        self._high_bytes = sorted({kind & 0xFF for kind in kinds}) if self._end else []

    def strip(self, state: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return `state` with offsets instead of pointers, followed by the offsets' positions."""
        within = state[_HIGH : len(state) - (7 - _HIGH)]
        places = np.concatenate(
            [np.empty(0, np.int64), *(np.flatnonzero(within == high) for high in self._high_bytes)]
        )
        words = np.take(state, places[:, None] + _WORD).view("<u8")[:, 0]
        own = (words >= self._first) & (words < self._end)
        order = np.argsort(places[own])
        places, words = places[own][order], words[own][order]
        data = state.copy()
        data[places[:, None] + _WORD] = (words - np.uint64(self._first))[:, None].view(np.uint8)
        tail = places.astype("<u4").tobytes() + _COUNT.pack(len(places))
        return np.concatenate([data, np.frombuffer(tail, np.uint8)])

    def fill_in(self, stripped: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the state that was given to `strip`, with the pointers of this process.

        Raises
        ------
        ValueError
            `stripped` is not a result of `strip`.
        """
        if len(stripped) < _COUNT.size:
            raise ValueError("it is too short")
        (count,) = _COUNT.unpack(stripped[-_COUNT.size :].tobytes())
        start = len(stripped) - _COUNT.size - 4 * count
        if start < 0:
            raise ValueError(f"it is too short for {count} addresses")
        places = np.frombuffer(stripped[start : -_COUNT.size].tobytes(), "<u4").astype(np.int64)
        data = stripped[:start].copy()
        if not count:
            return data
        if np.max(places) + 8 > start:
            raise ValueError(f"it has an address at byte {np.max(places)} of {start}")
        places = places[:, None] + _WORD
        distances = data[places].view("<u8")
        if (distances >= self._end - self._first).any():
            raise ValueError(f"it has an offset {distances.max()} beyond the emulator's library")
        data[places] = (distances + np.uint64(self._first)).view(np.uint8)
        return data
