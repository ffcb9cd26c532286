"""The connection to one worker process, from its launch to its end."""

from __future__ import annotations

import logging
import math
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import count

from plangym_like.errors import ClosedError, WorkerDiedError
from plangym_like.fork_safety import forget_after_fork
from plangym_like.processes.channel import outgoing
from plangym_like.processes.interrupts import hold
from plangym_like.processes.messages import CLOSE, EXCEPTION
from plangym_like.processes.promise import Outcome, Promise
from plangym_like.processes.start_methods import Launched
from plangym_like.processes.transport import Transport

logger = logging.getLogger("plangym_like")

MakeError = Callable[[], BaseException]

# The longest that a waiting thread sleeps without looking at its promise again. It is woken in all
# cases but one: a signal handler that uses the same worker may take in the reply just before.
_LOOK_AGAIN_SECONDS = 0.05


class Connection:
    """Sends requests, and settles their promises as the replies or the worker's end come in.

    Request 0 is the one that constructs the hosted object; a failure of it ends the worker.

    Promises hold on to their connection, and it to them only weakly; so when the last holder of
    either lets go, the worker is ended and nothing is left behind. One thread at a time reads for
    all that wait; it holds `_receiving`, and the others follow.

    Parameters
    ----------
    launched : Launched
        A new worker, which this object owns from now on.
    name : str
        What errors call it.
    """

    def __init__(self, launched: Launched, name: str) -> None:
        self.name = name
        self._transport = Transport(launched)
        self._channel = self._transport.channel
        self.process = self._transport.process
        self._numbers = count()
        self._pending: dict[int, weakref.ref[Promise]] = {}
        self._make_locks()
        self._num_followers = 0
        self._stillborn: memoryview | None = None
        self._parting: MakeError | None = None
        self._end: Outcome | None = None
        self._killed = False
        self._flushing = self._receives = False
        self._finalizer = weakref.finalize(self, self._transport.release, self._pending)
        forget_after_fork(self)

    def _make_locks(self) -> None:
        # All of them re-entrant: a signal handler may call what it has interrupted.
        self._sending = threading.RLock()
        self._receiving = threading.RLock()
        self._closing = threading.RLock()
        self._changed = threading.Condition()

    @property
    def unsent(self) -> bool:
        """Whether some of a request has not been taken by the kernel yet."""
        return self._end is None and self._channel.unsent

    @property
    def end(self) -> Outcome | None:
        """What promises are settled with since the connection ended, ``None`` while it is up."""
        return self._end

    def _has_ended(self) -> bool:
        return self._end is not None

    def fileno(self) -> int:
        """Return the data socket's descriptor, or -1 when the connection has ended."""
        return -1 if self._end is not None else self._transport.descriptor

    def request(
        self, kind: int, payload: bytes, descriptors: Sequence[int] = (), *, patient: bool = False
    ) -> Promise:
        """Send a request and return the promise of its reply.

        Never raises because of the worker's end, the promise does. With `patient`, what the kernel
        does not take at once is sent along with the next request or while waiting.
        """
        number = next(self._numbers)
        promise = Promise(self, number)
        with self._sending:
            if self._end is None:
                if self._flushing:
                    raise self._reentered()
                parts = outgoing(kind, number, payload, descriptors)
                try:
                    self._pending[number] = weakref.ref(promise)
                    self._channel.post(parts)
                    self._flush(patient=patient)
                except BaseException:
                    if self._channel.retract(parts):
                        self._pending.pop(number, None)
                    raise
        if self._end is not None:
            promise.settle(self._end)
        return promise

    def _flush(self, *, patient: bool = False) -> None:
        try:
            self._flushing = True
            while self._end is None and not self._channel.flush() and not patient:
                # The worker may be unable to read because nobody takes its replies.
                self._transport.poll(select.POLLIN | select.POLLOUT, _LOOK_AGAIN_SECONDS)
                self.drain()
        except ConnectionError:
            # The worker has ended. Who waits for a reply finds out, and more exactly.
            pass
        except OSError:
            if not self._has_ended():  # else a signal handler has closed it
                raise
        finally:
            self._flushing = False

    def _reentered(self) -> RuntimeError:
        return RuntimeError(
            f"a signal handler used worker {self.name!r} just while it was interrupting another "
            "use of it; set a flag in the handler instead"
        )

    def wait(self, promise: Promise, timeout: float | None) -> None:
        """Return when `promise` is settled.

        Raises
        ------
        TimeoutError
            It was not within `timeout` seconds.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not promise.settled:
            if self._end is not None:
                promise.settle(self._end)
                return
            left = deadline - time.monotonic()
            self._listen(left, promise)
            if left <= 0 and not promise.settled:
                raise TimeoutError(
                    f"worker {self.name!r} (pid {self.process.pid}) has not answered request "
                    f"{promise.request} within {timeout} s; it is still at it, and the promise "
                    "stays good"
                )

    def drain(self) -> None:
        """Take in every reply that is there, and the worker's end if it has come; never blocks."""
        self._listen(0.0)

    def _listen(self, timeout: float, promise: Promise | None = None) -> None:
        """Read for all threads, or wait a while for the one that does."""
        timeout = min(timeout, _LOOK_AGAIN_SECONDS)
        leads: list[bool] = []
        try:
            hold(leads, self._receiving.acquire, False)
            if leads[0]:
                if promise is None:
                    useful = not self._receives
                else:
                    useful = not promise.settled
                if useful and self._end is None:
                    self._take_in(timeout)
            elif promise is not None:
                self._follow(timeout, promise)
        finally:
            if leads and leads[0]:
                self._receiving.release()
        if self._num_followers:
            with self._changed:
                self._changed.notify_all()

    def _follow(self, timeout: float, promise: Promise) -> None:
        with self._changed:
            self._num_followers += 1
            try:
                # Looked at again, now that whoever stops leading will say so.
                if self._receiving.acquire(blocking=False):
                    self._receiving.release()
                elif not promise.settled and timeout > 0:
                    self._changed.wait(timeout)
            finally:
                self._num_followers -= 1

    def _take_in(self, timeout: float) -> None:
        """Wait for replies or the worker's end and see to them; with `_receiving` held."""
        if self._channel.unread and not self._receives and self._pass_on():
            return
        mask = select.POLLIN | select.POLLOUT if self._channel.unsent else select.POLLIN
        events = self._transport.poll(mask, timeout)
        if not events or self._has_ended():
            return
        if events.get(self._transport.descriptor, 0) & select.POLLOUT:
            self._flush_aside()
        # What it said before it ended counts.
        ended = self.process.pidfd in events
        if self._receives:
            raise self._reentered()
        try:
            self._receives = True
            more = self._channel.receive(self._deliver, everything=ended)
        except OSError:
            if self._has_ended():  # a signal handler has closed it
                return
            raise
        finally:
            self._receives = False
        if ended or not more or self._stillborn is not None:
            self._bury()

    def _pass_on(self) -> bool:
        """Deliver what was taken in before an interrupt came, and return whether there was any."""
        try:
            self._receives = True
            return self._channel.pass_on(self._deliver)
        finally:
            self._receives = False

    def _flush_aside(self) -> None:
        """Send on what was left, unless somebody is at it already."""
        sending: list[bool] = []
        try:
            hold(sending, self._sending.acquire, False)
            if sending[0] and not self._flushing:
                self._flush(patient=True)
        finally:
            if sending and sending[0]:
                self._sending.release()

    def _deliver(self, kind: int, request: int, payload: memoryview) -> None:
        if request == 0 and kind == EXCEPTION:
            self._stillborn = payload
        reference = self._pending.get(request)
        promise = None if reference is None else reference()
        if promise is not None:
            promise.settle((kind, payload))
        self._pending.pop(request, None)
        if self._num_followers:
            with self._changed:
                self._changed.notify_all()

    def _bury(self) -> None:
        """See the worker off whose connection or process has ended; with `_receiving` held."""
        stillborn = self._stillborn
        by_itself = self.process.wait(0.5)
        if not by_itself:
            self.process.end()
        if self._end is not None:  # a signal handler was quicker
            return
        if self._parting is not None:
            self._finish(self._parting)
        elif stillborn is not None:
            self._finish((EXCEPTION, stillborn))
        else:
            if self._killed:
                how = "it was killed on request"
            elif by_itself:
                how = self.process.describe_end()
            else:
                how = "something in it closed its connection, so it was killed"
            message = f"worker {self.name!r} (pid {self.process.pid}) died: {how}"
            if not self._killed:
                logger.warning("%s", message)
            pid, exitcode = self.process.pid, self.process.exitcode
            advice = "; what it was asked is lost, restart() brings up a fresh one"
            self._finish(lambda: WorkerDiedError(message + advice, pid, exitcode))

    def _finish(self, end: Outcome) -> None:
        self._end = end
        for reference in list(self._pending.values()):
            promise = reference()
            if promise is not None:
                promise.settle(end)
        # A thread that sends sees the end at once; only then may descriptors be used anew.
        sending = self._sending.acquire(timeout=1.0)
        try:
            self._close_descriptors()
        finally:
            if sending:
                self._sending.release()
        with self._changed:
            self._changed.notify_all()

    def _close_descriptors(self) -> None:
        self._pending.clear()
        self._transport.close()
        self._finalizer.detach()

    def kill(self, reason: MakeError | None = None) -> None:
        """Send SIGKILL; promises fail as soon as it has worked, with `reason`'s error if given."""
        if self._end is None:
            self._killed = True
            self._parting = reason or self._parting
            self.process.kill()

    def close(self, timeout: float, reason: MakeError) -> None:
        """End the worker within `timeout` seconds, by force where asking does not help.

        Promises that are not settled by then fail with what `reason` makes. A `timeout` of 0 does
        not ask. If a signal handler raises meanwhile, the worker is killed at once.
        """
        with self._closing:
            if self._end is not None:
                return
            self._parting = reason
            try:
                if timeout > 0 and self._ask_to_close():
                    self._see_off(timeout)
                self.process.kill()
                self._see_off(5.0)
            finally:
                if self._end is None:
                    self.process.end(1.0)
                    self._finish(reason)

    def _ask_to_close(self) -> bool:
        # Another thread may be stuck in sending, or a signal handler may have interrupted that.
        if not self._sending.acquire(timeout=0.1):
            return False
        try:
            if self._flushing:
                return False
            self._channel.post(outgoing(CLOSE, next(self._numbers), b""))
            self._flush(patient=True)
            return True
        finally:
            self._sending.release()

    def _see_off(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self._end is None and (left := deadline - time.monotonic()) > 0:
            if self._receiving.acquire(timeout=min(left, _LOOK_AGAIN_SECONDS)):
                try:
                    if self._receives:  # a signal handler closes what it has interrupted
                        return
                    if self._end is None:
                        self._take_in(min(left, _LOOK_AGAIN_SECONDS))
                finally:
                    self._receiving.release()

    def forget(self) -> None:
        """Drop the descriptors in a forked copy of the owner; uses there are errors."""
        self._make_locks()
        if self._end is not None:
            return
        message = (
            f"worker {self.name!r} belongs to the process that this one was forked from; "
            "make another one here"
        )
        self._end = lambda: ClosedError(message)
        for reference in list(self._pending.values()):
            promise = reference()
            if promise is not None:
                promise.settle(self._end)
        self._close_descriptors()
