"""`Request`: a request that was sent to a worker, and its reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plangym_like.processes.messages import EXCEPTION, loads
from plangym_like.processes.remote_errors import unpack_exception

# The kind and payload of a reply, or, once the connection has ended, a function that returns the
# error.
Reply = tuple[int, memoryview] | Callable[[], BaseException]


class Request:
    """A request that was sent to a worker; see `plangym_like.future.Pending`.

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
