"""`Landing`: how a batch that is on its way is waited for, wherever its rows are stepped."""

from __future__ import annotations

import abc
import math
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from plangym_like.batch_future import BatchFuture
from plangym_like.errors import ClosedError
from plangym_like.processes.interrupts import hold
from plangym_like.row_errors import raised_by_signal_handler


class House(Protocol):
    """Whose lanes step the batch."""

    @property
    def lock(self) -> Any:
        """A re-entrant lock, held by the thread that advances batches."""

    def ensure_open(self) -> None:
        """Raise `ClosedError` if it has been closed."""

    def drive(self, flight: Any, until: float) -> bool:
        """Advance all batches until `flight` is over or it is `until`; return whether it is over.

        If `until` has passed already, no row is stepped in this process.
        """

    def landed(self, flight: Any) -> None:
        """Hear that the batch is at its end."""


class Landing(abc.ABC):
    """A batch that is being stepped: the part that its future uses.

    Parameters
    ----------
    house : House
    count : int
        Its rows.

    Attributes
    ----------
    result, error
        What stepping the rows returned or raised.
    landed : bool
        Whether it is over.
    """

    def __init__(self, house: House, count: int) -> None:
        self._landing_at = house
        self.count = count
        self.result: Any = None
        self.error: BaseException | None = None
        self.landed = False
        self._future: weakref.ref[BatchFuture] | None = None

    @abc.abstractmethod
    def _abandon(self) -> None:
        """Stop stepping the rows."""

    @abc.abstractmethod
    def _let_go(self) -> None:
        """Drop everything but the result."""

    def future(self, owner: Any = None) -> BatchFuture:
        """Return the only future of this batch; `owner` lives as long as that needs it."""
        future = BatchFuture(self, owner)
        self._future = weakref.ref(future)
        return future

    @property
    def dropped(self) -> bool:
        """Whether the future of this batch no longer exists."""
        return self._future is not None and self._future() is None

    def settle(self, timeout: float | None) -> bool:
        """Return whether it is over, after `timeout` seconds at most; 0 only looks."""
        if self.landed:
            return True
        until = math.inf if timeout is None else time.monotonic() + timeout
        if timeout is not None and timeout <= 0:
            until = -math.inf
        held: list[bool] = []
        try:
            # Another thread may hold the lock for longer than that.
            patience = -1.0 if timeout is None else max(timeout, 0.0)
            hold(held, self._landing_at.lock.acquire, True, patience)
            if held[0] and not self.landed:
                self.attempt(lambda: self._drive(until))
        finally:
            if held and held[0]:
                self._landing_at.lock.release()
        return self.landed

    def _drive(self, until: float) -> bool:
        self._landing_at.ensure_open()
        return self._landing_at.drive(self, until)

    def cancel(self, error: BaseException) -> bool:
        """Stop it, and make `error` its error; return False if it was over already."""
        with self._landing_at.lock:
            if self.landed:
                return False
            self.attempt(lambda: self._give_up(error))
            return True

    def _give_up(self, error: BaseException) -> bool:
        self.error = error
        self._abandon()
        return True

    def attempt(self, advance: Callable[[], bool], *, for_another: bool = False) -> bool:
        """Return ``advance()``, whether the batch is over; an error that it raises ends the batch.

        Errors are kept for the future, and interrupts are raised at once. While the caller waits
        `for_another` batch, exceptions of signal handlers are raised at once too.
        """
        over = True
        try:
            # It may be over, and an interrupt have come before its house heard of it.
            over = self.landed or advance()
        except Exception as error:
            self.error = error
            self._abandon()
            if for_another and raised_by_signal_handler(error):
                raise
        except BaseException:
            self.error = ClosedError("this batch was interrupted")
            self._abandon()
            raise
        finally:
            if over:
                self.landed = True
                self._landing_at.landed(self)
                self._let_go()
        return over
