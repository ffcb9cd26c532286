"""Linux system calls that not every Python has in `os`.

Pythons that were built for an old C library, such as those that uv installs, lack functions that
the kernel has. Here these are called through `ctypes`.
"""

from __future__ import annotations

import ctypes
import os

_MFD_CLOEXEC = 1
# The number of the system call, which is the same on all common processors.
_PIDFD_OPEN = 434


def memory_file() -> int:
    """Make a file in memory; return its descriptor, which is not inheritable."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("plangym_like", _MFD_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    return _checked(libc.memfd_create(b"plangym_like", _MFD_CLOEXEC))


def pidfd_open(pid: int) -> int:
    """Return a descriptor, not inheritable, that can be read once the process `pid` has ended."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    libc = ctypes.CDLL(None, use_errno=True)
    return _checked(libc.syscall(ctypes.c_long(_PIDFD_OPEN), ctypes.c_long(pid), ctypes.c_long(0)))


def _checked(descriptor: int) -> int:
    """Return `descriptor`, or raise the `OSError` of the call that has returned -1 instead."""
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return descriptor
