"""`ChildProcess`: a process that this process owns; how it is started, and ends with its owner.

Each worker, and the fork server, has an open file on the read end of a pipe, its alive pipe. Only
the owner has the write end. The kernel closes the write end when the owner dies in any way, and
then sends SIGKILL to the process that is registered for the file's signals (``F_SETOWN``). No code
has to run in the process that is killed. SIGKILL also ends a process that is stopped, that blocks
its signals, or that is stuck in C with the GIL held.

The kernel releases the file when all its descriptors are closed, and a worker may close its own
descriptors. So for each worker that it forks, the fork server opens the pipe once more, and
registers the worker for the signal of that file. A worker that is a direct child of its owner asks
the kernel to send it SIGKILL when its parent ends.

Each worker imports the module of its environment's class. If this module starts workers when it is
imported, each worker would start more of them, without end. So a worker that is importing a module
starts no workers (see `check_can_start`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
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
from enum import Enum
from types import CodeType, FrameType
from typing import NamedTuple

from plangym_like.errors import WorkerStartError
from plangym_like.support.fork_safety import close_in_copies, new_lock

# Environment variables that limit numerical libraries to one thread.
ONE_THREAD = {
    f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")
} | {"VECLIB_MAXIMUM_THREADS": "1"}
# Why processes end with a signal, by its name.
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
# What workers need, as names in Python's modules. Only Linux has all of them.
_NEEDED = {
    "fcntl": ("F_SETSIG", "F_SETOWN"),  # the kernel ends workers whose owner has died
    "os": ("O_ASYNC", "fork", "posix_fallocate", "register_at_fork", "sched_getaffinity", "waitid"),
    "select": ("poll",),
    "signal": ("SIGKILL", "pthread_sigmask"),
    "socket": ("AF_UNIX", "MSG_CMSG_CLOEXEC", "MSG_NOSIGNAL", "SCM_RIGHTS"),
}

_PR_SET_PDEATHSIG = 1

# In a process that works for another one: the function in which it began to do so.
_main_loop: CodeType | None = None


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
        self._lock = new_lock()
        close_in_copies(self)

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

    def close(self) -> None:
        """Close the descriptor, and treat the process as ended; it is not killed."""
        self.ended = True
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


def _readable(descriptor: int, timeout: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(math.ceil(max(timeout, 0.0) * 1000)))


# A function that starts a process; its arguments are the ends of the data socket and of the alive
# pipe that the new process has.
Start = Callable[[int, int], ChildProcess]


class Launched(NamedTuple):
    """A new process, its data socket and its alive pipe."""

    connection: socket.socket
    alive_write: io.FileIO
    process: ChildProcess

    def close(self) -> None:
        """Close all descriptors; may be called repeatedly, even after an interrupted call."""
        self.connection.close()
        self.alive_write.close()
        self.process.close()


def launch_by(start: Start, kind: int = socket.SOCK_STREAM) -> Launched:
    """Start a process by calling `start`, and connect it to this one.

    The connection is a pair of sockets of type `kind`; the alive pipe ends the process with this
    one.
    """
    fill_standard_descriptors()
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        here, there = socket.socketpair(socket.AF_UNIX, kind)
        ours.callback(close_in_copies(here).close)
        theirs.callback(there.close)
        alive_read, alive_write = (
            io.FileIO(descriptor, mode)
            for descriptor, mode in zip(os.pipe(), ("rb", "wb"), strict=True)
        )
        ours.callback(close_in_copies(alive_write).close)
        theirs.callback(alive_read.close)
        process = start(there.fileno(), alive_read.fileno())
        ours.pop_all()
    return Launched(here, alive_write, process)


def start_python(
    module: str,
    function: str,
    descriptors: Sequence[int],
    environ: dict[str, str],
    *,
    dies_with_parent: bool = False,
) -> ChildProcess:
    """Start another Python interpreter, which calls ``module.function(*descriptors)``.

    It has the interpreter flags and the import path of this process, but does not import the user's
    script. Its standard input is empty, and it shares the outputs of this process. If
    `dies_with_parent` is true, the kernel kills it when the calling thread ends.
    """
    if not sys.executable:
        raise WorkerStartError(
            "this Python does not know its own executable (sys.executable is empty), so it cannot "
            'start another interpreter; start_method="fork" does not need it'
        )
    path = [entry for entry in sys.path if type(entry) is str]
    first = "from plangym_like.processes.child import die_with_parent; die_with_parent(); "
    code = (
        f"import sys; sys.path[:] = {path!r}; {first if dies_with_parent else ''}"
        f"from {module} import {function}; {function}({', '.join(map(str, descriptors))})"
    )
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    with _interrupts_blocked():
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", code],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            env=environ,
        )
        # The exit status is collected by `ChildProcess`, not by this object.
        process.returncode = 0
    return ChildProcess(process.pid, open_pidfd(process.pid))


def start_copy(run: Callable[[], object]) -> ChildProcess:
    """Fork this process; the copy calls `run`, and then ends."""
    flush_outputs()
    dies_with_parent = in_lasting_thread()
    pid = os.fork()
    if pid == 0:
        try:
            if dies_with_parent:
                die_with_parent()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            run()
        finally:
            os._exit(1)
    return ChildProcess(pid, open_pidfd(pid))


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT; new processes inherit this, and unblock SIGINT once they ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
    signal.signal(signal.SIGINT, lambda number, frame: arrived.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            handler(*arrived[0])


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
