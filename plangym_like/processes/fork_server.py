"""The fork server: a process with everything imported, which forks workers on request.

A worker that is forked from it is up within milliseconds, and inherits neither threads nor locks
nor anything else of the user's process. There is one fork server a process, started when it is
first needed; its own side of the work is in `fork_server_main`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from plangym_like.errors import WorkerStartError
from plangym_like.fork_safety import forget_after_fork
from plangym_like.processes.child_process import (
    ChildProcess,
    Fate,
    Status,
    open_pidfd,
)
from plangym_like.processes.interrupts import interrupts_deferred
from plangym_like.processes.messages import (
    descriptors_in,
    receive_with_descriptors,
    rights,
)
from plangym_like.processes.parent_death import OwnersPipe

logger = logging.getLogger("plangym_like")

# Seconds that the fork server may be silent for while it imports, and otherwise.
_IMPORT_PATIENCE = 120.0
_PATIENCE = 20.0

ONE_THREAD = {
    f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")
} | {"VECLIB_MAXIMUM_THREADS": "1"}

_lock = threading.RLock()
_current: ForkServer | None = None
# One for all fork servers: what one does for its workers must not end with its replacement.
_owners_pipe = OwnersPipe()
_unfit: set[str] = set()


class ForkServerGoneError(Exception):
    """The fork server has ended or does not answer."""


class StartsThreadsError(Exception):
    """A preloaded module started threads, so the fork server must not fork any more."""

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.module = module


class ForkServer:
    """The owner's end of a fork server."""

    def __init__(self) -> None:
        forget_after_fork(_fresh_start)
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(here.close)
            theirs.callback(there.close)
            alive_read = _owners_pipe.new_read_end()
            theirs.callback(os.close, alive_read)
            self.pid = start_python(
                "plangym_like.processes.fork_server_main",
                "run",
                [there.fileno(), alive_read],
                dict(os.environ) | ONE_THREAD,
            )
            ours.pop_all()
        self._socket = here
        self._numbers = count()
        self._expected: set[int] = set()
        self._loaded: frozenset[str] | None = None
        self._answers: dict[int, tuple[Any, list[int]]] = {}
        self._finalizer = weakref.finalize(self, _end_fork_server, self.pid, os.getpid(), here)
        forget_after_fork(self)

    def preload(self, modules: Sequence[str]) -> None:
        """Ask for `modules` to be imported, without waiting until they are."""
        with _lock:
            self._send(next(self._numbers), "preload", tuple(modules), ())

    def get_ready(self, modules: Sequence[str]) -> None:
        """Wait until `modules` are imported, as far as that is possible."""
        if self._loaded is None or not self._loaded.issuperset(modules):
            self._ask("preload", tuple(modules))
            self._loaded = (self._loaded or frozenset()).union(modules)

    def fork(self, descriptors: Sequence[int]) -> ChildProcess:
        """Fork a worker on a data socket and an alive pipe, and where given on two outputs."""
        pid, (pidfd,) = self._ask("fork", None, descriptors)
        return ChildProcess(pid, pidfd, self.status, lambda pid: None)

    def status(self, pid: int) -> Status:
        """Return the exit status of a worker; the fork server collects those that end by itself."""
        try:
            status: Status = self._ask("status", pid)[0]
        except (ForkServerGoneError, OSError):
            return Fate.UNKNOWN
        return status

    def close(self) -> None:
        """End the fork server; its workers live on, but nobody knows their exit status any more."""
        self._finalizer()

    def forget(self) -> None:
        """Drop the descriptors in a forked copy of the owner."""
        if self._finalizer.detach():
            self._socket.close()

    def _send(self, number: int, verb: str, content: Any, descriptors: Sequence[int]) -> None:
        packet = pickle.dumps((number, verb, content, [p for p in sys.path if type(p) is str]))
        try:
            self._socket.settimeout(_IMPORT_PATIENCE if verb == "preload" else _PATIENCE)
            if descriptors:
                self._socket.sendmsg([packet], rights(descriptors))
            else:
                self._socket.send(packet)
        except (BrokenPipeError, ConnectionResetError, TimeoutError) as error:
            raise ForkServerGoneError from error
        except OSError as error:
            if self._socket.fileno() < 0:
                raise ForkServerGoneError from error
            raise

    def _ask(self, verb: str, content: Any, descriptors: Sequence[int] = ()) -> tuple[Any, ...]:
        """Send a request and return the answer and its descriptors.

        A signal handler may cut in and ask something itself, or raise; so each side's answers are
        told apart by number, and those that nobody expects any more are dropped.
        """
        with _lock:
            number = next(self._numbers)
            try:
                self._expected.add(number)
                self._send(number, verb, content, descriptors)
                while number not in self._answers:
                    self._receive()
                answer, received = self._answers[number]
            except BaseException:
                for descriptor in self._answers.get(number, (None, []))[1]:
                    os.close(descriptor)
                raise
            finally:
                self._expected.discard(number)
                self._answers.pop(number, None)
        if isinstance(answer, StartsThreadsError | OSError):
            raise answer
        return answer, received

    def _receive(self) -> None:
        packets: list[Any] = []
        try:
            receive_with_descriptors(self._socket, 1 << 16, packets)
            data, ancillary, _, _ = packets[0]
            received = descriptors_in(ancillary)
            number, answer = pickle.loads(data) if data else (None, None)
            if number in self._expected:
                self._answers[number] = answer, received
                return
        except OSError as error:  # a timeout or a reset
            raise ForkServerGoneError from error
        for descriptor in received:
            os.close(descriptor)
        if not data:
            raise ForkServerGoneError


def warm_up(preload: Sequence[str] = ()) -> None:
    """Start the fork_server, or have the one there is import more, without waiting for either."""
    if fork_server_supported():
        with contextlib.suppress(ForkServerGoneError):
            _fork_server().preload([name for name in preload if name not in _unfit])


def get_ready(preload: Sequence[str] = ()) -> bool:
    """Wait until there is a fork server with `preload` imported, and return whether it can fork.

    Raises
    ------
    WorkerStartError
        Two fork servers in a row ended or did not answer.
    """
    failure: ForkServerGoneError | None = None
    while True:
        fork_server = _fork_server()
        try:
            fork_server.get_ready([name for name in preload if name not in _unfit])
            return True
        except StartsThreadsError as error:
            # Its workers still need this fork server to say how they ended, so it is kept for them.
            _replace(fork_server)
            if not error.module:
                return False
            _unfit.add(error.module)
            logger.warning(
                "importing %s starts threads, so it is left out of what workers find preloaded",
                error.module,
            )
        except ForkServerGoneError as error:
            _replace(fork_server)
            fork_server.close()
            if failure is not None:
                raise WorkerStartError(
                    "the process that forks workers ended twice in a row, or did not answer; what "
                    'it printed may say why. Without it: start_method="spawn"'
                ) from error
            failure = error


def fork_worker(descriptors: Sequence[int], preload: Sequence[str] = ()) -> ChildProcess:
    """Fork a worker from the fork_server, which is replaced if it has gone; after `get_ready`.

    Raises
    ------
    WorkerStartError
        Two fork servers in a row ended or did not answer.
    """
    fork_server = _fork_server()
    try:
        return fork_server.fork(descriptors)
    except ForkServerGoneError:
        _replace(fork_server)
        fork_server.close()
    get_ready(preload)
    try:
        return _fork_server().fork(descriptors)
    except ForkServerGoneError as error:
        raise WorkerStartError(
            "the process that forks workers ended while it forked one"
        ) from error


def fork_server_supported() -> bool:
    """Return whether this platform has what a fork server needs (Linux 5.3 or later)."""
    if sys.platform != "linux":
        return False
    pidfd = open_pidfd(os.getpid())
    if pidfd is None:
        return False
    os.close(pidfd)
    return True


def _fork_server() -> ForkServer:
    global _current
    with _lock:
        if _current is None:
            with interrupts_deferred():
                _current = ForkServer()
        return _current


def _replace(fork_server: ForkServer) -> None:
    global _current
    with _lock:
        if _current is fork_server:
            _current = None


class _FreshStart:
    """Clears the module's state in forked copies of the process."""

    def forget(self) -> None:
        global _current, _lock
        _current, _lock = None, threading.RLock()


_fresh_start = _FreshStart()


def start_python(
    module: str,
    function: str,
    descriptors: Sequence[int],
    environ: dict[str, str],
    *,
    dies_with_parent: bool = False,
) -> int:
    """Start this Python anew, have it call a function with `descriptors`, and return its pid.

    It has the interpreter flags and the import path of this process, but knows nothing of the
    user's script; its standard input is empty, its outputs are this process's own. With
    `dies_with_parent` the kernel kills it when the thread that calls this ends.
    """
    if not sys.executable:
        raise WorkerStartError(
            "this Python does not know its own executable (sys.executable is empty), so it cannot "
            'be started anew; start_method="fork" does without'
        )
    path = [entry for entry in sys.path if type(entry) is str]
    first = "from plangym_like.processes import parent_death; parent_death.die_with_parent(); "
    code = (
        f"import sys; sys.path[:] = {path!r}; {first if dies_with_parent else ''}"
        f"from {module} import {function}; {function}({', '.join(map(str, descriptors))})"
    )
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    with _no_interrupt_meanwhile():
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", code],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            env=environ,
        )
        # Collecting the exit status is our own business; this keeps the object out of it.
        process.returncode = 0
    return process.pid


@contextlib.contextmanager
def _no_interrupt_meanwhile() -> Iterator[None]:
    """Block SIGINT, so that the new process is born with it blocked, until it ignores it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_fork_server(pid: int, owner: int, connection: socket.socket) -> None:
    if os.getpid() != owner:
        return
    with interrupts_deferred():
        connection.close()
        process = ChildProcess(pid, open_pidfd(pid))
        process.end()
        process.close()
