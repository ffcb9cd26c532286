"""A result that is still being worked on in another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plangym_like.errors import RemoteError
from plangym_like.processes.messages import EXCEPTION, loads
from plangym_like.processes.remote_errors import unpack_exception

if TYPE_CHECKING:
    from plangym_like.processes.connection import Connection

# What a worker replied, its kind and its payload; or what makes the error that tells of its end.
Outcome = tuple[int, memoryview] | Callable[[], BaseException]


class Promise:
    """The reply to one request.

    Calling it waits for the reply and returns the value, or raises what the request raised; calling
    it again gives the same again. A promise may be dropped: its reply is thrown away.
    """

    __slots__ = ("__weakref__", "_connection", "_outcome", "_request", "_value")

    def __init__(self, connection: Connection, request: int) -> None:
        self._connection: Connection | None = connection
        self._request = request
        self._outcome: Outcome | None = None
        self._value: list[Any] = []

    def done(self) -> bool:
        """Return whether the outcome is here, without blocking."""
        connection = self._connection
        if self._outcome is None and connection is not None:
            connection.drain()
            if connection.end is not None:  # a Ctrl-C may have come before it was told
                self.settle(connection.end)
        return self._outcome is not None

    def __call__(self, timeout: float | None = None) -> Any:
        """Wait for the outcome and return the value.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; the promise stays good after a timeout.

        Raises
        ------
        TimeoutError
            It took longer than `timeout`.
        WorkerDiedError
            The process ended before it could reply.
        ClosedError
            The process was closed before it could reply.
        BaseException
            Whatever the request raised, as its own type, caused by the remote traceback.
        """
        error = self._wait(timeout)
        if error is not None:
            raise error
        return self._value[0]

    def call_safely(self, timeout: float | None = None) -> Any:
        """Return the result, but raise a `RemoteError` for what would end the program.

        That is a ``SystemExit``, ``KeyboardInterrupt`` or the like that the request raised.
        """
        error = self._wait(timeout)
        if error is None:
            return self._value[0]
        if isinstance(error, Exception) or not self.replied:
            raise error
        raise RemoteError(f"the worker's code raised {error!r}") from error.__cause__

    def _wait(self, timeout: float | None) -> BaseException | None:
        """Wait for the outcome; return what is to be raised, if anything."""
        connection = self._connection
        if self._outcome is None and connection is not None:
            connection.wait(self, timeout)
        outcome = self._outcome
        if self._value:
            return None
        assert outcome is not None
        # Errors are made anew each time: a kept one would hold on to its traceback's frames.
        if not isinstance(outcome, tuple):
            return outcome()
        kind, payload = outcome
        if kind == EXCEPTION:
            return unpack_exception(payload)
        self._value = [loads(payload)]
        self._outcome = (kind, memoryview(b""))
        return None

    def settle(self, outcome: Outcome) -> None:
        """Take the reply's kind and payload, or what makes the error that stands for it."""
        if self._outcome is None:
            self._outcome = outcome
        self._connection = None

    @property
    def settled(self) -> bool:
        """Whether the outcome has been taken in already, without looking for it."""
        return self._outcome is not None

    @property
    def replied(self) -> bool:
        """Whether the outcome is the worker's own reply.

        If it is not, its error tells of the worker's end. The type of an error does not show the
        difference: the worker's code may raise a `WorkerDiedError` of its own.
        """
        return isinstance(self._outcome, tuple)

    @property
    def request(self) -> int:
        """The request's id."""
        return self._request

    def __repr__(self) -> str:
        state = "done" if self._outcome is not None else "pending"
        return f"<Promise of request {self._request}, {state}>"
