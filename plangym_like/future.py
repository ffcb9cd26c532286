"""`Future`: the result of a batch or request that may still be running."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Generic, Protocol, Self, TypeVar

_Result = TypeVar("_Result")


class Pending(Protocol):
    """A running operation: a batch of rows, or a request to another process."""

    @property
    def what(self) -> str:
        """The name of the operation in error messages."""

    @property
    def settled(self) -> bool:
        """Whether the operation is known to be over."""

    def settle(self, timeout: float | None) -> bool:
        """Wait at most `timeout` seconds, and return whether the operation is over."""

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return ``(result, None)`` or ``(None, error)``; the operation must be over."""

    def cancel(self, error: BaseException) -> bool:
        """Stop the operation, so that it ends with `error`; return False if that is impossible."""


class Future(Generic[_Result]):
    """The result of a batch or request that may still be running.

    It has the interface of `concurrent.futures.Future`, and calling it is the same as calling
    `result`. A batch is cancelled when no reference to its future is left. For a request, the reply
    is then discarded.

    Parameters
    ----------
    pending : Pending or None
        The running operation; ``None`` if it is already over.
    owner : object
        An object to keep alive until the operation is over.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> future = env.step_batch([0, 1, 1], state, blocking=False)
    >>> future.result().rewards
    array([1., 1., 1.])
    >>> future.done(), future.exception()
    (True, None)
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
        """Call `run`, and return a finished future with its result or its exception.

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
            # The error's traceback refers to this frame, which must not refer to the error.
            del future, failure

    def check(self, check: Callable[[_Result], None]) -> None:
        """Register `check`, which is called with the result before the result is first returned.

        If `check` raises, its exception replaces the result.
        """
        self._check = check

    def result(self, timeout: float | None = None) -> _Result:
        """Wait for the result and return it; can be called more than once.

        Raises
        ------
        TimeoutError
            The operation takes longer than `timeout` seconds. It continues, and `result` may be
            called again.
        CancelledError
            The operation was cancelled.
        WorkerDiedError, ClosedError
            The process that executed the operation has died or was closed.
        BaseException
            Any exception that the operation raised, with its own type.
        """
        error = self._wait(timeout)
        if error is None:
            result: _Result = self._result
            return result
        try:
            raise error
        finally:
            # The traceback refers to this frame, which must not refer to the object that holds the
            # error.
            del self, error

    __call__ = result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the exception, or ``None`` if there was no exception; see `result`.

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
        """Return whether the operation is over, without waiting.

        For a batch, this also sends remaining rows to free workers.
        """
        return self._pending is None or self._settle(self._pending, 0.0)

    @property
    def settled(self) -> bool:
        """Whether the operation is known to be over, without checking again."""
        return self._pending is None or self._pending.settled

    def cancel(self) -> bool:
        """Cancel a batch; return False if the batch was already over.

        For a request to a process, do nothing and return False.
        """
        pending = self._pending
        if pending is not None and not self.done():
            if pending.cancel(CancelledError(f"{pending.what} was cancelled")):
                self._cancelled = True
        return self._cancelled

    def cancelled(self) -> bool:
        """Return whether the operation was cancelled."""
        return self._cancelled

    def _settle(self, pending: Pending, timeout: float | None) -> bool:
        over = pending.settle(timeout)
        if over:
            self._owner = None
        return over

    def _wait(self, timeout: float | None) -> BaseException | None:
        """Wait, and return the error if there is one; otherwise, `_result` holds the result."""
        pending = self._pending
        if pending is not None:
            if not self._settle(pending, timeout):
                raise TimeoutError(
                    f"{pending.what} is not done within {timeout} s; it continues, so result() may "
                    "be called again"
                )
            self._result, error = pending.outcome()
            if error is not None:
                # The error is not kept: a request makes a new one each time, so that no traceback
                # keeps the caller's frames alive.
                return error
            self._pending = None
        check = self._check
        if check is not None and self._error is None:
            try:
                check(self._result)
            except Exception as error:
                self._error = error
        # Set only now, so that every result is checked, even after a Ctrl-C.
        self._check = None
        return self._error

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else "done" if self.settled else "pending"
        return f"<Future, {state}>"


# The name for futures of batches.
BatchFuture = Future
