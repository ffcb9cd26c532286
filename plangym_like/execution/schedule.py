"""Which process steps which rows: `CostModel`, `cut` and `Tokens`.

`CostModel` decides whether a batch is worth sending to workers, `cut` divides its rows into ranges,
and `Tokens` are the ranges that no process has begun: each process takes the next one.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import time
import weakref
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

# Seconds to send a batch, wake a worker and read its report: the overhead of batches of 4 to 16
# rows in `benchmarks/never_slower.py`.
MESSAGE_SECONDS = 5e-4
# The shortest time per step is raised by this fraction for so many seconds of steps, because steps
# may become slower.
_FADE_SECONDS, _FADE = 12e-3, 0.05
# The batch's key (see `Key`), and the range of its rows.
_TOKEN = struct.Struct("=qqqq")
# The most tokens of one write; the kernel does not divide writes of up to 4,096 bytes.
_MOST = 4096 // _TOKEN.size
# No tokens are added while the pipe holds so many, so that tokens can always be put back.
_FULL = 1000
# Rows are stepped in ranges that take `_COARSE_SECONDS`, and less toward the end of a batch, down
# to `_FINE_SECONDS` (`benchmarks/never_slower.py`, 16 to 256 rows).
_FINE_SECONDS, _COARSE_SECONDS = 2.5e-4, 12e-3
# Added to a number of rows before it is rounded down: it may be a whole number, but for rounding.
_ROUNDING = 1e-6

Range = tuple[int, int]
# The number of the block that describes a batch, and the number of the batch.
Key = tuple[int, int]


class CostModel:
    """Decides whether a batch is worth sending to workers, from the time that its rows take.

    The model: in this process, the time of a batch is proportional to the number of its single
    steps. If the batch is sent, that time is divided by the number of processes, and the time for
    messages is added. Rows of 1 step, of 2 or 3, of 4 to 7, and so on are measured separately,
    because each row also has a fixed cost.

    Parameters
    ----------
    message_seconds : float
        The cost of sending a batch, in addition to its rows.

    Examples
    --------
    >>> costs = CostModel()
    >>> costs.worth_sending(256, 1, workers=1)
    True
    >>> costs.note(10, 1, seconds=1e-3)
    >>> costs.worth_sending(256, 1, workers=1), costs.worth_sending(2, 1, workers=1)
    (True, False)
    """

    def __init__(self, message_seconds: float = MESSAGE_SECONDS) -> None:
        self._message = message_seconds
        # The shortest time per step, in seconds, of rows with about so many steps; see `_key`.
        self._seconds: dict[int, float] = {}

    def seconds_per_row(self, steps: float) -> float:
        """Return the seconds that a row with `steps` steps takes; 0 if this is not known."""
        return self._seconds.get(_key(steps), 0.0) * steps

    def worth_sending(self, count: int, steps: float, *, workers: int) -> bool:
        """Return whether to send `count` rows, of `steps` steps on average, to `workers` workers.

        If no time is known yet, the result is true: the rows are then timed while the batch is
        stepped.
        """
        here = count * self.seconds_per_row(steps)
        return not here or self._message + here / (workers + 1) < here

    def cheap(self, count: int, steps: float) -> bool:
        """Return whether `count` rows are known to take less time here than a message takes."""
        return 0.0 < count * self.seconds_per_row(steps) < self._message

    def note(self, taken: float, steps: float, *, seconds: float) -> None:
        """Record how long a process took for `taken` single steps, of rows with `steps` steps.

        The shortest time counts, because other programs may disturb a process. It is first raised
        a little, so that older times count less.
        """
        key, found = _key(steps), seconds / taken
        best = self._seconds.get(key, found)
        self._seconds[key] = min(found, best * (1.0 + _FADE * seconds / _FADE_SECONDS))


def _key(steps: float) -> int:
    """Return a number that is the same for all rows that take about `steps` steps."""
    return int(steps).bit_length()


class Tokens:
    """A pipe of tokens, which all processes of a pool read.

    A token is written and read as a whole, because the kernel locks a pipe during each read and
    write, and everything in it is a multiple of a token. So the processes need no lock of their
    own, which a killed process could hold.

    Parameters
    ----------
    read_fd, write_fd : int
        The descriptors of a pipe, which this object closes; by default, a new pipe is made.
    """

    def __init__(self, read_fd: int = -1, write_fd: int = -1) -> None:
        if read_fd < 0:
            read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.read_fd, self.write_fd, self._pid = read_fd, write_fd, os.getpid()
        self._finalizer = weakref.finalize(self, _close, read_fd, write_fd)
        self._finalizer.atexit = False

    @property
    def _usable(self) -> bool:
        """Whether the pipe is open, and not that of a process that this one was forked from."""
        return self.read_fd >= 0 and os.getpid() == self._pid

    def put(self, batch: Key, ranges: Iterable[Range]) -> list[Range]:
        """Add tokens; return those for which there is no room."""
        left = list(ranges)
        while left and self._usable and len(self) < _FULL:
            packed = bytearray()
            for each in left[:_MOST]:
                packed += _TOKEN.pack(*batch, *each)
            try:
                os.write(self.write_fd, packed)
            except OSError:  # full, or closed by another thread
                break
            del left[:_MOST]
        return left

    def put_back(self, batch: Key, rows: Range) -> None:
        """Put back a token that this process has taken."""
        while self._usable:
            with contextlib.suppress(BlockingIOError):
                os.write(self.write_fd, _TOKEN.pack(*batch, *rows))
                return
            time.sleep(1e-3)  # others take tokens meanwhile

    def take(self) -> tuple[Key, Range] | None:
        """Remove the next token, and return its batch and its rows; ``None`` if none is left."""
        if not self._usable:
            return None
        try:
            block, number, start, stop = _TOKEN.unpack(os.read(self.read_fd, _TOKEN.size))
        except OSError:  # empty, or closed by another thread
            return None
        return (block, number), (start, stop)

    def take_of(self, batch: Key) -> Range | None:
        """Return the next token's range if it is of `batch`; otherwise leave the token there."""
        token = self.take()
        if token is None:
            return None
        if token[0] != batch:
            self.put_back(*token)
            return None
        return token[1]

    def drain(self, batch: Key | None) -> list[Range]:
        """Remove all tokens, and return the ranges of those of `batch`."""
        found = []
        while (token := self.take()) is not None:
            if token[0] == batch:
                found.append(token[1])
        return found

    def __len__(self) -> int:
        if not self._usable:
            return 0
        import fcntl
        import termios

        nbytes = fcntl.ioctl(self.read_fd, termios.FIONREAD, b"\0" * 4)
        return int.from_bytes(nbytes, sys.byteorder) // _TOKEN.size

    def close(self) -> None:
        """Close the pipe; safe to call more than once."""
        self.read_fd = self.write_fd = -1
        self._finalizer()


def _close(read_fd: int, write_fd: int) -> None:
    os.close(read_fd)
    os.close(write_fd)


def cut(
    start: int,
    stop: int,
    steps: int | NDArray[np.int64],
    step_seconds: float,
    processes: int,
    later: float = 0.0,
) -> Iterator[Range]:
    """Divide the rows ``start:stop`` into ranges, which become smaller toward the end.

    Each range takes at most an equal part of half of the remaining time.

    Parameters
    ----------
    start, stop : int
    steps : int or array ``(N,)``
        How many single steps each row takes, or all rows of the batch.
    step_seconds : float
        Seconds of a single step; 0 if it is not known.
    processes : int
        The number of processes that take the ranges.
    later : float
        How many single steps the rows take that will be dealt after these.

    Examples
    --------
    >>> list(cut(0, 100, 1, 1e-4, 2))
    [(0, 25), (25, 43), (43, 57), (57, 67), (67, 75), (75, 81), (81, 85), (85, 88), ...
    """
    count, second = stop - start, step_seconds or 1.0
    # When the rows end, in seconds; with one number of steps for all rows, nothing is searched.
    ends, each = None, 0.0
    if isinstance(steps, int):
        each = steps * second
        total = count * each
    else:
        ends = np.cumsum(steps[start:stop], dtype=np.float64) * second
        total = float(ends[-1]) if count else 0.0
    total += later * second
    fine, coarse = (min(_FINE_SECONDS, total / processes), _COARSE_SECONDS)
    if not step_seconds:
        fine, coarse = 0.0, total
    at, taken = 0, 0.0
    while at < count:
        until = taken + max(fine, min(coarse, (total - taken) / (2 * processes)))
        if ends is None:
            end = min(count, max(at + 1, int(until / each + _ROUNDING)))
            taken = end * each
        else:
            end = max(at + 1, int(ends.searchsorted(until, side="right")))
            taken = float(ends[end - 1])
        yield start + at, start + end
        at = end
