"""The connection to one worker process, from its launch to its end."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import count

from plangym_like.errors import ClosedError, WorkerDiedError
from plangym_like.parallel.channel import Channel, outgoing
from plangym_like.parallel.child_process import ChildProcess
from plangym_like.parallel.fork_safety import forget_after_fork
from plangym_like.parallel.messages import CLOSE, EXCEPTION, hold
from plangym_like.parallel.promise import Promise
from plangym_like.parallel.remote_errors import unpack_exception
from plangym_like.parallel.start_methods import Launched

logger = logging.getLogger("plangym_like")

MakeError = Callable[[], BaseException]

# The longest that a waiting thread sleeps without looking whether the thread that reads for all
# has been cut short by a signal handler. It is told in every other case.
_FOLLOWER_SECONDS = 0.05


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
        self.process = launched.process
        self._channel = Channel(launched.connection)
        self._alive_write = launched.alive_write
        self._numbers = count()
        self._pending: dict[int, weakref.ref[Promise]] = {}
        self._make_locks()
        self._num_followers = 0
        self._stillborn: memoryview | None = None
        self._parting: MakeError | None = None
        self._end: MakeError | None = None
        self._killed = False
        self._flushing = False
        self._descriptor = launched.connection.fileno()
        self._finalizer = weakref.finalize(
            self,
            _release,
            os.getpid(),
            self.process,
            self._channel,
            self._alive_write,
            self._pending,
        )
        forget_after_fork(self)

    def _make_locks(self) -> None:
        # All of them re-entrant: a signal handler may call what it has interrupted.
        self._sending = threading.RLock()
        self._receiving = threading.RLock()
        self._closing = threading.RLock()
        self._changed = threading.Condition()

    @property
    def end(self) -> MakeError | None:
        """What makes the error that tells how the connection ended, or ``None`` while it is up."""
        return self._end

    def fileno(self) -> int:
        """Return the data socket's descriptor, or -1 when the connection has ended."""
        return -1 if self._end is not None else self._descriptor

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
                    raise RuntimeError(
                        f"a signal handler used worker {self.name!r} while it was interrupting "
                        "another use of it; set a flag in the handler instead"
                    )
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
                self._poll(select.POLLIN | select.POLLOUT, None)
                self.drain()
        except ConnectionError:
            # The worker has ended. Who waits for a reply finds out, and more exactly.
            pass
        finally:
            self._flushing = False

    def _poll(self, mask: int, timeout: float | None) -> dict[int, int]:
        poller = select.poll()
        poller.register(self._descriptor, mask)
        pidfd = self.process.pidfd
        if pidfd is not None:
            poller.register(pidfd, select.POLLIN)
        return dict(poller.poll(None if timeout is None else math.ceil(max(timeout, 0.0) * 1000)))

    def wait(self, promise: Promise, timeout: float | None) -> None:
        """Return when `promise` is settled.

        Raises
        ------
        TimeoutError
            It was not within `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        left = timeout
        while not promise.settled:
            if self._end is not None:
                promise.settle(self._end)
                return
            self._listen(left, promise)
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0 and not promise.done():
                    raise TimeoutError(
                        f"worker {self.name!r} (pid {self.process.pid}) has not answered request "
                        f"{promise.request} within {timeout} s; it is still at it, and the promise "
                        "stays good"
                    )

    def drain(self) -> None:
        """Take in every reply that is there, and the worker's end if it has come; never blocks."""
        self._listen(0.0)

    def _listen(self, timeout: float | None, promise: Promise | None = None) -> None:
        """Read for all threads, or wait until another thread that does has something for us."""
        leads: list[bool] = []
        try:
            hold(leads, self._receiving.acquire, False)
            if leads[0]:
                if self._end is None and not (promise is not None and promise.settled):
                    self._take_in(timeout)
            elif promise is not None:
                self._follow(timeout, promise)
        finally:
            if leads and leads[0]:
                self._receiving.release()
        if self._num_followers:
            with self._changed:
                self._changed.notify_all()

    def _follow(self, timeout: float | None, promise: Promise) -> None:
        seconds = _FOLLOWER_SECONDS if timeout is None else min(timeout, _FOLLOWER_SECONDS)
        with self._changed:
            self._num_followers += 1
            try:
                # Looked at again, now that whoever stops leading will say so.
                if self._receiving.acquire(blocking=False):
                    self._receiving.release()
                elif not promise.settled and seconds > 0:
                    self._changed.wait(seconds)
            finally:
                self._num_followers -= 1

    def _take_in(self, timeout: float | None) -> None:
        """Wait for replies or the worker's end and see to them; with `_receiving` held."""
        mask = select.POLLIN | select.POLLOUT if self._channel.unsent else select.POLLIN
        events = self._poll(mask, timeout)
        if not events or self._end is not None:
            return
        if events.get(self._descriptor, 0) & select.POLLOUT:
            self._flush_aside()
        # What it said before it ended counts.
        ended = self.process.pidfd in events
        more = self._channel.receive(self._deliver, everything=ended)
        if ended or not more or self._stillborn is not None:
            self._bury()

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
        if self._parting is not None:
            self._finish(self._parting)
        elif stillborn is not None:
            self._finish(lambda: unpack_exception(stillborn))
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

    def _finish(self, end: MakeError) -> None:
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
        self._channel.close()
        self._alive_write.close()
        self.process.close()
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
                if timeout > 0:
                    self._ask_to_close()
                    self._see_off(timeout)
                self.process.kill()
                self._see_off(5.0)
            finally:
                if self._end is None:
                    self.process.end(1.0)
                    self._finish(reason)

    def _ask_to_close(self) -> None:
        # Another thread may be stuck in sending to a worker that is stuck as well.
        if self._sending.acquire(timeout=0.1):
            try:
                if not self._flushing:
                    self._channel.post(outgoing(CLOSE, next(self._numbers), b""))
                    self._flush(patient=True)
            finally:
                self._sending.release()

    def _see_off(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self._end is None and (left := deadline - time.monotonic()) > 0:
            if self._receiving.acquire(timeout=min(left, _FOLLOWER_SECONDS)):
                try:
                    if self._end is None:
                        self._take_in(left)
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


def _strike_off(pending: dict[int, weakref.ref[Promise]], request: int) -> None:
    pending.pop(request, None)


def _release(
    owner: int,
    process: ChildProcess,
    channel: Channel,
    alive_write: io.FileIO,
    pending: dict[int, weakref.ref[Promise]],
) -> None:
    """End a worker whose connection was dropped: politely if it is idle, else by force."""
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):
        channel.receive(lambda _kind, request, _payload: _strike_off(pending, request))
        if not pending:
            channel.post(outgoing(CLOSE, 0, b""))
            if channel.flush():
                process.wait(1.0)
    process.end()
    channel.close()
    alive_write.close()
    process.close()
