"""Explain that no more file descriptors can be opened."""

from __future__ import annotations

import errno
import os

_ERRORS = (errno.EMFILE, errno.ENFILE)


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
