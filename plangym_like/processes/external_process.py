"""`ExternalProcess`: hosts any object in a child process; the requests to it, and their replies."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import signal
import socket
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Self

from plangym_like.errors import ClosedError, WorkerDiedError
from plangym_like.processes.child import ChildProcess, check_can_start, interrupts_deferred
from plangym_like.processes.remote_errors import unpack_exception
from plangym_like.processes.start_methods import launch, start_error, worker_environ
from plangym_like.processes.wire import (
    ACCESS,
    CALL,
    CLOSE,
    EXCEPTION,
    Buffer,
    Channel,
    Message,
    dumps,
    dumps_by_value,
    loads,
    outgoing,
)
from plangym_like.results import Future
from plangym_like.support.fork_safety import new_lock

logger = logging.getLogger("plangym_like")

MakeError = Callable[[], BaseException]
# A reply or, once the process has ended, a function that returns the error.
Reply = Message | MakeError

# The longest time that a waiting thread sleeps before it checks its request again. A reply wakes
# the thread, but not if another thread, or a signal handler, has just received this reply.
_LOOK_AGAIN_SECONDS = 5e-3

_serial_numbers = count()


class ExternalProcess:
    """Hosts, in a child process, the object that `constructor` returns.

    The process starts immediately and makes the object in the background. The first use waits for
    the object, and raises any error of its constructor. All attributes and methods of the object
    can be used through this one, under their own names and with their own arguments, except names
    with a leading underscore and the names of this class. `call` has no such exceptions. Errors of
    the object are raised with their own type and a `RemoteTraceback` as their cause. The process
    continues.

    The process ends when `close` is called, when the last references to this object and its futures
    are dropped, or when its owner ends, even if the owner is killed.

    Any thread may use it. Threads wait without a lock, so an interrupt of a wait changes nothing.
    Data is sent and received in short exchanges, which never wait. If a signal handler raises an
    exception within an exchange, data may be lost: the process is killed, and its requests fail. A
    handler that has interrupted an exchange cannot use the same process.

    Parameters
    ----------
    constructor : callable
        A callable without arguments that returns the object; lambdas and closures are fine.
    start_method : {"forkserver", "spawn", "fork"}
        See `plangym_like.processes.start_methods`.
    preload : sequence of str
        Modules that the fork server imports once, for this worker and all later ones.
    name : str, optional
        The name of the worker in errors and logs.
    linger : float
        Seconds for which the worker polls for the next request before it sleeps. The kernel tends
        to wake a sleeping process on the caller's core, where one of the two processes has to
        wait.

    Attributes
    ----------
    linger : float
    pid : int
        The process id.
    on_change : callable
        Called without arguments after each message to or from the process, when the process has
        ended, and when it is restarted.

    Examples
    --------
    >>> with ExternalProcess(lambda: [3, 1, 2]) as numbers:
    ...     numbers.sort()
    ...     future = numbers.call("index", 3)
    ...     future.result()
    2
    """

    def __init__(
        self,
        constructor: Callable[[], Any],
        *,
        start_method: str = "forkserver",
        preload: Sequence[str] = (),
        name: str | None = None,
        linger: float = 0.0,
    ) -> None:
        if not callable(constructor):
            raise TypeError(
                "constructor must be callable without arguments, got "
                f"{type(constructor).__name__}; to host an object that exists already, return it "
                "from a lambda"
            )
        check_can_start()
        self._name = f"worker-{next(_serial_numbers)}" if name is None else name
        self._constructor = dumps_by_value(constructor)
        self._start_method = start_method
        self._preload = tuple(preload)
        self.linger = linger
        self.on_change: Callable[[], object] = _do_nothing
        self._closed = False
        self._restarting, self._lock = new_lock(), new_lock()
        self._exchanging = False
        self._launch()

    def _launch(self) -> None:
        """Start a process, and let it make the object in the background."""
        payload = dumps((self._setup(), self._constructor))
        # Requests refer to this object, which has only weak references to them. So the process ends
        # when the last references to this object and to its unanswered requests are dropped.
        pending: dict[int, weakref.ref[Request]] = {}
        is_ours = self._start_method != "forkserver"
        try:
            # A Ctrl-C in a direct start would leave a copy of the program, or a process that nobody
            # waits for. The fork server ends a worker whose owner has dropped it.
            with interrupts_deferred() if is_ours else contextlib.nullcontext(), self._lock:
                self._child = child = launch(self._start_method, self._preload)
                self.pid = child.pid
                self._pending = pending
                self._finalizer = weakref.finalize(self, _release, self._child, pending)
                self._worker = f"worker {self._name!r} (pid {self._child.pid})"
                self._channel = Channel(self._child.connection)
                self._descriptor = self._child.connection.fileno()
                self._numbers = count()
                self._owner_pid = os.getpid()
                # What requests are answered with when the process has ended, if this is known
                # before; and when the end has been noted.
                self._reason: Reply | None = None
                self._end: Reply | None = None
                self._is_ready = False
                self._request(CALL, payload, patient=True)
            self.on_change()
        except OSError as error:
            if error.errno is None:
                raise  # raised by a signal handler, such as a TimeoutError
            raise start_error(error) from error

    def _setup(self) -> dict[str, Any]:
        """Return what a new process adopts from this one."""
        from plangym_like.states.rows import session_key

        try:
            directory = os.getcwd()
        except OSError:  # it has been removed
            directory = None
        return {
            "path": list(map(str, sys.path)),
            "directory": directory,
            "argv": list(map(str, getattr(sys, "argv", []))),
            "environ": worker_environ(),
            "session_key": session_key(),
            "linger": self.linger,
        }

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the object has been constructed.

        Raises
        ------
        TimeoutError
            This took longer than `timeout` seconds.
        BaseException
            Any exception that the constructor raised.
        """
        self._check_open()
        self._wait_until(lambda: self._is_ready, math.inf if timeout is None else timeout)
        if not self._is_ready:
            if self._end is None:
                raise TimeoutError(f"{self._worker} has not made its object within {timeout} s")
            failed = Request(0, self._worker, self._wait)
            failed.answer(self._end)
            Future(failed).result()

    def construct_here(self) -> Any:
        """Call the constructor in this process, and return the new object."""
        return _construct(self._constructor)

    def make_another(self) -> Self:
        """Return a new object of the same class with the same constructor."""
        return type(self)(
            partial(_construct, self._constructor),
            start_method=self._start_method,
            preload=self._preload,
            linger=self.linger,
        )

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the object's method `name`, and return the future of its result."""
        return self._request(CALL, dumps((name, args, kwargs)))

    def apply(
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        fds: Sequence[int] = (),
        patient: bool = False,
    ) -> Future[Any]:
        """Call ``fn(object, *args)`` in the process, and return the future of its result.

        If `fds` is given, copies of these open file descriptors are sent along. The call is then
        ``fn(object, *args, fds=[...])``, and `fn` owns the copies. If `patient` is true, this sends
        only as much as it can without waiting for the process to read. The rest is sent with the
        next request, by `drain`, or while a thread waits for a result.
        """
        return self._request(CALL, dumps((fn, args, {})), fds, patient=patient)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}; names with a leading "
                "underscore are not looked up in the process"
            )
        is_method, value = self._request(ACCESS, dumps(name)).result()
        if not is_method:
            return value

        def remote_method(*args: Any, **kwargs: Any) -> Any:
            return self.call(name, *args, **kwargs).result()

        remote_method.__name__ = remote_method.__qualname__ = name
        return remote_method

    @property
    def exitcode(self) -> int | None:
        """The exit status of the process, negative for a signal; ``None`` while it is running.

        It is also ``None`` in the rare case that the status is not known; see `is_alive`.
        """
        self._child.poll()
        return self._child.exitcode

    def is_alive(self) -> bool:
        """Return whether the process is alive."""
        return not self._has_ended() and not self._child.poll()

    def awaited(self) -> dict[int, int]:
        """Return the events to wait for, by descriptor; after one of them, call `drain`.

        Return an empty dict if the process has ended, or belongs to another process.
        """
        if self._end is not None or os.getpid() != self._owner_pid:
            return {}
        unsent = select.POLLOUT if self._channel.outbox else 0
        return {
            self._descriptor: select.POLLIN | unsent,
            self._child.sentinel: select.POLLIN,
        }

    def drain(self) -> None:
        """Process all replies that have arrived; if the process has ended, complete all requests.

        The futures of these replies are done afterwards. Their errors are not raised here. This
        also sends what can be sent. It does not wait for further replies.
        """
        with self._lock:
            if not self._has_ended():
                received = self._exchange()
                if self._channel.ended or (not received and self._child.poll()):
                    self._note_end()

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        if not self._has_ended():
            self._reason = self._death("it was killed on request")
            self._child.kill()

    def restart(self) -> None:
        """Kill the process if it is still running, and start a new one with the same constructor.

        Pending futures fail with `WorkerDiedError`. The new object is made in the background.
        """
        with self._restarting:
            self._check_open()
            pid = self.pid
            message = f"{self._worker} was replaced before it had answered"
            self._close(0.0, lambda: WorkerDiedError(message, pid, -signal.SIGKILL))
            self._launch()

    def begin_close(self) -> None:
        """Ask the process to exit after its pending requests; call `close` to wait for its exit."""
        with self._lock:
            if not (self._has_ended() or self._exchanging):
                self._exchange(outgoing(CLOSE, next(self._numbers), b""))

    def close(self, timeout: float = 3.0) -> None:
        """Ask the process to exit, and kill it if it is still running after `timeout` seconds.

        The process calls the hosted object's ``close`` method, if there is one, before it exits.
        Futures that are still pending afterwards fail with `ClosedError`. Calling `close` again
        does nothing. If `timeout` is 0, or if a signal handler raises an exception meanwhile, the
        process is killed immediately.
        """
        self._closed = True
        message = f"worker {self._name!r} has been closed; make another one"
        self._close(timeout, lambda: ClosedError(message))

    def _close(self, timeout: float, reason: MakeError) -> None:
        """Do what `close` does; unanswered requests fail with the error ``reason()``."""
        if self._has_ended():
            self._finalizer()  # it has been called, unless an exception interrupted `_finish`
            return
        self._reason = reason
        with self._lock:
            if self._exchanging:  # a signal handler has interrupted it; it will notice the end
                self._child.kill()
                return
        try:
            if timeout > 0:
                self.begin_close()
                self._wait_until(self._has_ended, timeout)
            self._child.kill()
            self._wait_until(self._has_ended, 5.0)
        finally:
            if self._end is None:
                self._child.end(1.0)
                self._finish(reason)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"worker {self._name!r} has been closed; make another one")

    # Sending and receiving

    def _request(
        self, kind: int, payload: bytes, descriptors: Sequence[int] = (), *, patient: bool = False
    ) -> Future[Any]:
        """Send a request and return the future of its reply.

        If the process has ended, the future raises the error; this call does not. If `patient` is
        true, this sends only what the kernel accepts without waiting. The rest is sent with the
        next request, by `drain`, or while a thread waits for a reply.
        """
        self._check_open()
        with self._lock:  # `restart` begins with other numbers
            request = Request(next(self._numbers), self._worker, self._wait)
            message = outgoing(kind, request.number, payload, descriptors)
            if not self._has_ended():
                self._exchange(message, request)
            if self._end is not None:
                request.answer(self._end)
        if self._channel.outbox and not patient:
            # The worker may be unable to read until its replies have been read.
            self._wait_until(lambda: not self._channel.outbox, math.inf)
        return Future(request)

    def _exchange(self, message: Sequence[Buffer] = (), request: Request | None = None) -> bool:
        """Send `message`, or receive if there is none; return whether anything was received.

        This does not wait. It also sends what is left of earlier messages.

        The caller must hold the lock.
        """
        if self._exchanging:
            raise RuntimeError(
                f"a signal handler used {self._worker} while the interrupted code "
                "was using it; set a flag in the handler instead"
            )
        try:
            self._exchanging = True
            if request is not None:
                self._pending[request.number] = weakref.ref(request)
            self._channel.send(message)
            received = not message and self._channel.receive(self._deliver)
            if message or received:
                self.on_change()
            return received
        except BaseException:
            self.on_change()
            self._channel.ended = True
            self._channel.outbox.clear()
            self._reason = self._reason or self._death(
                "an exception, such as Ctrl-C, interrupted a message, so it was killed"
            )
            self._child.kill()
            raise
        finally:
            self._exchanging = False

    def _deliver(self, message: Message) -> None:
        if message.request == 0:
            if message.kind == EXCEPTION:
                self._reason = message
            else:
                self._is_ready = True
        reference = self._pending.pop(message.request, None)
        request = None if reference is None else reference()
        if request is not None:
            request.answer(message)

    def _wait(self, request: Request, timeout: float | None) -> None:
        """Wait at most `timeout` seconds until `request` is answered."""
        self._wait_until(lambda: request.settled, math.inf if timeout is None else timeout)

    def _wait_until(self, is_done: Callable[[], bool], timeout: float) -> None:
        """Process replies until ``is_done()``, or the process has ended, or `timeout` is over."""
        deadline = time.monotonic() + timeout
        while not (self._has_ended() or is_done()):
            left = deadline - time.monotonic()
            # Each call has a poller of its own, because two threads cannot use one together.
            poller = select.poll()
            for descriptor, mask in self.awaited().items():
                poller.register(descriptor, mask)
            milliseconds = math.ceil(1000 * max(0.0, min(left, _LOOK_AGAIN_SECONDS)))
            if poller.poll(milliseconds) or left <= 0:
                self.drain()
            if left <= 0:
                break

    # The end

    def _has_ended(self) -> bool:
        """Return whether the process has ended, or belongs to another process."""
        if self._end is None and os.getpid() != self._owner_pid:
            message = (
                f"worker {self._name!r} belongs to the process that this one was forked from; "
                "make another one here"
            )
            self._finish(lambda: ClosedError(message))
        return self._end is not None

    def _note_end(self) -> None:
        """Complete all requests after the connection or the process has ended.

        The caller must hold the lock.
        """
        by_itself = self._child.wait(0.5)
        if not by_itself:
            self._child.end()
        # Replies that were sent before the end are valid.
        while self._end is None and self._exchange():
            pass
        if self._end is None:  # otherwise a signal handler has already done this
            if self._reason is None:
                how = "something in it closed its connection, so it was killed"
                if by_itself:
                    how = self._child.describe_end()
                logger.warning("%s died: %s", self._worker, how)
                self._reason = self._death(how)
            self._finish(self._reason)

    def _death(self, how: str) -> MakeError:
        """Return a function that returns the error of a worker that has died in this way."""
        process = self._child
        message = (
            f"{self._worker} died: {how}; its pending requests are lost, and restart() starts a "
            "new process"
        )
        return lambda: WorkerDiedError(message, process.pid, process.exitcode)

    def _finish(self, end: Reply) -> None:
        with self._lock:
            for reference in list(self._pending.values()):
                request = reference()
                if request is not None:
                    request.answer(end)
            self._end = end
            self._finalizer()
        self.on_change()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "an ExternalProcess cannot be pickled or copied; send its constructor instead"
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "alive" if self.is_alive() else "dead"
        return f"<ExternalProcess {self._name!r}, pid {self.pid}, {state}>"


def _do_nothing() -> None:
    pass


def _construct(constructor: bytes) -> Any:
    """Unpickle a constructor, call it, and return the result."""
    return loads(constructor)()


def _release(child: ChildProcess, pending: dict[int, Any]) -> None:
    """End a process and close its descriptors: let it exit, or kill it if it has requests.

    In a copy of its owner, only the descriptors are closed.
    """
    try:
        with interrupts_deferred():
            if not (pending or child.poll()):
                child.connection.shutdown(socket.SHUT_WR)
                child.wait(1.0)
            child.end()
    finally:  # also if an interrupt comes first; the process then ends by itself
        child.close()


@dataclass(slots=True, weakref_slot=True, eq=False)
class Request:
    """A request that was sent to a worker; see `plangym_like.results.Pending`.

    Parameters
    ----------
    number : int
        The request's id.
    worker : str
        The name of the worker in error messages.
    wait : callable
        ``wait(request, timeout)`` returns when the request has been answered, or after `timeout`
        seconds. The request keeps a reference to `wait` until it has been answered.
    """

    number: int
    _worker: str
    _wait: Callable[[Request, float | None], None] | None
    _reply: Reply | None = field(default=None, init=False)

    def answer(self, reply: Reply) -> None:
        """Set the reply, unless there is one already."""
        if self._reply is None:
            self._reply = reply
        self._wait = None

    @property
    def what(self) -> str:
        """The name of the request in error messages."""
        return f"request {self.number} to {self._worker}"

    @property
    def settled(self) -> bool:
        """Whether the reply has arrived or the connection has ended."""
        return self._reply is not None

    def settle(self, timeout: float | None) -> bool:
        """Wait at most `timeout` seconds, and return whether the request is settled."""
        wait = self._wait
        if wait is not None:
            wait(self, timeout)
        return self._reply is not None

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return ``(value, None)`` or ``(None, error)``; each call makes a new error object."""
        reply = self._reply
        assert reply is not None
        if not isinstance(reply, Message):
            return None, reply()
        if reply.kind == EXCEPTION:
            return None, unpack_exception(reply.payload)
        return loads(reply.payload), None

    def cancel(self, error: BaseException) -> bool:
        """Return False, because a request cannot be cancelled."""
        return False
