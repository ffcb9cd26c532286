"""`Worker`: the main loop of a worker, which hosts an object and answers requests one by one."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from plangym_like.errors import PlangymError
from plangym_like.processes.child import (
    die_with_parent,
    flush_outputs,
    serve_another_process,
    tie_to,
)
from plangym_like.processes.remote_errors import pack_exception
from plangym_like.processes.wire import (
    ACCESS,
    CLOSE,
    EXCEPTION,
    RESULT,
    Channel,
    Message,
    close_all,
    dumps,
    loads,
    outgoing,
)
from plangym_like.support.fork_safety import close_in_copies

# The number of frames of `_answer` and its helpers, which are left out of tracebacks.
_OWN_FRAMES = 2
# For packages such as gym_classics, which cannot be used before their `register` is called.
_AFRESH = (
    "raised while a new process made its object. This process has imported every package afresh: "
    "if a package has to be set up before it is used (for example by calling its register()), pass "
    "a function that sets up the package and then makes the object"
)


def run(data_fd: int, parent: int, alive_fd: int = -1) -> NoReturn:
    """Answer requests on the socket `data_fd` until the owner sends CLOSE or exits.

    The process ends with the process `parent`, unless this is 0, and with the owner of the pipe
    `alive_fd`, unless this is -1.
    """
    status = 1
    try:
        serve_another_process()
        connection = _take_over(data_fd, parent, alive_fd)
        status = Worker(connection).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


# The functions below must stay short: without any memory left, CPython before 3.14 hangs when it
# leaves a `with` or `finally` block more than 256 instructions into a function.


def _take_over(data_fd: int, parent: int, alive_fd: int) -> socket.socket:
    """Set up this process; return its data socket."""
    if parent:
        die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if alive_fd >= 0:
        tie_to(alive_fd)
    os.set_inheritable(data_fd, False)
    return close_in_copies(socket.socket(fileno=data_fd))


def _flush() -> None:
    with contextlib.suppress(BaseException):
        flush_outputs()


class Worker:
    """Reads requests, executes them, and replies.

    If the hosted object has a method ``attend_bell``, the worker calls ``attend_bell(True)`` while
    it polls for the next request, and ``attend_bell(False)`` afterwards. The method returns whether
    it had anything to do.

    Request 0 constructs the hosted object. If that fails, the worker replies with the error and
    ends.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._channel = Channel(connection, blocking=True)
        self._requests: deque[Message] = deque()
        self._hosted: Any = None
        self._attend: Callable[[Any, bool], bool] = _has_no_bell
        self._linger = 0.0
        self._pollers: dict[int, select.poll] = {}

    def serve(self) -> int:
        """Answer requests until CLOSE or the end of the connection; return the exit status."""
        first = self._next()
        if first is None:
            return 0
        if not self._construct(first):
            return 1
        self._attend = getattr(type(self._hosted), "attend_bell", _has_no_bell)
        _workers[:] = [self]
        while (message := self._next()) is not None:
            self._answer(message)
            del message  # otherwise its payload would stay in memory until the next request
            if self._linger:
                self._look_out()
        self._say_goodbye()
        return 0

    def _next(self) -> Message | None:
        """Return the next request; ``None`` if the owner sent CLOSE or the connection ended."""
        while not (self._requests or self._channel.ended):
            self._channel.receive(self._requests.append)
        if not self._requests or self._requests[0].kind == CLOSE:
            return None
        return self._requests.popleft()

    def has_request(self, fd: int, seconds: float) -> bool:
        """Do what `wait_for_request` does."""
        if self._requests:
            return True
        poller = self._pollers.get(fd)
        if poller is None:
            poller = self._pollers[fd] = select.poll()
            poller.register(self._connection, select.POLLIN)
            if fd >= 0:
                poller.register(fd, select.POLLIN)
        events = poller.poll(1000 * seconds)
        return bool(events) and self._connection.fileno() in dict(events)

    def _look_out(self) -> None:
        """Poll for a while, so that the next request does not have to wake the worker."""
        until = time.perf_counter() + self._linger
        while not self.has_request(-1, 0.0) and time.perf_counter() < until:
            if self._attend(self._hosted, True):
                until = time.perf_counter() + self._linger
            else:
                os.sched_yield()
        self._attend(self._hosted, False)

    def _construct(self, message: Message) -> bool:
        try:
            setup, constructor = loads(message.payload)
            self._linger = setup.pop("linger")
            _settle_in(**setup)
            self._hosted = loads(constructor)()
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, PlangymError | MemoryError):
                error.add_note(_AFRESH)
            self._send(EXCEPTION, message.request, pack_exception(error, skip_frames=1))
            return False
        self._send(RESULT, message.request, dumps(None))
        return True

    def _answer(self, message: Message) -> None:
        try:
            payload = dumps(self._do(message))
        except BaseException as error:
            told = pack_exception(error, skip_frames=_OWN_FRAMES)
            self._send(EXCEPTION, message.request, told)
        else:
            self._send(RESULT, message.request, payload)

    def _do(self, message: Message) -> Any:
        descriptors = message.descriptors
        try:
            if descriptors is None:
                raise OSError(
                    errno.EMFILE,
                    "a worker has too many open files to receive those of a request (see "
                    "`ulimit -n`)",
                )
            content = loads(message.payload)
            message = message._replace(payload=b"")
            if message.kind == ACCESS:
                return self._access(content)
            target, arguments, options = content
            if isinstance(target, str):
                return getattr(self._hosted, target)(*arguments, **options)
        except BaseException:
            close_all(descriptors or ())
            raise
        if descriptors:
            return target(self._hosted, *arguments, fds=descriptors)
        return target(self._hosted, *arguments)

    def _access(self, name: str) -> tuple[bool, Any]:
        """Return False and the attribute `name`; for a method, True and ``None``."""
        value = getattr(self._hosted, name)
        return (True, None) if callable(value) else (False, value)

    def _send(self, kind: int, request: int, payload: bytes) -> None:
        self._channel.send(outgoing(kind, request, payload))

    def _say_goodbye(self) -> None:
        with contextlib.suppress(BaseException):
            close = getattr(self._hosted, "close", None)
            if callable(close):
                close()
        with contextlib.suppress(BaseException):
            self._hosted = None
            atexit._run_exitfuncs()


# The worker of this process, once it answers requests.
_workers: list[Worker] = []


def wait_for_request(fd: int, seconds: float) -> bool:
    """Wait until the owner has sent another request, or until the descriptor `fd` can be read.

    For functions that this process executes for its owner. This waits at most `seconds`, and
    returns whether there is a request. If `fd` is -1, it waits only for requests.
    """
    return _workers[0].has_request(fd, seconds)


def _settle_in(
    *,
    path: list[str],
    directory: str | None,
    argv: list[str],
    environ: dict[str, str],
    session_key: bytes,
) -> None:
    """Adopt the owner's import path, directory, arguments, environment and session key."""
    sys.path[:] = path
    sys.argv = argv
    if directory is not None:
        with contextlib.suppress(OSError):
            os.chdir(directory)
    if dict(os.environ) != environ:
        os.environ.clear()
        os.environ.update(environ)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # Otherwise all workers of one fork server would draw the same random numbers.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    from plangym_like.states.rows import adopt_session_key

    adopt_session_key(session_key)


def _has_no_bell(hosted: Any, watching: bool) -> bool:
    return False
