"""Start processes that are connected to this one, and start other Python interpreters."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from plangym_like.errors import WorkerStartError
from plangym_like.processes.child_process import (
    ChildProcess,
    fill_standard_descriptors,
    open_pidfd,
)

ONE_THREAD = {
    f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")
} | {"VECLIB_MAXIMUM_THREADS": "1"}

# A function that starts a process. Its first two arguments are the new process's ends of the data
# socket and of the alive pipe (see `parent_death`). The last argument closes the other ends, which
# a forked process must not keep.
Start = Callable[[int, int, contextlib.ExitStack], ChildProcess]


class Launched(NamedTuple):
    """A new process, its data socket and its alive pipe (see `parent_death`)."""

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

    The connection is a pair of sockets of type `kind`, and a pipe that tells the process when this
    one has ended (see `parent_death`).
    """
    fill_standard_descriptors()
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        here, there = socket.socketpair(socket.AF_UNIX, kind)
        ours.callback(here.close)
        theirs.callback(there.close)
        alive_read, alive_write = (
            io.FileIO(descriptor, mode)
            for descriptor, mode in zip(os.pipe(), ("rb", "wb"), strict=True)
        )
        ours.callback(alive_write.close)
        theirs.callback(alive_read.close)
        process = start(there.fileno(), alive_read.fileno(), ours)
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
    first = "from plangym_like.processes import parent_death; parent_death.die_with_parent(); "
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


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT; new processes inherit this, and unblock SIGINT once they ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
