"""`Connection`: the connection to one worker process, from its launch to its end; its requests."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from plangym_like.errors import ClosedError, WorkerDiedError
from plangym_like.processes.child import Launched
from plangym_like.processes.interrupts import hold, interrupts_deferred
from plangym_like.processes.remote_errors import unpack_exception
from plangym_like.processes.wire import CLOSE, EXCEPTION, Channel, Outgoing, loads, outgoing
from plangym_like.results import Future
from plangym_like.support.fork_safety import forget_after_fork

logger = logging.getLogger("plangym_like")

MakeError = Callable[[], BaseException]
# The kind and payload of a reply, or, once the connection has ended, a function that returns the
# error.
Reply = tuple[int, memoryview] | Callable[[], BaseException]

# The longest time that a waiting thread sleeps before it checks its request again. A reply wakes
# the thread, but not if a signal handler that uses the same worker has just received this reply.
_LOOK_AGAIN_SECONDS = 0.05


class Connection:
    """Sends requests to a worker, and completes them when replies arrive or the worker ends.

    Request 0 constructs the hosted object; if this fails, the worker ends.

    Requests refer to their connection, which has only weak references to them. So the worker ends
    when the last references to the connection and to its unanswered requests are dropped.

    Any thread may send and wait. One thread at a time reads for all waiting threads; the others
    sleep until it stops reading. A signal handler that raises an exception may interrupt any
    method. A handler may use the connection that it has interrupted, but must not send requests if
    it has interrupted the sending of another request.

    Parameters
    ----------
    launched : Launched
        A new worker, which this object owns from now on.
    name : str
        The name of the worker in error messages.
    """

    def __init__(self, launched: Launched, name: str) -> None:
        self.name = name
        self.process = launched.process
        self._worker = f"worker {name!r} (pid {self.process.pid})"
        self._launched = launched
        self._channel = Channel(launched.connection)
        self._descriptor = launched.connection.fileno()
        self._numbers = count()
        self._pending: dict[int, weakref.ref[Request]] = {}
        self._make_locks()
        self._failed_start: memoryview | None = None
        self._parting: MakeError | None = None
        self._end: Reply | None = None
        self._killed = self._flushing = False
        self._finalizer = weakref.finalize(
            self, _release, self._channel, launched, self._pending, os.getpid()
        )
        forget_after_fork(self)

    def _make_locks(self) -> None:
        # Re-entrant, because a signal handler may call the method that it has interrupted.
        self._sending = threading.RLock()
        self._reading = threading.RLock()
        self._followers: list[threading.Lock] = []

    @property
    def unsent(self) -> bool:
        """Whether a request, or part of one, is still waiting to be sent."""
        return self._end is None and self._channel.unsent

    def has_ended(self) -> bool:
        """Return whether the connection has ended."""
        return self._end is not None

    def fileno(self) -> int:
        """Return the data socket's descriptor, or -1 if the connection has ended."""
        return -1 if self._end is not None else self._descriptor

    # Sending

    def request(
        self, kind: int, payload: bytes, descriptors: Sequence[int] = (), *, patient: bool = False
    ) -> Future[Any]:
        """Send a request and return the future of its reply.

        If the worker has ended, the future raises the error; this call does not. If `patient` is
        true, this sends only what the kernel accepts without blocking. The rest is sent with the
        next request, by `drain`, or while a thread waits for a reply.
        """
        request = Request(next(self._numbers), self._worker, self.wait)
        with self._sending:
            if self._end is None:
                if self._flushing:
                    raise RuntimeError(
                        f"a signal handler used {self._worker} while the interrupted code "
                        "was using it; set a flag in the handler instead"
                    )
                parts = outgoing(kind, request.number, payload, descriptors)
                try:
                    self._pending[request.number] = weakref.ref(request)
                    self._channel.post(parts)
                    self._flush(patient=patient)
                except BaseException:
                    if self._channel.retract(parts):
                        self._pending.pop(request.number, None)
                    raise
        if self._end is not None:
            request.answer(self._end)
        return Future(request)

    def _flush(self, *, patient: bool = False) -> None:
        try:
            self._flushing = True
            while self._end is None and not self._channel.flush() and not patient:
                # The worker may be unable to read until its replies have been read.
                self._poll(select.POLLIN | select.POLLOUT, _LOOK_AGAIN_SECONDS)
                self.drain()
        except ConnectionError:
            # The worker has ended; waiting for the reply raises an error that says how.
            pass
        except OSError:
            if not self.has_ended():  # else a signal handler has closed it
                raise
        finally:
            self._flushing = False

    # Waiting

    def wait(self, request: Request, timeout: float | None) -> None:
        """Wait until `request` has been answered, for at most `timeout` seconds."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not (request.settled or self.has_ended()):
            left = deadline - time.monotonic()
            self._listen(left, request)
            if left <= 0:
                break
        if self._end is not None:
            request.answer(self._end)

    def drain(self) -> None:
        """Process all replies that have arrived; if the worker has ended, complete all requests.

        This does not wait for further replies.
        """
        self._listen(0.0)

    def _listen(self, timeout: float, request: Request | None = None) -> None:
        """For at most `timeout` seconds, read for all threads, or wait while another one reads."""
        timeout = min(timeout, _LOOK_AGAIN_SECONDS)
        leads: list[bool] = []
        try:
            hold(leads, self._reading.acquire, False)
            turn = None
            if not leads[0] and request is not None and timeout > 0:
                turn = threading.Lock()
                turn.acquire()
                self._followers.append(turn)
                # The thread that was reading may have stopped just before.
                leads.clear()
                hold(leads, self._reading.acquire, False)
            if leads[0]:
                if self._end is None and not (request is not None and request.settled):
                    self._take_in(timeout)
            elif turn is not None:
                turn.acquire(timeout=timeout)
        finally:
            if leads and leads[0]:
                self._reading.release()
                if self._followers:
                    self._wake_followers()

    def _wake_followers(self) -> None:
        with contextlib.suppress(IndexError):  # several threads may do this
            while True:
                self._followers.pop().release()

    def _take_in(self, timeout: float) -> None:
        """Wait until replies arrive or the worker ends, and handle these events.

        The caller must hold the lock `_reading`.
        """
        if self._channel.pass_on(self._deliver):  # messages that were received before an interrupt
            return
        mask = select.POLLIN | select.POLLOUT if self._channel.unsent else select.POLLIN
        events = self._poll(mask, timeout)
        if not events or self.has_ended():
            return
        if events.get(self._descriptor, 0) & select.POLLOUT:
            self._send_aside([], 0.0)
        # Replies that were sent before the end are valid.
        process_ended = self.process.pidfd in events
        try:
            more = self._channel.receive(self._deliver, everything=process_ended)
        except OSError:
            if self.has_ended():  # a signal handler has closed it
                return
            raise
        if process_ended or not more or self._failed_start is not None:
            self._note_end()

    def _poll(self, mask: int, timeout: float) -> dict[int, int]:
        """Wait for the socket or the process; return the events by descriptor.

        This waits at most `timeout` seconds for an event in `mask` on the socket, or for the
        process to end.
        """
        poller = select.poll()
        poller.register(self._descriptor, mask)
        if self.process.pidfd is not None:
            poller.register(self.process.pidfd, select.POLLIN)
        return dict(poller.poll(math.ceil(max(timeout, 0.0) * 1000)))

    def _send_aside(self, parts: list[Outgoing], timeout: float) -> bool:
        """Send the queue and then `parts`, as far as this is possible without blocking.

        If another thread holds the lock for sending, wait for it up to `timeout` seconds. Return
        False, and send nothing, if the lock is still taken or a signal handler has interrupted
        this thread while it was sending.
        """
        sending: list[bool] = []
        try:
            hold(sending, self._sending.acquire, True, timeout)
            if not sending[0] or self._flushing:
                return False
            self._channel.post(parts)
            self._flush(patient=True)
            return True
        finally:
            if sending and sending[0]:
                self._sending.release()

    def _deliver(self, kind: int, number: int, payload: memoryview) -> None:
        if number == 0 and kind == EXCEPTION:
            self._failed_start = payload
        reference = self._pending.get(number)
        request = None if reference is None else reference()
        if request is not None:
            request.answer((kind, payload))
        self._pending.pop(number, None)

    # The end

    def _note_end(self) -> None:
        """Complete all requests after the connection or the process has ended.

        The caller must hold the lock `_reading`.
        """
        failed_start = self._failed_start
        by_itself = self.process.wait(0.5)
        if not by_itself:
            self.process.end()
        if self._end is not None:  # a signal handler has already done this
            return
        if self._parting is not None:
            self._finish(self._parting)
        elif failed_start is not None:
            self._finish((EXCEPTION, failed_start))
        else:
            if self._killed:
                how = "it was killed on request"
            elif by_itself:
                how = self.process.describe_end()
            else:
                how = "something in it closed its connection, so it was killed"
            message = f"{self._worker} died: {how}"
            if not self._killed:
                logger.warning("%s", message)
            pid, exitcode = self.process.pid, self.process.exitcode
            advice = "; its pending requests are lost, and restart() starts a new process"
            self._finish(lambda: WorkerDiedError(message + advice, pid, exitcode))

    def _finish(self, end: Reply) -> None:
        self._end = end
        for reference in list(self._pending.values()):
            request = reference()
            if request is not None:
                request.answer(end)
        # A thread that is sending notices the end at once. Until then the descriptor must stay
        # open.
        with self._sending:
            self._close_descriptors()

    def _close_descriptors(self) -> None:
        self._pending.clear()
        self._channel.clear()
        self._launched.close()
        self._finalizer.detach()

    def kill(self, reason: MakeError | None = None) -> None:
        """Send SIGKILL; requests then fail with ``reason()``, by default a `WorkerDiedError`."""
        if self._end is None:
            self._killed = True
            self._parting = reason or self._parting
            self.process.kill()

    def ask_to_close(self) -> bool:
        """Queue the message CLOSE, and send what can be sent without waiting.

        Return False if the connection has ended, or if the lock for sending is taken.
        """
        request = outgoing(CLOSE, next(self._numbers), b"")
        return self._end is None and self._send_aside(request, 0.1)

    def close(self, timeout: float, reason: MakeError) -> None:
        """Ask the worker to exit, and kill it if it is still running after `timeout` seconds.

        Requests that have no reply by then fail with the error ``reason()``. If `timeout` is 0, or
        if a signal handler raises an exception meanwhile, the worker is killed immediately.
        """
        if self._end is not None:
            self._close_descriptors()
            return
        self._parting = reason
        goodbye = Request(next(self._numbers), self._worker, self.wait)
        try:
            if timeout > 0 and self.ask_to_close():
                self.wait(goodbye, timeout)
            self.process.kill()
            self.wait(goodbye, 5.0)
        finally:
            if self._end is None:
                self.process.end(1.0)
                self._finish(reason)

    def forget(self) -> None:
        """Make the connection unusable; called after `os.fork`, in the child process."""
        self._make_locks()
        if self._end is not None:
            return
        message = (
            f"worker {self.name!r} belongs to the process that this one was forked from; "
            "make another one here"
        )
        self._finish(lambda: ClosedError(message))


def _release(channel: Channel, launched: Launched, pending: dict[int, Any], owner_pid: int) -> None:
    """End the worker of a dropped connection: ask it to exit, or kill it if replies are pending.

    Do nothing in a process that was forked from the owner.
    """
    if os.getpid() != owner_pid:
        return
    with interrupts_deferred(by_finalizer=True):
        with contextlib.suppress(OSError):
            replied: list[int] = []
            channel.receive(lambda _kind, number, _payload: replied.append(number))
            if pending.keys() <= set(replied):
                channel.post(outgoing(CLOSE, 0, b""))
                if channel.flush():
                    launched.process.wait(1.0)
        launched.process.end()
        launched.close()


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
        if not isinstance(reply, tuple):
            return None, reply()
        kind, payload = reply
        if kind == EXCEPTION:
            return None, unpack_exception(payload)
        return loads(payload), None

    def cancel(self, error: BaseException) -> bool:
        """Return False, because a request cannot be cancelled."""
        return False
