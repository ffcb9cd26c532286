"""`BatchRun`: a batch that is being executed."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from plangym_like.errors import ClosedError
from plangym_like.execution.dispatcher import Dispatcher
from plangym_like.processes.interrupts import hold
from plangym_like.results import Future


class Runner(Protocol):
    """The part of an executor's interface that `BatchRun` uses."""

    @property
    def lock(self) -> Any:
        """A re-entrant lock, held by the thread that advances batches."""

    def alone(self) -> threading.Lock:
        """Return the lock to hold while batches are advanced; see `not_in_use`."""

    def ensure_open(self) -> None:
        """Raise `ClosedError` if the executor has been closed."""

    def drive(self, run: Any, until: float) -> bool:
        """Advance all batches until `run` is over or the deadline `until` has passed.

        Return whether `run` is over. If `until` has passed already, this process steps no rows.
        """

    def note_done(self, run: Any) -> None:
        """Record that `run` is over."""


class BatchRun:
    """A batch that is being executed, with methods to wait for its result or cancel it.

    Parameters
    ----------
    executor : Runner
        Advances the batch; referenced weakly, since the executor refers to its batches.
    dispatcher : Dispatcher
        Steps the rows of the batch.

    Attributes
    ----------
    result, error
        The result of the batch, or the error that ended it.
    done : bool
        Whether the batch is over.
    """

    def __init__(self, executor: Runner, dispatcher: Dispatcher) -> None:
        self._executor: Runner = weakref.proxy(executor)
        self._dispatcher: Dispatcher | None = dispatcher
        self.count = dispatcher.count
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self._future: weakref.ref[Future[Any]] | None = None

    @property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher of the batch's rows; it exists until the batch is over."""
        assert self._dispatcher is not None
        return self._dispatcher

    def future(self, owner: Any = None) -> Future[Any]:
        """Make the batch's future, which keeps `owner` alive until the batch is over.

        Call this only once.
        """
        future: Future[Any] = Future(self, owner)
        self._future = weakref.ref(future)
        return future

    @property
    def what(self) -> str:
        """The name of the batch in error messages."""
        return f"a batch of {self.count} rows"

    @property
    def settled(self) -> bool:
        """Whether the batch is known to be over."""
        return self.done

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return ``(result, None)`` or ``(None, error)``; the batch must be over."""
        return self.result, self.error

    @property
    def dropped(self) -> bool:
        """Whether the `Future` that was returned for this batch has been garbage-collected."""
        return self._future is not None and self._future() is None

    def settle(self, timeout: float | None) -> bool:
        """Wait at most `timeout` seconds, and return whether the batch is over."""
        if self.done:
            return True
        until = math.inf if timeout is None else time.monotonic() + timeout
        if timeout is not None and timeout <= 0:
            until = -math.inf
        held: list[bool] = []
        try:
            # Another thread may hold the lock for longer than `timeout`.
            patience = -1.0 if timeout is None else max(timeout, 0.0)
            hold(held, self._executor.lock.acquire, True, patience)
            if held[0] and not self.done:
                with self._executor.alone():
                    self.attempt(lambda: self._drive(until))
        finally:
            if held and held[0]:
                self._executor.lock.release()
        return self.done

    def _drive(self, until: float) -> bool:
        self._executor.ensure_open()
        return self._executor.drive(self, until)

    def cancel(self, error: BaseException) -> bool:
        """Stop the batch; its future then raises `error`. Return False if it was already over."""
        with self._executor.lock:
            if self.done:
                return False
            with self._executor.alone():
                self.drop(error)
            return True

    def drop(self, error: BaseException) -> None:
        """Do what `cancel` does; the caller must already hold the executor's locks."""
        self.attempt(lambda: self._fail(error))

    def attempt(self, advance: Callable[[], bool]) -> bool:
        """Call `advance`, and return whether the batch is over; an error ends the batch.

        An `Exception` is stored, and raised by the batch's `Future`. Any other error, such as
        `KeyboardInterrupt`, is raised here, and the batch's `Future` then raises `ClosedError`.
        """
        over = True
        try:
            # An interrupt may have come after the batch was over, but before its executor recorded
            # it.
            over = self.done or advance()
            if over and not self.done and self.error is None:
                self._finish()
        except Exception as error:
            self._fail(error)
        except BaseException:
            self._fail(ClosedError("this batch was interrupted, so it has no results: step again"))
            raise
        finally:
            if over:
                self.done = True
                self._executor.note_done(self)
                self._release()
        return over

    def _finish(self) -> None:
        """Set the result, or the error, of a batch whose rows are done."""
        error = self.dispatcher.failure
        if error is None:
            self.result = self.dispatcher.result()
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> bool:
        if self._dispatcher is not None:
            self.error = error
            self._dispatcher.abandon()
        return True

    def _release(self) -> None:
        """Drop the dispatcher, so that only the caller keeps the memory of the result in use."""
        self._dispatcher = None
