"""`Closable`: the base class of batchers and rollout iterators, which are closed after use."""

from __future__ import annotations

import abc
from typing import Self

from plangym_like.errors import ClosedError


class Closable(abc.ABC):
    """A context manager with methods that raise `ClosedError` after it has been closed."""

    _end: str | None = None

    def _check_open(self) -> None:
        if self._end is not None:
            raise ClosedError(f"this {type(self).__name__} {self._end}")

    @abc.abstractmethod
    def _close(self) -> None:
        """End all workers, including hung ones. This may be called more than once."""

    def close(self) -> None:
        """End all workers within a few seconds; calling it again does nothing."""
        self._end = self._end or "has been closed; make another one"
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
