"""End workers when their owner ends, even if the owner is killed.

Each worker, and the fork server, has an open file on the read end of a pipe, its alive pipe. Only
the owner has the write end. The kernel closes the write end when the owner dies in any way, and
then sends SIGKILL to the process that is registered for the file's signals (``F_SETOWN``). No code
has to run in the process that is killed. SIGKILL also ends a process that is stopped, that blocks
its signals, or that is stuck in C with the GIL held.

The kernel releases the file when all its descriptors are closed, and a worker may close its own
descriptors. So for each worker that it forks, the fork server opens the pipe once more, and
registers the worker for the signal of that file. A worker that is a direct child of its owner asks
the kernel to send it SIGKILL when its parent ends.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading

_PR_SET_PDEATHSIG = 1


def tie_to(alive_fd: int) -> None:
    """Make this process end as soon as the last write end of the pipe `alive_fd` is closed."""
    os.set_inheritable(alive_fd, False)
    kill_at_end_of(alive_fd, os.getpid())
    # The pipe may have been closed before the signal was requested.
    poller = select.poll()
    poller.register(alive_fd, 0)
    if poller.poll(0):
        os._exit(1)


def kill_at_end_of(alive_fd: int, pid: int) -> None:
    """Let the kernel kill `pid` when the last write end of the pipe `alive_fd` is closed.

    This works for one process per open file, and only as long as some process has a descriptor of
    the file behind `alive_fd`.
    """
    import fcntl  # Windows does not have it

    fcntl.fcntl(alive_fd, fcntl.F_SETOWN, pid)
    fcntl.fcntl(alive_fd, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(alive_fd, fcntl.F_GETFL)
    fcntl.fcntl(alive_fd, fcntl.F_SETFL, flags | os.O_ASYNC)


def open_again(pipe_fd: int) -> int:
    """Open the read end of the pipe `pipe_fd` again, as a new open file; return its descriptor."""
    return os.open(f"/proc/self/fd/{pipe_fd}", os.O_RDONLY)


def in_lasting_thread() -> bool:
    """Return whether this thread lives as long as the process, so that `die_with_parent` works.

    `die_with_parent` ends a child process as soon as the thread that started it ends. Only the main
    thread is certain to live as long as the process.
    """
    return threading.get_native_id() == os.getpid()


def die_with_parent() -> None:
    """Let the kernel kill this process as soon as the thread that started it has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
