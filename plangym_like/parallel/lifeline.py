"""What makes a worker end when the process that it works for does, however that came about.

Each worker holds the read end of a pipe whose only write end is in that process. The kernel closes
it there on any kind of death, and answers on this side with SIGIO, whose default is to terminate:
no Python code has to run here, so a worker that is stuck in C with the GIL held ends as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import threading


def tie_to(alive_fd: int) -> None:
    """Make this process end as soon as the last write end of the pipe `alive_fd` is closed."""
    os.set_inheritable(alive_fd, False)
    if sys.platform == "linux":
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
        fcntl.fcntl(alive_fd, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(alive_fd, fcntl.F_GETFL)
        fcntl.fcntl(alive_fd, fcntl.F_SETFL, flags | os.O_ASYNC)
        # The pipe may have been closed before there was anybody to tell.
        poller = select.poll()
        poller.register(alive_fd, 0)
        if poller.poll(0):
            os._exit(1)
    else:
        threading.Thread(target=_wait_for_the_end, args=(alive_fd,), daemon=True).start()


def _wait_for_the_end(alive_fd: int) -> None:
    with contextlib.suppress(OSError):
        os.read(alive_fd, 1)
    os._exit(1)
