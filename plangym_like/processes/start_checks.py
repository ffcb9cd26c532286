"""Checks that are made before workers are started: of the platform, and of what this process does.

A module that starts workers when it is imported would start them without end: each worker imports
the module of its environment's class, and would start workers itself.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from types import CodeType, FrameType

from plangym_like.errors import WorkerStartError

# What workers need, as names in Python's modules. Only Linux has all of them.
_NEEDED = {
    "fcntl": ("F_SETSIG", "F_SETOWN"),  # the kernel ends workers whose owner has died
    "os": ("O_ASYNC", "fork", "posix_fallocate", "register_at_fork", "sched_getaffinity", "waitid"),
    "select": ("poll",),
    "signal": ("SIGKILL", "pthread_sigmask"),
    "socket": ("AF_UNIX", "MSG_CMSG_CLOEXEC", "MSG_NOSIGNAL", "SCM_RIGHTS"),
}

# In a process that works for another one: the function in which it began to do so.
_main_loop: CodeType | None = None


def serve_another_process() -> None:
    """Note that the calling function is the main loop of a worker, or of a fork server."""
    global _main_loop
    _main_loop = sys._getframe(1).f_code


def check_can_start() -> None:
    """Raise an error if this process can't start workers.

    Raises
    ------
    WorkerStartError
        The platform is not Linux, or this process is a worker that is importing a module.
    """
    _refuse_while_importing()
    if missing := _missing_names():
        raise WorkerStartError(
            f"workers need Linux, and this Python ({sys.platform}) lacks {', '.join(missing)}. In "
            "one process everything works: leave out n_workers, isolate and step_timeout, and use "
            "same.rollout, or n_threads=0, to collect data"
        )


def platform_has_workers() -> bool:
    """Return whether this platform has what workers need, which only Linux has."""
    return not _missing_names()


def _refuse_while_importing() -> None:
    """Raise `WorkerStartError` if this process is a worker that is importing a module."""
    found = None if _main_loop is None else _importing_frame(sys._getframe(1))
    if found is not None:
        name, code = found.f_globals.get("__name__"), found.f_code
        raise WorkerStartError(
            f"the module {name!r} starts workers while it is imported ({code.co_filename}, line "
            f"{found.f_lineno}). A worker has imported it to load its environment. It starts no "
            "workers, because these would import the module too, and start workers without end. "
            'Start workers in a function, or below `if __name__ == "__main__":`, or move the class '
            "of the environment to a module that starts none"
        )


def _importing_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of a module that this thread imports, seen from `frame` outward."""
    module = None
    while frame is not None and frame.f_code is not _main_loop:
        if frame.f_code.co_name == "<module>":
            module = frame
        if module is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
            return module
        frame = frame.f_back
    return None


@functools.cache
def _missing_names() -> list[str]:
    """Return the names in `_NEEDED` that this Python lacks."""
    missing = []
    for module, names in _NEEDED.items():
        try:
            found = importlib.import_module(module)
        except ImportError:
            missing.append(module)
            continue
        missing += [f"{module}.{name}" for name in names if not hasattr(found, name)]
    if not missing and not os.path.isdir("/proc/self/fd"):
        missing.append("/proc")
    return missing
