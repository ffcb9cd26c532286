"""Shared memory without a name in any file system.

A block is a memory file (``memfd``, or if Python lacks it a temporary file that is unlinked at
once). Other processes get it through its descriptor. Nothing can leak: the kernel frees a block
when no process has it open or mapped any more. Its pages are reserved when it is made, so a lack of
memory raises an error at that time instead of a SIGBUS later. On macOS and Windows, where there are
no workers, a block is ordinary memory.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import platform
import tempfile
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import WorkerError
from plangym_like.processes.interrupts import hold
from plangym_like.support.fork_safety import take_care_after_fork
from plangym_like.support.memory_limits import ensure_available

# Whether processors see each other's writes in the order in which they were made. If so, a word in
# shared memory can mark the data written before it as complete; otherwise only a message can.
WRITES_IN_ORDER = platform.machine() in ("x86_64", "AMD64")

_numbers = itertools.count(1)
_PAGE = mmap.PAGESIZE
# The errors of a lack of file descriptors.
_ERRORS = (errno.EMFILE, errno.ENFILE)


class SharedBlock:
    """One block of shared memory, with a number, a descriptor and its bytes.

    Parameters
    ----------
    nbytes : int
        The size, at least 1; it is rounded up to whole pages.

    Raises
    ------
    MemoryError
        There is not enough memory.
    WorkerError
        This process may not open another file.
    """

    def __init__(self, nbytes: int) -> None:
        self.number = next(_numbers)
        self.nbytes = -(-max(nbytes, 1) // _PAGE) * _PAGE
        self.fd = -1
        try:
            ensure_available(self.nbytes)
            if hasattr(os, "posix_fallocate"):
                self.fd, self._finalizer = _memory_file(self)
                self._finalizer.atexit = False
                os.posix_fallocate(self.fd, 0, self.nbytes)
                self._map()
            else:
                self.memory = mmap.mmap(-1, self.nbytes)
        except (OSError, ValueError) as error:
            self.close()
            if isinstance(error, OSError):
                if error.errno is None:
                    raise  # raised by a signal handler, such as a TimeoutError
                if advice := none_are_left(error):
                    raise WorkerError(f"shared memory cannot be allocated: {advice}") from error
            raise MemoryError(
                f"{self.nbytes} bytes of shared memory cannot be allocated: {error}; use smaller "
                "batches, or free memory"
            ) from error

    def _map(self) -> None:
        """Map the file; keep the descriptor that the mapping has anyway, and close the other."""
        file = os.fstat(self.fd)
        # Duplicated and closed in one operation, which Ctrl-C cannot interrupt.
        opened, closing = itertools.tee(map(os.dup, (self.fd,)))
        [(likely, _)] = zip(opened, map(os.close, closing), strict=True)
        # This duplicates the descriptor. The new one has the lowest free number, which is `likely`
        # unless another thread has opened a file meanwhile.
        self.memory = mmap.mmap(self.fd, self.nbytes)
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(likely), file):
                self._finalizer()
                self.fd = likely

    def array(self) -> NDArray[np.uint8]:
        """Return a new array over all bytes; the array lives as long as any view of it."""
        return np.frombuffer(self.memory, np.uint8)

    def close(self) -> None:
        """Give up the descriptor; it and the bytes live as long as arrays over them do."""
        if self.fd >= 0:
            self._finalizer()
        self.fd = -1


def attach(fd: int) -> NDArray[np.uint8]:
    """Return an array over the block with descriptor `fd`, and close the descriptor.

    Raises
    ------
    MemoryError
        There is not enough address space in this process.
    """
    try:
        memory = mmap.mmap(fd, os.fstat(fd).st_size)
    except OSError as error:
        raise MemoryError(f"cannot map a block of shared memory: {error}") from error
    finally:
        os.close(fd)
    return np.frombuffer(memory, np.uint8)


@dataclass(slots=True)
class _Loan:
    """A lent block, and a weak reference to the array through which it is lent."""

    array: weakref.ref[NDArray[np.uint8]]
    block: SharedBlock
    copied: bool = False


class BlockPool:
    """Lends blocks as arrays, and reuses a block when its array has been garbage-collected.

    Ctrl-C may interrupt any method. Even then, no block has two users, but the pool may lose a
    block.

    Parameters
    ----------
    most_lent : int
        How many blocks may be lent at the same time; each of them uses a file descriptor.
    most_idle : int
        How many unused blocks are kept.

    Attributes
    ----------
    dropped : list of int
        The numbers of closed blocks that a worker may still have mapped; see `forget`.
    """

    def __init__(self, *, most_lent: int = 4, most_idle: int = 2) -> None:
        self._most_lent = most_lent
        self._most_idle = most_idle
        self._idle: list[SharedBlock] = []
        self._lent: dict[int, _Loan] = {}
        self._returned: deque[weakref.ref[Any]] = deque()
        self.dropped: list[int] = []
        take_care_after_fork(self)

    def take(self, nbytes: int) -> SharedBlock:
        """Return a block of at least `nbytes` that is not much larger."""
        fitting = self._fitting(nbytes)
        if fitting:
            block = min(fitting, key=lambda block: block.nbytes)
            self._idle.remove(block)
            return block
        return SharedBlock(nbytes)

    def has(self, nbytes: int) -> bool:
        """Return whether `take` would return an unused block, rather than a new one."""
        return bool(self._fitting(nbytes))

    def _fitting(self, nbytes: int) -> list[SharedBlock]:
        self._collect()
        return [block for block in self._idle if nbytes <= block.nbytes <= 2 * nbytes + _PAGE]

    def may_lend(self) -> bool:
        """Return whether one more block may be lent."""
        self._collect()
        return len(self._lent) < self._most_lent

    def lend(self, block: SharedBlock) -> NDArray[np.uint8]:
        """Return an array over `block`; the block becomes idle when the array is dropped."""
        array = block.array()
        # The callback may run anywhere, even inside this class, so it only appends to a queue. It
        # is not a Python function: a Ctrl-C raised in such a function would be lost, and so would
        # the block.
        loan = _Loan(weakref.ref(array, self._returned.append), block)
        self._lent[id(loan.array)] = loan
        return array

    def give(self, block: SharedBlock) -> None:
        """Take back a block that was not lent."""
        self._idle.append(block)
        while len(self._idle) > self._most_idle:
            self._drop(self._idle.pop(0))

    def drop_idle(self) -> None:
        """Drop all unused blocks."""
        self._collect()
        while self._idle:
            self._drop(self._idle.pop())

    def forget(self, known: Callable[[int], bool]) -> None:
        """Remove from `dropped` the numbers for which ``known(number)`` is false.

        ``known(number)`` must return whether a worker still has the block with that number.
        """
        if self.dropped:
            self.dropped = [number for number in self.dropped if known(number)]

    def take_care(self) -> None:
        """Never reuse the blocks that are lent now: a process forked from this one may use them."""
        for loan in list(self._lent.values()):
            loan.copied = True

    def close(self) -> None:
        """Drop every block; arrays over lent ones stay valid."""
        for loan in self._lent.values():
            self._drop(loan.block)
        for block in self._idle:
            self._drop(block)
        self._lent.clear()
        self._idle.clear()

    def _drop(self, block: SharedBlock) -> None:
        block.close()
        self.dropped.append(block.number)

    def _collect(self) -> None:
        while self._returned:
            # Removed from the queue last, so that an interrupted call can be repeated.
            loan = self._lent.pop(id(self._returned[0]), None)
            if loan is not None and loan.copied:
                self._drop(loan.block)
            elif loan is not None:
                self.give(loan.block)
            self._returned.popleft()


def _memory_file(block: SharedBlock) -> tuple[int, weakref.finalize[..., SharedBlock]]:
    """Return a new memory file, and the finalizer that closes it when `block` is dropped.

    If Ctrl-C interrupts this, no descriptor of ``memfd_create`` stays open.
    """
    fds: list[int] = []
    finalizers: list[weakref.finalize[..., SharedBlock]] = []
    try:
        if hasattr(os, "memfd_create"):
            hold(fds, os.memfd_create, "plangym_like", os.MFD_CLOEXEC)
        else:
            fd, path = tempfile.mkstemp(prefix="plangym_like")
            fds.append(fd)
            os.unlink(path)
        hold(finalizers, weakref.finalize, block, os.close, fds[0])
    finally:
        if fds and not finalizers:
            os.close(fds[0])
    return fds[0], finalizers[0]


def none_are_left(error: OSError) -> str | None:
    """Return what to do about `error` if it is a lack of file descriptors, else ``None``."""
    if error.errno not in _ERRORS:
        return None
    if error.errno == errno.ENFILE:
        return (
            "all processes of this machine together have as many open files as it allows: see "
            "/proc/sys/fs/file-max"
        )
    import resource  # Windows does not have it

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        number = len(os.listdir("/proc/self/fd"))
    except OSError:  # this needs a descriptor too
        number = soft
    most = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    raised = (
        f"with `ulimit -n {most}` in the shell, or with "
        "resource.setrlimit(resource.RLIMIT_NOFILE, ...) in the program"
        if most > soft
        else "only an administrator can do this, because the hard limit is not higher"
    )
    return (
        f"this process has {number} open files, and its limit is {soft} (`ulimit -n`). Each worker "
        "needs 3, and each environment with workers about 12 more, or up to 25 while its results "
        "are kept. Close environments that are not needed any more, or raise the limit: "
        f"{raised}"
    )
