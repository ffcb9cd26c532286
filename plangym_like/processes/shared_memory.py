"""Shared memory without a name in any file system.

A block is a memory file (``memfd``). Other processes get it through its descriptor. Nothing can
leak: the kernel frees a block when no process has it open or mapped any more. Its pages are
reserved when it is made, so a lack of memory raises an error at that time instead of a SIGBUS
later. On macOS and Windows, where there are no workers, a block is ordinary memory.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import platform
import sys
import weakref

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import WorkerError
from plangym_like.processes.child import memory_file
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
            if sys.platform == "linux":  # elsewhere, there are no workers to share it with
                self.fd = memory_file()
                self._finalizer = weakref.finalize(self, os.close, self.fd)
                self._finalizer.atexit = False
                os.posix_fallocate(self.fd, 0, self.nbytes)
                self.memory = mmap.mmap(self.fd, self.nbytes)
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
    return (
        f"this process may have {soft} open files (`ulimit -n`; at most {hard}). Each worker needs "
        "2 or 3, and each environment with workers about 20 more, or up to 45 while its results "
        "are kept. Close environments that are not needed any more, or raise the limit with "
        "`ulimit -n` or resource.setrlimit(resource.RLIMIT_NOFILE, ...)"
    )
