"""`BatchFuture`: the result of a batch that may still be running."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Protocol, Self


class PendingBatch(Protocol):
    """A batch that is being stepped elsewhere.

    Attributes
    ----------
    count : int
        Its rows.
    result, error
        What stepping the rows returned or raised, once it is over.
    """

    count: int
    result: Any
    error: BaseException | None

    def settle(self, timeout: float | None) -> bool:
        """Return whether it is over, after `timeout` seconds at most; 0 only looks."""

    def cancel(self, error: BaseException) -> bool:
        """Stop it, and make `error` its error; return False if it was over already."""


class BatchFuture:
    """The result of a batch, with the interface of `concurrent.futures.Future`.

    Calling it is the same as `result`. A future that is dropped cancels its batch.

    Parameters
    ----------
    batch : PendingBatch or None
        What is being stepped; ``None`` if it is over already.
    owner : object
        Kept alive as long as the batch is needed.
    """

    __slots__ = ("__weakref__", "_batch", "_check", "_error", "_owner", "_result")

    def __init__(self, batch: PendingBatch | None, owner: Any = None) -> None:
        self._batch, self._owner = batch, owner
        self._result: Any = None
        self._error: BaseException | None = None
        self._check: Callable[[Any], None] | None = None

    @classmethod
    def of(cls, run: Callable[[], Any]) -> Self:
        """Return a future that is done, with what `run` returns or raises.

        >>> future = BatchFuture.of(lambda: 1 / 0)
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

    def check(self, check: Callable[[Any], None]) -> None:
        """Call ``check(result)`` before the result is returned for the first time.

        What it raises takes the place of the result.
        """
        self._check = check

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result and return it; may be called again.

        Raises
        ------
        TimeoutError
            It takes longer than `timeout` seconds; the batch goes on.
        CancelledError
            `cancel` was called before.
        Exception
            What stepping the rows raised.
        """
        self._wait(timeout)
        self._run_check()
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            # Its traceback holds this frame, which must not hold what holds the error.
            del self

    __call__ = result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the batch and return what stepping it raised, ``None`` if nothing; see `result`.

        Raises
        ------
        TimeoutError, CancelledError
            As in `result`.
        """
        self._wait(timeout)
        self._run_check()
        if isinstance(self._error, CancelledError):
            return self.result()  # type: ignore[no-any-return]
        return self._error

    def done(self) -> bool:
        """Return whether the batch is over, without waiting.

        This also gives rows that are left to workers that are free.
        """
        batch = self._batch
        return batch is None or self._take(batch, 0.0)

    def cancel(self) -> bool:
        """Stop the batch; return False if it was over already."""
        if self._batch is not None and not self.done():
            self._batch.cancel(CancelledError("this batch was cancelled"))
            self.done()
        return self.cancelled()

    def cancelled(self) -> bool:
        """Return whether the batch was cancelled."""
        return isinstance(self._error, CancelledError)

    def _wait(self, timeout: float | None) -> None:
        batch = self._batch
        if batch is not None and not self._take(batch, timeout):
            raise TimeoutError(
                f"a batch of {batch.count} rows is not done within {timeout} s; it is still "
                "being stepped, so result() may be called again"
            )

    def _run_check(self) -> None:
        check = self._check
        if check is not None and self._error is None:
            try:
                check(self._result)
            except Exception as error:
                self._error = error
        # Not before: no other thread gets an unchecked result, nor does the caller after a Ctrl-C.
        self._check = None

    def _take(self, batch: PendingBatch, timeout: float | None) -> bool:
        if not batch.settle(timeout):
            return False
        self._result, self._error = batch.result, batch.error
        self._batch = self._owner = None
        return True

    def __repr__(self) -> str:
        state = "pending" if self._batch is not None else "cancelled"
        if self._batch is None and not self.cancelled():
            state = "done"
        return f"<BatchFuture, {state}>"
