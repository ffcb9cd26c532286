"""`ChildProcess`: polls, kills and collects (reaps) one child process."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from enum import Enum

from plangym_like.fork_safety import forget_after_fork


class Fate(Enum):
    """Why there is no exit status: the process is still running, or the status is unknown."""

    RUNNING = "running"
    UNKNOWN = "unknown"


Status = int | Fate


def child_status(pid: int) -> Status:
    """Return the exit status of a child process, or a `Fate`, without collecting the child."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # other code in this process has collected it
        return Fate.UNKNOWN
    if result is None:
        return Fate.RUNNING
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def collect_child(pid: int) -> None:
    """Collect a child of this process that has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when `pid` ends, or ``None`` if this fails."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def processor_seconds(pid: int) -> float | None:
    """Return how much processor time the process `pid` has used, or ``None`` if not known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program, in parentheses, may hold spaces.
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def oom_kills() -> int | None:
    """Return how many processes the kernel has killed for lack of memory since the machine started.

    Return ``None`` if this is not known.
    """
    try:
        with open("/proc/vmstat", "rb") as file:
            counts = dict(line.split() for line in file)
        return int(counts[b"oom_kill"])
    except (OSError, KeyError, ValueError):
        return None


def fill_standard_descriptors() -> None:
    """Open the null device for each standard descriptor (0, 1, 2) that is closed.

    Otherwise the next socket would get that number, and printed text would go to that socket.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def flush_outputs() -> None:
    """Flush the standard outputs, so that a forked process does not print the same text again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


class ChildProcess:
    """A process that the current process owns; it need not be a child of the current process.

    Parameters
    ----------
    pid : int
        The process id.
    pidfd : int or None
        A descriptor of the process (see `open_pidfd`), which this object owns.
    status_fn, collect_fn : callable
        ``status_fn(pid)`` returns the exit status or a `Fate`; it does not wait until the process
        ends. ``collect_fn(pid)`` collects the process. The defaults are for children of the
        current process.
    """

    def __init__(
        self,
        pid: int,
        pidfd: int | None,
        status_fn: Callable[[int], Status] = child_status,
        collect_fn: Callable[[int], None] = collect_child,
    ) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.exitcode: int | None = None
        self.ended = False
        self._status_fn = status_fn
        self._collect_fn = collect_fn
        self._oom_kills = oom_kills()
        self._lock = threading.RLock()
        forget_after_fork(self)

    def poll(self) -> bool:
        """Return whether the process has ended; if it has, set `exitcode`.

        The exit code is negative for a signal, and ``None`` if it is not known.
        """
        if self.ended:
            return True
        with self._lock:
            if not self.ended and (self.pidfd is None or _readable(self.pidfd, 0.0)):
                status = self._status_fn(self.pid)
                if status is not Fate.RUNNING:
                    # This order is safe if a signal handler raises in between.
                    if isinstance(status, int):
                        self.exitcode = status
                    self._collect_fn(self.pid)
                    self.ended = True
        return self.ended

    def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds; return whether the process has ended."""
        deadline = time.monotonic() + timeout
        while not self.poll():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            # Sleep, because a descriptor is readable shortly before the process can be collected.
            if self.pidfd is None or _readable(self.pidfd, left):
                time.sleep(min(left, 0.001))
        return True

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        if self.ended:
            return
        with contextlib.suppress(ProcessLookupError):
            if self.pidfd is not None:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)

    def end(self, timeout: float = 5.0) -> bool:
        """Kill and collect the process; return whether it has ended within `timeout` seconds."""
        self.kill()
        return self.wait(timeout)

    def forget(self) -> None:
        """Treat the child process as ended; called in a fork of the process that owns it."""
        self._lock = threading.RLock()
        self.ended = True

    def close(self) -> None:
        """Close the descriptor; the process continues."""
        pidfd, self.pidfd = self.pidfd, None
        if pidfd is not None:
            os.close(pidfd)

    def describe_end(self) -> str:
        """Return a phrase that says how the process ended, and what usually causes this."""
        code = self.exitcode
        if code is None:
            return "how it ended is not known, because something else collected its exit status"
        if code >= 0:
            return (
                f"it exited with status {code}: something in it called os._exit or exit(), or it "
                "lost the connection"
            )
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "an unnamed signal"
        cause = _CAUSES.get(name, "another process sent it this signal")
        if name == "SIGKILL" and self._oom_kills is not None:
            now = oom_kills()
            if now is not None and now > self._oom_kills:
                cause = "the kernel has killed processes for lack of memory while it ran"
            else:
                cause = f"{_SENT_KILL}; the kernel has killed nothing for lack of memory"
        return f"{name} ({-code}) ended it: {cause}"


_SENT_KILL = "another process sent it, such as kill -9 or a job scheduler"
_CAUSES = {
    "SIGKILL": f"the kernel killed it for lack of memory, or {_SENT_KILL}",
    "SIGSEGV": "native code (a simulator or driver) accessed memory that does not belong to it",
    "SIGBUS": "native code accessed memory that does not exist, or shared memory is full",
    "SIGABRT": "native code (a simulator or driver) called abort",
    "SIGFPE": "native code divided by zero",
    "SIGILL": "native code was compiled for another processor",
    "SIGALRM": "a step of a trial exceeded step_timeout, or something in it set an alarm",
    "SIGTERM": "it was asked to end, often by a job scheduler or when a container stops",
}


def _readable(descriptor: int, timeout: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(math.ceil(max(timeout, 0.0) * 1000)))
