"""`Future`: the result of something that is done elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Generic, Protocol, Self, TypeVar

_Result = TypeVar("_Result")


class Pending(Protocol):
    """Something that is done elsewhere: a batch of rows, or a request to another process."""

    @property
    def what(self) -> str:
        """What errors call it."""

    @property
    def settled(self) -> bool:
        """Whether it is known to be over."""

    def settle(self, timeout: float | None) -> bool:
        """Return whether it is over, after `timeout` seconds at most; 0 only looks."""

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return the result, and the error or ``None``; only once it is over."""

    def cancel(self, error: BaseException) -> bool:
        """Stop it and make `error` its error; return False if that is not possible."""


class Future(Generic[_Result]):
    """The result of something that is done elsewhere.

    It has the interface of `concurrent.futures.Future`, and calling it is the same as `result`. A
    batch whose future is dropped is cancelled; the reply to a request whose future is dropped is
    thrown away.

    Parameters
    ----------
    pending : Pending or None
        What is being done; ``None`` if it is over already.
    owner : object
        Kept alive as long as the future waits for it.
    """

    __slots__ = ("__weakref__", "_cancelled", "_check", "_error", "_owner", "_pending", "_result")

    def __init__(self, pending: Pending | None, owner: Any = None) -> None:
        self._pending, self._owner = pending, owner
        self._result: Any = None
        self._error: BaseException | None = None
        self._check: Callable[[_Result], None] | None = None
        self._cancelled = False

    @classmethod
    def of(cls, run: Callable[[], _Result]) -> Self:
        """Return a future that is done, with what `run` returns or raises.

        >>> future = Future.of(lambda: 1 / 0)
        >>> future.done(), future.exception()
        (True, ZeroDivisionError('division by zero'))
        """
        result = failure = None
        try:
            result = run()
        except Exception as error:
            failure = error
        future = cls(None)
        future._result, future._error = result, failure
        try:
            return future
        finally:
            # The error's traceback holds this frame, which must not hold the error.
            del future, failure

    def check(self, check: Callable[[_Result], None]) -> None:
        """Call ``check(result)`` before the result is returned for the first time.

        What it raises takes the place of the result.
        """
        self._check = check

    def result(self, timeout: float | None = None) -> _Result:
        """Wait for the result and return it; may be called again.

        Raises
        ------
        TimeoutError
            It takes longer than `timeout` seconds; it goes on, and the future stays good.
        CancelledError
            `cancel` was called before.
        WorkerDiedError, ClosedError
            The process that worked on it ended, or was closed.
        BaseException
            What it raised, as its own type.
        """
        error = self._wait(timeout)
        if error is None:
            result: _Result = self._result
            return result
        try:
            raise error
        finally:
            # Its traceback holds this frame, which must not hold what holds the error.
            del self, error

    __call__ = result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait and return what was raised, ``None`` if nothing was; see `result`.

        Raises
        ------
        TimeoutError, CancelledError
            As in `result`.
        """
        error = self._wait(timeout)
        if self._cancelled and error is not None:
            raise error
        return error

    def done(self) -> bool:
        """Return whether it is over, without waiting.

        Of a batch, this also gives rows that are left to workers that are free.
        """
        return self._pending is None or self._settle(self._pending, 0.0)

    @property
    def settled(self) -> bool:
        """Whether it is known to be over, without looking for it."""
        return self._pending is None or self._pending.settled

    def cancel(self) -> bool:
        """Stop a batch; return False if it was over already.

        A request that was sent to a process cannot be stopped: this returns False.
        """
        pending = self._pending
        if pending is not None and not self.done():
            if pending.cancel(CancelledError(f"{pending.what} was cancelled")):
                self._cancelled = True
        return self._cancelled

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return self._cancelled

    def _settle(self, pending: Pending, timeout: float | None) -> bool:
        over = pending.settle(timeout)
        if over:
            self._owner = None
        return over

    def _wait(self, timeout: float | None) -> BaseException | None:
        """Wait, and return the error if there is one; otherwise `_result` is the result."""
        pending = self._pending
        if pending is not None:
            if not self._settle(pending, timeout):
                raise TimeoutError(
                    f"{pending.what} is not done within {timeout} s; it goes on, so result() may "
                    "be called again"
                )
            self._result, error = pending.outcome()
            if error is not None:
                # Not kept: a request makes a new error each time, so that no traceback keeps the
                # frames of the caller alive.
                return error
            self._pending = None
        check = self._check
        if check is not None and self._error is None:
            try:
                check(self._result)
            except Exception as error:
                self._error = error
        # Not before: no other thread gets an unchecked result, nor does the caller after a Ctrl-C.
        self._check = None
        return self._error

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else "done" if self.settled else "pending"
        return f"<Future, {state}>"


# The name by which batches' users know it.
BatchFuture = Future
