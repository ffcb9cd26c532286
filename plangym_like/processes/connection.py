"""`Connection`: the connection to one worker process, from its launch to its end; its requests."""

from __future__ import annotations

import logging
import math
import os
import select
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from plangym_like.errors import ClosedError, WorkerDiedError
from plangym_like.processes.child import ChildProcess, interrupts_deferred
from plangym_like.processes.remote_errors import unpack_exception
from plangym_like.processes.wire import (
    CLOSE,
    EXCEPTION,
    Buffer,
    Channel,
    Message,
    loads,
    outgoing,
)
from plangym_like.results import Future
from plangym_like.support.fork_safety import new_lock

logger = logging.getLogger("plangym_like")

MakeError = Callable[[], BaseException]
# A reply or, once the connection has ended, a function that returns the error.
Reply = Message | MakeError

# The longest time that a waiting thread sleeps before it checks its request again. A reply wakes
# the thread, but not if another thread, or a signal handler, has just received this reply.
_LOOK_AGAIN_SECONDS = 5e-3


class Connection:
    """Sends requests to a worker, and completes them when replies arrive or the worker ends.

    Request 0 constructs the hosted object; if this fails, the worker ends.

    Requests refer to their connection, which has only weak references to them. So the worker ends
    when the last references to the connection and to its unanswered requests are dropped.

    Any thread may send and wait. Threads wait without a lock, so an interrupt of a wait changes
    nothing. Data is sent and received in short exchanges, which never wait. If a signal handler
    raises an exception within an exchange, data may be lost: the worker is killed, and its requests
    fail. A handler that has interrupted an exchange cannot use the same worker.

    Parameters
    ----------
    process : ChildProcess
        A new worker, which this object owns from now on.
    name : str
        The name of the worker in error messages.
    """

    def __init__(self, process: ChildProcess, name: str) -> None:
        self.name = name
        self.process = process
        self._worker = f"worker {name!r} (pid {process.pid})"
        self._channel = Channel(process.connection)
        self._descriptor = process.connection.fileno()
        self._numbers = count()
        self._pending: dict[int, weakref.ref[Request]] = {}
        self._lock = new_lock()
        self._owner_pid = os.getpid()
        self._exchanging = False
        # What requests are answered with when the worker has ended, if this is known before; and
        # when the end has been noted.
        self._reason: Reply | None = None
        self._end: Reply | None = None
        self._finalizer = weakref.finalize(self, _release, process, self._pending)

    def has_ended(self) -> bool:
        """Return whether the connection has ended, or belongs to another process."""
        if self._end is None and os.getpid() != self._owner_pid:
            message = (
                f"worker {self.name!r} belongs to the process that this one was forked from; "
                "make another one here"
            )
            self._finish(lambda: ClosedError(message))
        return self._end is not None

    def awaited(self) -> dict[int, int]:
        """Return the events to wait for, by descriptor; after one of them, call `drain`.

        Return an empty dict if the connection has ended.
        """
        if self._end is not None or os.getpid() != self._owner_pid:
            return {}
        unsent = select.POLLOUT if self._channel.outbox else 0
        return {
            self._descriptor: select.POLLIN | unsent,
            self.process.sentinel: select.POLLIN,
        }

    # Sending and receiving

    def request(
        self, kind: int, payload: bytes, descriptors: Sequence[int] = (), *, patient: bool = False
    ) -> Future[Any]:
        """Send a request and return the future of its reply.

        If the worker has ended, the future raises the error; this call does not. If `patient` is
        true, this sends only what the kernel accepts without waiting. The rest is sent with the
        next request, by `drain`, or while a thread waits for a reply.
        """
        request = Request(next(self._numbers), self._worker, self.wait)
        message = outgoing(kind, request.number, payload, descriptors)
        with self._lock:
            if not self.has_ended():
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
            return not message and self._channel.receive(self._deliver)
        except BaseException:
            self._channel.ended = True
            self._reason = self._reason or self._death(
                "an exception, such as Ctrl-C, interrupted a message, so it was killed"
            )
            self.process.kill()
            raise
        finally:
            self._exchanging = False

    def _deliver(self, message: Message) -> None:
        if message.request == 0 and message.kind == EXCEPTION:
            self._reason = message
        reference = self._pending.pop(message.request, None)
        request = None if reference is None else reference()
        if request is not None:
            request.answer(message)

    def wait(self, request: Request, timeout: float | None) -> None:
        """Wait at most `timeout` seconds until `request` is answered."""
        self._wait_until(lambda: request.settled, math.inf if timeout is None else timeout)

    def _wait_until(self, is_done: Callable[[], bool], timeout: float) -> None:
        """Process replies until ``is_done()``, or the worker has ended, or `timeout` is over."""
        deadline = time.monotonic() + timeout
        while not (self.has_ended() or is_done()):
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

    def drain(self) -> None:
        """Process all replies that have arrived; if the worker has ended, complete all requests.

        This also sends what can be sent. It does not wait for further replies.
        """
        with self._lock:
            if not self.has_ended():
                received = self._exchange()
                if self._channel.ended or (not received and self.process.poll()):
                    self._note_end()

    # The end

    def _note_end(self) -> None:
        """Complete all requests after the connection or the process has ended.

        The caller must hold the lock.
        """
        by_itself = self.process.wait(0.5)
        if not by_itself:
            self.process.end()
        # Replies that were sent before the end are valid.
        while self._end is None and self._exchange():
            pass
        if self._end is None:  # otherwise a signal handler has already done this
            if self._reason is None:
                how = "something in it closed its connection, so it was killed"
                if by_itself:
                    how = self.process.describe_end()
                logger.warning("%s died: %s", self._worker, how)
                self._reason = self._death(how)
            self._finish(self._reason)

    def _death(self, how: str) -> MakeError:
        """Return a function that returns the error of a worker that has died in this way."""
        process = self.process
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
            self._pending.clear()
            self.process.close()
            self._finalizer.detach()

    def kill(self) -> None:
        """Send SIGKILL; requests then fail with a `WorkerDiedError`."""
        if not self.has_ended():
            self._reason = self._death("it was killed on request")
            self.process.kill()

    def ask_to_close(self) -> None:
        """Queue the message CLOSE, and send what can be sent without waiting."""
        with self._lock:
            if not (self.has_ended() or self._exchanging):
                self._exchange(outgoing(CLOSE, next(self._numbers), b""))

    def close(self, timeout: float, reason: MakeError) -> None:
        """Ask the worker to exit, and kill it if it is still running after `timeout` seconds.

        Requests that have no reply by then fail with the error ``reason()``. If `timeout` is 0, or
        if a signal handler raises an exception meanwhile, the worker is killed immediately.
        """
        if self.has_ended():
            return
        self._reason = reason
        with self._lock:
            if self._exchanging:  # a signal handler has interrupted it; it will notice the end
                self.process.kill()
                return
        try:
            if timeout > 0:
                self.ask_to_close()
                self._wait_until(_never, timeout)
            self.process.kill()
            self._wait_until(_never, 5.0)
        finally:
            if self._end is None:
                self.process.end(1.0)
                self._finish(reason)


def _never() -> bool:
    return False


def _release(process: ChildProcess, pending: dict[int, Any]) -> None:
    """End the worker of a dropped connection: let it exit, or kill it if it has requests."""
    with interrupts_deferred():
        if not (pending or process.ended):
            process.connection.shutdown(socket.SHUT_WR)
            process.wait(1.0)
        process.end()
        process.close()


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

    __slots__ = ("__weakref__", "_reply", "_wait", "_worker", "number")

    def __init__(
        self, number: int, worker: str, wait: Callable[[Request, float | None], None]
    ) -> None:
        self.number = number
        self._worker = worker
        self._wait: Callable[[Request, float | None], None] | None = wait
        self._reply: Reply | None = None

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
