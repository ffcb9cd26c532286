"""`RowBlocks`: state rows, compressed in blocks with Zstandard."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.archive.growing_array import GrowingArray
from plangym_like.errors import StateFormatError
from plangym_like.states.rows import Row
from plangym_like.support.lazy_imports import needs_extra

# The limits of a block are part of the file format. With blocks of 256 rows, archives of MsPacman
# and MontezumaRevenge were 5 to 9 % smaller, but reading took two and a half times as long.
_MOST_ROWS = 64
_MOST_NBYTES = 1 << 19


class _Complete(NamedTuple):
    """The rows stored so far: the number of compressed blocks, and the rows after them.

    The first `open_count` rows of `open` are the rows that are not compressed yet.
    """

    blocks: int
    open: Row
    open_count: int


class RowBlocks:
    """State rows in the order in which they were added.

    Almost all bytes of an emulator's state never change. So a block holds the exclusive or (XOR) of
    each row and the very first row. Bytes in which no row of the block differs from the very first
    row are left out. The block is then compressed, and can be read without other blocks.

    ::

        compress(bitmap of the bytes that differ | these bytes of each row, row after row)

    The last rows, which do not fill a block yet, are not compressed.

    Parameters
    ----------
    state_nbytes : int
    directory : path, optional
        See `GrowingArray`.
    level : int
        The compression level.

    Attributes
    ----------
    reference : array ``(state_nbytes,) uint8``
        The first row.
    """

    def __init__(
        self, state_nbytes: int, directory: str | os.PathLike[str] | None = None, level: int = 3
    ) -> None:
        self._state_nbytes = state_nbytes
        self.block_rows = int(np.clip(_MOST_NBYTES // state_nbytes, 1, _MOST_ROWS))
        self.reference: Row = np.zeros(state_nbytes, np.uint8)
        self._compress, self._decompress, self._errors = load_zstd(level)
        self._frames = GrowingArray(np.uint8, (), directory)
        self._ends = GrowingArray(np.int64, (), directory)
        # Replaced only when an append is complete; after an interrupt, the arrays may be longer.
        self._complete = _Complete(0, np.empty((self.block_rows, state_nbytes), np.uint8), 0)

    def __len__(self) -> int:
        return self._complete.blocks * self.block_rows + self._complete.open_count

    @property
    def nbytes(self) -> int:
        """The number of bytes that the rows use."""
        ends = self._ends.values
        return int(self._frames.values.nbytes + ends.nbytes + self._complete.open.nbytes)

    def append(self, rows: Row) -> None:
        """Append `rows` ``(N, state_nbytes)``; an error or interrupt changes nothing."""
        if not len(self):
            self.reference = np.array(rows[0]) if len(rows) else self.reference
        blocks, opened, open_count = self._complete
        stop = open_count + len(rows)
        if stop < self.block_rows:
            opened[open_count:stop] = rows
            self._complete = _Complete(blocks, opened, stop)
            return
        rest = np.concatenate([opened[:open_count], rows])
        full = len(rest) // self.block_rows * self.block_rows
        frames = [
            self._encode(rest[first : first + self.block_rows])
            for first in range(0, full, self.block_rows)
        ]
        ends = np.cumsum([len(frame) for frame in frames], dtype=np.int64)
        self._ends.truncate(blocks)
        self._frames.truncate(self._start(blocks))
        self._frames.append(np.frombuffer(b"".join(frames), np.uint8), sum(map(len, frames)))
        self._ends.append(ends + self._start(blocks), len(ends))
        opened = np.empty_like(opened)
        opened[: len(rest) - full] = rest[full:]
        self._complete = _Complete(blocks + len(ends), opened, len(rest) - full)

    def get(self, indices: NDArray[np.int64]) -> Row:
        """Return the rows ``(N, state_nbytes)`` at `indices` ``(N,)``.

        Raises
        ------
        StateFormatError
            A block is damaged.
        """
        rows = np.empty((len(indices), self._state_nbytes), np.uint8)
        if not len(indices):
            return rows
        blocks, places = np.divmod(indices, self.block_rows)
        order = np.argsort(blocks, kind="stable")
        found, starts = np.unique(blocks[order], return_index=True)
        for block, chosen in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
            if block == self._complete.blocks:
                rows[chosen] = self._complete.open[places[chosen]]
                continue
            columns, changes = self._decode(block)
            if len(chosen) == 1:  # a row is written much faster than a part of a matrix
                row = rows[chosen[0]]
                row[:] = self.reference
                row[columns] ^= changes[places[chosen[0]]]
            else:
                rows[chosen] = self.reference
                rows[np.ix_(chosen, columns)] ^= changes[places[chosen]]
        return rows

    def packed(self) -> dict[str, list[NDArray[Any]]]:
        """Return the content as arrays by name, each a list of parts; all rows are compressed."""
        blocks, opened, open_count = self._complete
        frames, ends = [self._frames.values[: self._start(blocks)]], [self._ends.values[:blocks]]
        if open_count:
            last = np.frombuffer(self._encode(opened[:open_count]), np.uint8)
            frames.append(last)
            ends.append(np.array([len(frames[0]) + len(last)]))
        return {"reference": [self.reference], "frames": frames, "ends": ends}

    def unpack(self, count: int, arrays: dict[str, NDArray[Any]]) -> None:
        """Load `count` rows from the arrays that `packed` returned."""
        self.reference = np.array(arrays["reference"])
        self._frames.adopt(arrays["frames"])
        self._ends.adopt(arrays["ends"])
        blocks, rest = divmod(count, self.block_rows)
        opened = self._complete.open
        if rest:
            columns, changes = self._decode(blocks, rest)
            opened[:rest] = self.reference
            opened[:rest, columns] ^= changes
        self._complete = _Complete(blocks, opened, rest)

    def _start(self, block: int) -> int:
        return int(self._ends.values[block - 1]) if block else 0

    def _encode(self, rows: Row) -> bytes:
        changes = rows ^ self.reference
        differs = changes.any(axis=0)
        return self._compress(np.packbits(differs).tobytes() + changes[:, differs].tobytes())

    def _decode(self, block: int, count: int | None = None) -> tuple[NDArray[np.int64], Row]:
        """Decompress a block, which has `count` rows; by default, it is full.

        Return the indices ``(C,)`` of the bytes that differ from the first row, and the changes
        ``(count, C)``.
        """
        count = self.block_rows if count is None else count
        frame = self._frames.values[self._start(block) : self._ends.values[block]]
        bitmap_nbytes = -(-self._state_nbytes // 8)
        try:
            data = np.frombuffer(self._decompress(frame.data), np.uint8)
            columns = np.unpackbits(data[:bitmap_nbytes], count=self._state_nbytes).nonzero()[0]
            return columns, data[bitmap_nbytes:].reshape(count, len(columns))
        except self._errors as error:
            first = block * self.block_rows
            raise StateFormatError(
                f"rows {first} to {first + count - 1} of the archive are damaged: {error}"
            ) from error


def load_zstd(
    level: int,
) -> tuple[Callable[[Any], bytes], Callable[[Any], bytes], tuple[type[Exception], ...]]:
    """Return functions that compress and decompress frames, and what the latter raises.

    They are from Python 3.14 or later, or from the package `zstandard`. Frames have checksums.

    Raises
    ------
    MissingExtraError
        No library is installed.
    """
    if sys.version_info >= (3, 14):
        zstd: Any = importlib.import_module("compression.zstd")
        parameter = zstd.CompressionParameter
        options = {parameter.compression_level: level, parameter.checksum_flag: 1}
        errors = (zstd.ZstdError, EOFError, ValueError)
        return lambda data: bytes(zstd.compress(data, options=options)), zstd.decompress, errors
    with needs_extra("StateArchive needs zstandard", "archive"):
        import zstandard
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    decompressor = zstandard.ZstdDecompressor()
    return compressor.compress, decompressor.decompress, (zstandard.ZstdError, ValueError)
