"""The fork server: a process that has imported the workers' modules and forks workers on request.

A worker that is forked from it starts within milliseconds, and inherits no threads, locks or other
state of the user's process. The fork server is started when it is first needed. It runs
`fork_server_main`.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import weakref
from collections.abc import Sequence
from typing import Any

from plangym_like.errors import WorkerStartError
from plangym_like.processes.child import (
    ONE_THREAD,
    ChildProcess,
    Fate,
    Launched,
    Status,
    interrupts_deferred,
    launch_by,
    start_python,
)
from plangym_like.processes.shared_memory import none_are_left
from plangym_like.processes.wire import receive_with_descriptors, rights
from plangym_like.support.fork_safety import new_lock

logger = logging.getLogger("plangym_like")

# How many seconds to wait for an answer of the fork server: to an import, and to other requests.
_IMPORT_PATIENCE = 120.0
_PATIENCE = 20.0

_lock = new_lock()
_current: ForkServer | None = None
_unfit: set[str] = set()


class ForkServerGoneError(Exception):
    """The fork server has ended or does not answer."""


class StartsThreadsError(Exception):
    """A preloaded module has started threads, so the fork server must not fork any more."""

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.module = module


class ForkServer:
    """Starts a fork server, and sends requests to it.

    Each request is sent with its own socket for the answer. So the answer to an interrupted request
    cannot be mistaken for the answer to a later one.
    """

    def __init__(self) -> None:
        self._launched = launch_by(_start, socket.SOCK_SEQPACKET)
        self._socket = self._launched.connection
        self.pid, self.owner_pid = self._launched.process.pid, os.getpid()
        self._loaded: frozenset[str] | None = None
        self._finalizer = weakref.finalize(self, _end_fork_server, self._launched)

    def preload(self, modules: Sequence[str]) -> None:
        """Ask the fork server to import `modules`, without waiting for it."""
        self._send("preload", tuple(modules)).close()

    def get_ready(self, modules: Sequence[str]) -> None:
        """Wait until the fork server has imported all `modules` that can be imported."""
        if self._loaded is None or not self._loaded.issuperset(modules):
            self._ask("preload", tuple(modules))
            self._loaded = (self._loaded or frozenset()).union(modules)

    def fork(self, descriptors: Sequence[int]) -> ChildProcess:
        """Fork a worker; `descriptors` are its data socket, alive pipe, stdout and stderr."""
        pid, (pidfd,) = self._ask("fork", None, descriptors)
        return ChildProcess(pid, pidfd, self.status, lambda pid: None)

    def status(self, pid: int) -> Status:
        """Return the exit status of worker `pid`, or a `Fate`, as the fork server reports it."""
        try:
            status: Status = self._ask("status", pid)[0]
        except (ForkServerGoneError, OSError):
            return Fate.UNKNOWN
        return status

    def close(self) -> None:
        """End the fork server. Its workers continue, but their exit status will not be known."""
        self._finalizer()

    def _send(self, verb: str, content: Any, descriptors: Sequence[int] = ()) -> socket.socket:
        """Send a request, and return the socket on which its answer will come."""
        packet = pickle.dumps((verb, content, [p for p in sys.path if type(p) is str]))
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        patience = _IMPORT_PATIENCE if verb == "preload" else _PATIENCE
        try:
            with theirs:
                answers.settimeout(patience)
                self._socket.settimeout(patience)
                self._socket.sendmsg([packet], rights([theirs.fileno(), *descriptors]))
        except BaseException as error:
            answers.close()
            closed = isinstance(error, OSError) and self._socket.fileno() < 0
            if closed or isinstance(error, BrokenPipeError | ConnectionResetError | TimeoutError):
                raise ForkServerGoneError from error
            raise
        return answers

    def _ask(self, verb: str, content: Any, descriptors: Sequence[int] = ()) -> tuple[Any, ...]:
        """Send a request, and return the answer and its descriptors."""
        # One request at a time, so that the time limit of a request does not include earlier ones.
        with _lock, self._send(verb, content, descriptors) as answers:
            try:
                data, received = receive_with_descriptors(answers, 1 << 16)
            except OSError as error:  # a timeout or a reset
                raise ForkServerGoneError from error
        if not data:
            raise ForkServerGoneError
        answer = pickle.loads(data)
        if isinstance(answer, StartsThreadsError | OSError):
            raise answer
        return answer, received


def warm_up(preload: Sequence[str] = ()) -> None:
    """Make the fork server import `preload`, without waiting; start it if necessary."""
    if fork_server_supported():
        try:
            _fork_server().preload([name for name in preload if name not in _unfit])
        except ForkServerGoneError:
            pass
        except OSError as error:
            if error.errno is None:
                raise  # raised by a signal handler, such as a TimeoutError
            # Otherwise `get_ready` raises it again, with advice.


def get_ready(preload: Sequence[str] = ()) -> bool:
    """Wait until the fork server has imported `preload`; return whether it can fork.

    Raises
    ------
    WorkerStartError
        Two fork servers in succession ended or did not answer.
    """
    failure: ForkServerGoneError | None = None
    while True:
        fork_server = _fork_server()
        try:
            fork_server.get_ready([name for name in preload if name not in _unfit])
            return True
        except StartsThreadsError as error:
            # This fork server is kept, to report the exit status of its workers.
            _replace(fork_server)
            if not error.module:
                return False
            _unfit.add(error.module)
            logger.warning(
                "importing %s starts threads, so it is not preloaded for workers",
                error.module,
            )
        except ForkServerGoneError as error:
            _replace(fork_server)
            fork_server.close()
            if failure is not None:
                raise WorkerStartError(
                    "the process that forks workers ended twice in a row, or did not answer; its "
                    'output may say why. start_method="spawn" does not need it'
                ) from error
            failure = error


def fork_worker(descriptors: Sequence[int], preload: Sequence[str] = ()) -> ChildProcess:
    """Fork a worker from the fork server, which is replaced if it has ended.

    Call `get_ready` first.

    Raises
    ------
    WorkerStartError
        Two fork servers in succession ended or did not answer.
    """
    failure: ForkServerGoneError | None = None
    for _ in range(2):
        fork_server = _fork_server()
        try:
            return fork_server.fork(descriptors)
        except ForkServerGoneError as error:
            failure = error
            _replace(fork_server)
            fork_server.close()
            get_ready(preload)
    raise WorkerStartError(
        "the process that forks workers ended twice while it forked one, or did not answer; its "
        "output may say why"
    ) from failure


def fork_server_supported() -> bool:
    """Return whether a fork server can run here, which needs Linux 5.3 or later."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except AttributeError:
        return False
    except OSError as error:
        return none_are_left(error) is not None
    return True


def _fork_server() -> ForkServer:
    global _current
    with _lock:
        if _current is None or _current.owner_pid != os.getpid():
            with interrupts_deferred():
                _current = ForkServer()
        return _current


def _replace(fork_server: ForkServer) -> None:
    global _current
    with _lock:
        if _current is fork_server:
            _current = None


def _start(control_fd: int, alive_fd: int) -> ChildProcess:
    environ = dict(os.environ) | ONE_THREAD
    main = "plangym_like.processes.fork_server_main"
    return start_python(main, "run", [control_fd, alive_fd], environ)


def _end_fork_server(launched: Launched) -> None:
    with interrupts_deferred():
        # Kill it before closing its pipe, since closing would also end its workers.
        launched.process.end()
        launched.close()
