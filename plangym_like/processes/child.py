"""`ChildProcess`: a process that this process owns; how it is started, and ends with its owner.

No code has to run in a process for it to end with its owner: the kernel sends SIGKILL, which also
ends a process that is stopped, that blocks its signals, or that is stuck in C with the GIL held.

- A direct child of its owner (the fork server, a spawned worker, or a forked copy) has an open file
  on the read end of a pipe, its alive pipe. Only the owner has the write end. The kernel closes the
  write end when the owner dies in any way, and then kills the process that is registered for the
  file's signals (``F_SETOWN``).
- A worker that the fork server has forked asks to be killed when its parent, the fork server, ends.
  A direct child of the main thread does this too, in case it closes its descriptors.

Each worker imports the module of its environment's class. If this module starts workers when it is
imported, each worker would start more of them, without end. So a worker that is importing a module
starts no workers (see `check_can_start`).
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from plangym_like.errors import WorkerStartError
from plangym_like.support.fork_safety import close_in_copies, new_lock

# Environment variables that limit numerical libraries to one thread.
ONE_THREAD = {
    f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")
} | {"VECLIB_MAXIMUM_THREADS": "1"}
# Why processes end with a signal, by its name.
_CAUSES = {
    "SIGKILL": "the kernel killed it for lack of memory, or another process sent it, such as "
    "kill -9 or a job scheduler",
    "SIGSEGV": "native code (a simulator or driver) accessed memory that does not belong to it",
    "SIGBUS": "native code accessed memory that does not exist, or shared memory is full",
    "SIGABRT": "native code (a simulator or driver) called abort",
    "SIGFPE": "native code divided by zero",
    "SIGILL": "native code was compiled for another processor",
    "SIGALRM": "something in it set an alarm",
    "SIGTERM": "it was asked to end, often by a job scheduler or when a container stops",
}

_PR_SET_PDEATHSIG = 1
_MFD_CLOEXEC = 1
# The number of this system call is the same on all common processors.
_PIDFD_OPEN = 434
# `interrupts_deferred` defers Ctrl-C for at most so long.
_DEFERRED_SECONDS = 3.0

# Whether this process works for another one.
_is_worker = False


class ChildProcess:
    """A process that the current process owns, and the socket that connects the two.

    Parameters
    ----------
    pid : int
    connection : socket.socket
        The owner's end of the connection.
    *kept : io.FileIO
        What is closed together with the connection, such as the alive pipe.
    status : socket.socket, optional
        For a worker of the fork server: the socket on which its exit status will come. All other
        processes must be children of this one.
    wake : callable, optional
        For a worker of the fork server: its `ForkServer.wake`. This reference also keeps the fork
        server alive until the worker is closed; its workers would end with it.

    Attributes
    ----------
    exitcode : int or None
        The exit status, negative for a signal; ``None`` if it is not known.
    ended : bool
        Whether the process is known to have ended, or belongs to another process.
    sentinel : int
        A descriptor that becomes readable when the process ends.
    """

    def __init__(
        self,
        pid: int,
        connection: socket.socket,
        *kept: io.FileIO,
        status: socket.socket | None = None,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self.pid = pid
        self.connection = connection
        self.exitcode: int | None = None
        self.ended = False
        self._owner_pid = os.getpid()
        self._wake = wake
        self._status = status
        if status is not None:
            status.setblocking(False)
        sentinel = io.FileIO(open_pidfd(pid)) if status is None else status
        self.sentinel = sentinel.fileno()
        self._closed_with_it = [*kept, connection, sentinel]
        self._lock = new_lock()
        close_in_copies(self)

    def poll(self) -> bool:
        """Return whether the process has ended; if it has, set `exitcode`."""
        with self._lock:
            if os.getpid() != self._owner_pid:
                self.ended = True
            elif not self.ended and self._status is not None:
                self._read_status(self._status)
            elif not self.ended:
                self._collect()
        return self.ended

    def _read_status(self, status: socket.socket) -> None:
        try:
            text = status.recv(64)
        except BlockingIOError:
            return
        except OSError:  # a reset
            text = b""
        self.exitcode = int(text) if text else None
        self.ended = True

    def _collect(self) -> None:
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            # This order is safe if a signal handler raises an exception in between.
            exited = found.si_code == os.CLD_EXITED
            self.exitcode = found.si_status if exited else -found.si_status
            os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # other code in this process has collected it
            pass
        self.ended = True

    def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds; return whether the process has ended."""
        deadline = time.monotonic() + timeout
        poller = select.poll()
        poller.register(self.sentinel, select.POLLIN)
        while not self.poll():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            # Sleep, because a descriptor is readable shortly before the process can be collected.
            if poller.poll(math.ceil(left * 1000)):
                time.sleep(min(left, 0.001))
        return True

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        if not self.poll():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def end(self, timeout: float = 5.0) -> bool:
        """Kill and collect the process; return whether it has ended within `timeout` seconds."""
        self.kill()
        if self._wake is not None:
            self._wake()  # only a fork server that runs can report the end of a worker
        return self.wait(timeout)

    def close(self) -> None:
        """Close the descriptors, and treat the process as ended; it is not killed.

        May be called repeatedly, even after an interrupted call.
        """
        self.ended = True
        for each in self._closed_with_it:
            each.close()
        self._wake = None

    def describe_end(self) -> str:
        """Return a phrase that says how the process ended, and what usually causes this."""
        code = self.exitcode
        if code is None:
            return (
                "how it ended is not known, because something else collected its exit status, or "
                "the process that starts workers was killed, and its workers with it"
            )
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
        return f"{name} ({-code}) ended it: {cause}"


def start_child(start: Callable[[int, int], int]) -> ChildProcess:
    """Start a child of this process, which is connected to it and ends with it.

    ``start(data_fd, alive_fd)`` starts it and returns its process id. The arguments are the child's
    end of the connection, a pair of stream sockets, and of its alive pipe.
    """
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        here, there = socket.socketpair()
        ours.callback(close_in_copies(here).close)
        theirs.callback(there.close)
        read_fd, write_fd = os.pipe()
        alive_read, alive_write = io.FileIO(read_fd, "rb"), io.FileIO(write_fd, "wb")
        ours.callback(close_in_copies(alive_write).close)
        theirs.callback(alive_read.close)
        process = ChildProcess(start(there.fileno(), alive_read.fileno()), here, alive_write)
        ours.pop_all()
    return process


def open_pidfd(pid: int) -> int:
    """Return a pidfd of a child that has just been started.

    If this fails, for example because there are too many open files, kill and collect the child.
    """
    try:
        # Pythons that were built for an old C library, such as those of uv, lack this function.
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        return _checked(_libc().syscall(*map(ctypes.c_long, (_PIDFD_OPEN, pid, 0))))
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # children are ignored in this process
            os.waitpid(pid, 0)
        raise


def memory_file() -> int:
    """Make a file in memory; return its descriptor, which is not inheritable."""
    if hasattr(os, "memfd_create"):  # as in `open_pidfd`
        return os.memfd_create("plangym_like", _MFD_CLOEXEC)
    return _checked(_libc().memfd_create(b"plangym_like", _MFD_CLOEXEC))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(descriptor: int) -> int:
    """Return `descriptor`, or raise the `OSError` of the call that has returned -1 instead."""
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return descriptor


def start_python(
    function: str,
    arguments: Sequence[int],
    *,
    descriptors: Sequence[int],
    environ: dict[str, str],
) -> int:
    """Start another Python interpreter; return its process id.

    It calls ``function(*arguments)``, a function of a module in this folder that is named
    ``module.function``, and inherits `descriptors`. It has the interpreter flags and the import
    path of this process, but does not import the user's script. Its standard input is empty.
    """
    if not sys.executable:
        raise WorkerStartError(
            "this Python does not know its own executable (sys.executable is empty), so it cannot "
            'start another interpreter; start_method="fork" does not need it'
        )
    module, _, name = function.rpartition(".")
    code = (
        f"import sys; sys.path[:] = {list(map(str, sys.path))!r}; "
        f"from {__package__} import {module}; {module}.{name}(*{tuple(arguments)!r})"
    )
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    # Block SIGINT; new processes inherit this, and unblock it once they ignore it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", code],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            env=environ,
        )
        # The exit status is collected by `ChildProcess`, not by this object.
        process.returncode = 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process.pid


def flush_outputs() -> None:
    """Flush the standard outputs, so that a forked process does not print the same text again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let Ctrl-C take effect only after the block, which should take milliseconds.

    Only the main thread is interrupted, so this does nothing in other threads.

    Examples
    --------
    >>> try:
    ...     with interrupts_deferred():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("not interrupted")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    not interrupted
    interrupted
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    begun = time.monotonic()

    def defer(number: int, frame: FrameType | None) -> None:
        if time.monotonic() - begun < _DEFERRED_SECONDS:
            arrived.append((number, frame))
            return
        # The handler of another signal has raised an exception just before the end of the block.
        signal.signal(signal.SIGINT, handler)
        handler(number, frame)

    try:
        signal.signal(signal.SIGINT, defer)
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            handler(*arrived[0])


def tie_to(alive_fd: int) -> None:
    """Make this process end as soon as the last write end of the pipe `alive_fd` is closed.

    This works as long as the process has a descriptor of the file behind `alive_fd`.
    """
    import fcntl  # Windows does not have it

    os.set_inheritable(alive_fd, False)
    fcntl.fcntl(alive_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(alive_fd, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(alive_fd, fcntl.F_GETFL)
    fcntl.fcntl(alive_fd, fcntl.F_SETFL, flags | os.O_ASYNC)
    # The pipe may have been closed before the signal was requested.
    poller = select.poll()
    poller.register(alive_fd, 0)
    if poller.poll(0):
        os._exit(1)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process as soon as the thread that started it has ended.

    `parent` is the id of the process of that thread, which may have ended already.
    """
    _libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def serve_another_process() -> None:
    """Note that this process is a worker, or a fork server."""
    global _is_worker
    _is_worker = True


def platform_has_workers() -> bool:
    """Return whether this platform has what workers need, which only Linux has."""
    return sys.platform == "linux"


def check_can_start() -> None:
    """Raise an error if this process can't start workers.

    Raises
    ------
    WorkerStartError
        The platform is not Linux, or this process is a worker that is importing a module.
    """
    if sys.platform != "linux":
        raise WorkerStartError(
            f"workers need Linux, and this system is {sys.platform!r}. In one process everything "
            "works: leave out n_workers, isolate and step_timeout, and use same.rollout, or "
            "n_threads=0, to collect data"
        )
    if not _is_worker:
        return
    # importlib sets this attribute while it runs the code of a module.
    importing = [
        name
        for name, module in list(sys.modules.items())
        if getattr(getattr(module, "__spec__", None), "_initializing", False)
    ]
    if importing:
        raise WorkerStartError(
            f"the module {importing[-1]!r} starts workers while it is imported. A worker has "
            "imported it to load its environment. It starts no workers, because these would import "
            "the module too, and start workers without end. Start workers in a function, or below "
            '`if __name__ == "__main__":`, or move the class of the environment to a module that '
            "starts none"
        )


def is_worker() -> bool:
    """Return whether this process is a worker."""
    return _is_worker
