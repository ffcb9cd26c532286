"""`ForkedCopy`: runs a function in a short-lived copy of this process.

The copy has everything that this process has in memory, and nothing that it does affects this
process. Locks that other threads hold are never released in the copy, and so it may hang; it is
killed after a time limit.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable
from functools import partial

from plangym_like.processes.child import ChildProcess, Launched, launch_by, start_copy, tie_to


class ForkedCopy:
    """Calls a function in a forked copy of this process, in the background.

    Parameters
    ----------
    function : callable
    seconds : float
        How long the copy may take.
    """

    def __init__(self, function: Callable[[], bytes], seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._launched: Launched | None = None
        if hasattr(os, "fork"):
            with contextlib.suppress(OSError):  # there is no memory for the copy, for example
                self._launched = launch_by(partial(_start_copy, function))

    def result(self) -> bytes | None:
        """Wait for the result of the function, and end the copy.

        Return ``None`` if the copy could not be made, if the function raised an exception, if it
        took too long, or if this method or `close` was called before.
        """
        launched = self._launched
        if launched is None:
            return None
        try:
            return _read(launched.connection, self._until)
        finally:
            self.close()

    def close(self) -> None:
        """End the copy; may be called repeatedly."""
        launched, self._launched = self._launched, None
        if launched is not None:
            launched.process.end()
            launched.close()


def _read(connection: socket.socket, until: float) -> bytes | None:
    """Return what the copy has sent, after its length."""
    received = bytearray()
    with contextlib.suppress(OSError):  # a TimeoutError, or the copy has died
        while (left := until - time.monotonic()) > 0:
            connection.settimeout(left)
            part = connection.recv(1 << 20)
            if not part:
                break
            received += part
            if len(received) >= 8 and len(received) - 8 == int.from_bytes(received[:8], "little"):
                return bytes(received[8:])
    return None


def _start_copy(function: Callable[[], bytes], data_fd: int, alive_fd: int) -> ChildProcess:
    with warnings.catch_warnings():
        # Python and JAX warn that a copy of a process with threads may hang.
        warnings.simplefilter("ignore")
        return start_copy(partial(_run, function, data_fd, alive_fd))


def _run(function: Callable[[], bytes], data_fd: int, alive_fd: int) -> None:
    gc.disable()  # it would write to most pages of memory, which would then be copied
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tie_to(alive_fd)
    # What an environment prints was printed by this process already.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    result = function()
    with socket.socket(fileno=data_fd) as connection:
        connection.setblocking(True)
        connection.sendall(len(result).to_bytes(8, "little") + result)
