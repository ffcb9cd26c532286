"""`GrowingArray`: an array that grows at its end, in memory or in a file."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from plangym_like.support.memory_limits import ensure_available

_SMALLEST = 64
_GROWTH = 1.5


class GrowingArray:
    """An array ``(N, *shape)`` to which values are appended.

    Parameters
    ----------
    dtype : dtype
    shape : tuple of int
        The shape of one value.
    directory : path, optional
        Keep the values in an unnamed file in this directory. The file is mapped into memory, and
        vanishes with this object. The operating system can then move unused values from memory to
        the disk. By default, all values are kept in memory.
    """

    def __init__(
        self,
        dtype: DTypeLike,
        shape: tuple[int, ...] = (),
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self._count = 0
        self._file: int | None = None
        if directory is not None:
            self._file, path = tempfile.mkstemp(dir=directory)
            os.unlink(path)
            weakref.finalize(self, os.close, self._file)
        self._array: NDArray[Any] = np.empty((0, *shape), dtype)
        self._is_mapped = False

    @property
    def values(self) -> NDArray[Any]:
        """A view of the values ``(N, *shape)``, without values that are appended later."""
        return self._array[: self._count]

    def adopt(self, values: NDArray[Any]) -> None:
        """Use the array `values` ``(N, *shape)`` as the content; it is copied when it must grow."""
        self._array, self._count, self._is_mapped = values, len(values), False

    def reserve(self, count: int) -> None:
        """Make room for `count` more values, so that `append` cannot fail.

        Raises
        ------
        MemoryError, OSError
            The memory or the disk is too small; nothing has changed.
        """
        needed = self._count + count
        if needed <= len(self._array):
            return
        room = max(needed, int(len(self._array) * _GROWTH), _SMALLEST)
        array = self._allocate(room)
        if not self._is_mapped:  # otherwise the file holds the values already
            array[: self._count] = self.values
        self._array, self._is_mapped = array, self._file is not None

    def append(self, values: Any, count: int) -> None:
        """Append `count` values; `values` is ``(count, *shape)``, or one value for all."""
        self.reserve(count)
        self._array[self._count : self._count + count] = values
        self._count += count

    def truncate(self, count: int) -> None:
        """Keep only the first `count` values."""
        self._count = min(self._count, count)

    def _allocate(self, room: int) -> NDArray[Any]:
        shape = (room, *self._array.shape[1:])
        nbytes = math.prod(shape) * self._array.dtype.itemsize
        if self._file is None or nbytes == 0:
            ensure_available(nbytes)
            return np.empty(shape, self._array.dtype)
        # Without this call, writing to a full disk would kill the process instead of raising.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file, 0, nbytes)
        else:  # macOS and Windows
            os.ftruncate(self._file, nbytes)
        mapped = mmap.mmap(self._file, nbytes)
        return np.frombuffer(mapped, self._array.dtype).reshape(shape)
