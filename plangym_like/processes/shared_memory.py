"""Shared memory without a name in any file system.

A block is a memory file (``memfd``). Other processes get it through its descriptor. Nothing can
leak: the kernel frees a block when no process has it open or mapped any more. Its pages are
reserved when it is made, so a lack of memory raises an error at that time instead of a SIGBUS
later. On macOS and Windows, where there are no workers, a block is ordinary memory.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import platform
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import WorkerError
from plangym_like.processes.child import memory_file, platform_has_workers
from plangym_like.support import fork_safety
from plangym_like.support.memory_limits import ensure_available

# Whether processors see each other's writes in the order in which they were made. If so, a word in
# shared memory can mark the data written before it as complete; otherwise only a message can.
WRITES_IN_ORDER = platform.machine() in ("x86_64", "AMD64")

_numbers = itertools.count(1)
# The numbers of all blocks of this process that have not been garbage-collected.
alive: set[int] = set()
_PAGE = mmap.PAGESIZE
# The errors of a lack of file descriptors.
_ERRORS = (errno.EMFILE, errno.ENFILE)


class SharedBlock:
    """One block of shared memory, with a number, a descriptor and its bytes (`memory`).

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
        alive.add(self.number)
        weakref.finalize(self, alive.discard, self.number).atexit = False
        try:
            ensure_available(self.nbytes)
            if platform_has_workers():
                self._make_file()
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

    def _make_file(self) -> None:
        """Make the file and map it; of two descriptors for it, keep the one of the mapping."""
        self.fd = memory_file()
        self._finalizer = weakref.finalize(self, os.close, self.fd)
        self._finalizer.atexit = False
        os.posix_fallocate(self.fd, 0, self.nbytes)
        file = os.fstat(self.fd)
        likely = os.dup(self.fd)
        os.close(likely)
        # This duplicates the descriptor. The new one has the lowest free number, which is `likely`
        # unless another thread has opened a file meanwhile.
        self.memory = mmap.mmap(self.fd, self.nbytes)
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(likely), file):
                self._finalizer()
                self.fd = likely

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
    return as_bytes(memory)


def as_bytes(memory: mmap.mmap) -> NDArray[np.uint8]:
    """Return a new array over `memory`, which lives as long as any view of the array."""
    return np.frombuffer(memory, np.uint8)


class BlockPool:
    """Lends blocks as arrays, and reuses a block when its array has been garbage-collected.

    If Ctrl-C interrupts a method, the pool may lose a block, which is then freed.

    Parameters
    ----------
    most_lent : int
        How many blocks may be lent at the same time; each of them uses a file descriptor.
    most_idle : int
        How many unused blocks are kept.
    """

    def __init__(self, *, most_lent: int = 4, most_idle: int = 2) -> None:
        self._most_lent = most_lent
        self._most_idle = most_idle
        self._idle: list[SharedBlock] = []
        # The lent blocks, with weak references to their arrays, by the ids of these references.
        self._lent: dict[int, tuple[weakref.ref[NDArray[np.uint8]], SharedBlock]] = {}
        self._returned: deque[weakref.ref[Any]] = deque()
        self._num_forks = fork_safety.num_forks

    def take(self, nbytes: int) -> SharedBlock:
        """Return a block of at least `nbytes` that is not much larger."""
        if self._num_forks != fork_safety.num_forks:
            # The arrays that are lent may still be used in a forked copy of this process.
            self._num_forks = fork_safety.num_forks
            self._lent.clear()
        while self._returned:
            _, returned = self._lent.pop(id(self._returned[0]), (None, None))
            self._returned.popleft()
            if returned is not None:
                self.give(returned)
        found, most = None, 2 * nbytes + _PAGE
        for block in self._idle:
            if nbytes <= block.nbytes <= most:
                found, most = block, block.nbytes - 1  # the smallest one that fits
        if found is None:
            return SharedBlock(nbytes)
        self._idle.remove(found)
        return found

    def lend(self, block: SharedBlock) -> NDArray[np.uint8] | None:
        """Return an array over `block`; the block becomes idle when the array is dropped.

        Return ``None``, and lend nothing, if too many blocks are lent.
        """
        if len(self._lent) >= self._most_lent:
            return None
        array = as_bytes(block.memory)
        # The callback may run anywhere, even inside this class, so it only appends to a queue.
        reference = weakref.ref(array, self._returned.append)
        self._lent[id(reference)] = reference, block
        return array

    def give(self, block: SharedBlock) -> None:
        """Take back a block that was not lent."""
        self._idle.append(block)
        while len(self._idle) > self._most_idle:
            self._idle.pop(0).close()

    def drop_idle(self) -> None:
        """Drop all unused blocks."""
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        """Drop every block; arrays over lent ones stay valid."""
        for _, block in self._lent.values():
            block.close()
        self._lent.clear()
        self.drop_idle()


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
        "needs 2 or 3, and each environment with workers about 12 more, or up to 25 while its "
        "results are kept. Close environments that are not needed any more, or raise the limit: "
        f"{raised}"
    )
