"""`Request`: something that a worker was asked, and its reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plangym_like.processes.messages import EXCEPTION, loads
from plangym_like.processes.remote_errors import unpack_exception

# The kind and payload of a reply; or what makes the error that says how the connection ended.
Reply = tuple[int, memoryview] | Callable[[], BaseException]


class Request:
    """Something that a worker was asked; see `plangym_like.future.Pending`.

    Parameters
    ----------
    number : int
        The request's id.
    worker : str
        What errors call the worker.
    wait : callable
        ``wait(request, timeout)`` returns when the request has been answered, or after `timeout`
        seconds. The request holds a reference to it until then.
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
        """Take the reply, unless there is one already."""
        if self._reply is None:
            self._reply = reply
        self._wait = None

    @property
    def what(self) -> str:
        """What errors call it."""
        return f"request {self.number} to {self._worker}"

    @property
    def settled(self) -> bool:
        """Whether the reply is there."""
        return self._reply is not None

    def settle(self, timeout: float | None) -> bool:
        """Return whether the reply is there, after `timeout` seconds at most; 0 only looks."""
        wait = self._wait
        if wait is not None:
            wait(self, timeout)
        return self._reply is not None

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return the value, and the error or ``None``; the error is a new one each time."""
        reply = self._reply
        assert reply is not None
        if not isinstance(reply, tuple):
            return None, reply()
        kind, payload = reply
        if kind == EXCEPTION:
            return None, unpack_exception(payload)
        return loads(payload), None

    def cancel(self, error: BaseException) -> bool:
        """Return False: what was sent cannot be taken back."""
        return False
