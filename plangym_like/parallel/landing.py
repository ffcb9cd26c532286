"""`Landing`: how a batch that is on its way is waited for, wherever its rows are stepped."""

from __future__ import annotations

import abc
import math
import time
from contextlib import AbstractContextManager
from typing import Any, Protocol

from plangym_like.errors import ClosedError


class House(Protocol):
    """Whose lanes step the batch."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held by the thread that sees to the batch."""

    def ensure_open(self) -> None:
        """Raise `ClosedError` if it has been closed."""

    def landed(self, flight: Any) -> None:
        """Hear that the batch is at its end."""


class Landing(abc.ABC):
    """A batch as those see it who wait for its result.

    Parameters
    ----------
    house : House
    count : int
        Its rows.
    """

    def __init__(self, house: House, count: int) -> None:
        self._landing_at = house
        self._count = count
        self._result: Any = None
        self._error: BaseException | None = None
        self._landed = False

    @abc.abstractmethod
    def _bring_in(self, until: float) -> bool:
        """Set the result, or what stepping the rows raised; return whether it came to that."""

    @abc.abstractmethod
    def _abandon(self) -> None:
        """Stop stepping the rows."""

    @abc.abstractmethod
    def _let_go(self) -> None:
        """Drop everything but the result."""

    def land(self, timeout: float | None = None) -> Any:
        """Return the result; raises what stepping the rows raised. May be called again.

        Raises
        ------
        TimeoutError
            It takes longer than `timeout` seconds; the batch goes on, and may be landed later.
        """
        self.settle(timeout)
        if not self._landed:
            raise TimeoutError(
                f"a batch of {self._count} rows is not done within {timeout} s; it is still on its "
                "way, and the promise stays good"
            )
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            # Its traceback holds this frame, which must not hold what holds the error.
            del self

    def settle(self, timeout: float | None = None) -> None:
        """See the batch to its end, and keep what came of it for who asks."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        with self._landing_at.lock:
            if not self._landed:
                self._landing_at.ensure_open()
                self._finish(until)

    def _finish(self, until: float) -> None:
        over = True
        try:
            over = self._bring_in(until)
        except Exception as error:
            self._error = error
            self._abandon()
        except BaseException:
            self._error = ClosedError("this batch was interrupted")
            self._abandon()
            raise
        finally:
            if over:
                self._landed = True
                self._landing_at.landed(self)
                self._let_go()
