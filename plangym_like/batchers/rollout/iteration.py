"""What all rollout iterators are: endless, context managers, and never silent."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from plangym_like.batchers.rollout.fragment import Fragment
from plangym_like.errors import ClosedError


@dataclass
class RolloutStats:
    """What an iterator has done so far.

    Attributes
    ----------
    batches : int
        Fragments that were yielded.
    steps : int
        Steps of environments in them.
    version : int
        How often the actor's weights have changed.
    discarded : int
        Fragments that were thrown away because their weights were too old.
    waited : float
        Seconds for which the iterator had to wait for fragments.
    """

    batches: int = 0
    steps: int = 0
    version: int = 0
    discarded: int = 0
    waited: float = 0.0


class RolloutIterator(abc.ABC):
    """Yields fragments for ever.

    After an error the iterator is closed, and further calls are a `ClosedError`, never the silent
    end of a loop.

    Attributes
    ----------
    stats : RolloutStats
    """

    def __init__(self) -> None:
        self.stats = RolloutStats()
        self._end = ""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Fragment:
        if self._end:
            raise ClosedError(f"this rollout cannot go on: {self._end}")
        try:
            fragment = self._next()
        except Exception as error:
            self._end = f"it failed with {type(error).__name__}: {error}"
            self._close()
            if isinstance(error, StopIteration):
                # From here it would end the caller's loop as if all was done.
                raise RuntimeError("the actor or an environment raised StopIteration") from error
            raise
        self.stats.batches += 1
        self.stats.steps += fragment.state.fin.numel()
        return fragment

    @abc.abstractmethod
    def _next(self) -> Fragment: ...

    @abc.abstractmethod
    def _close(self) -> None: ...

    def close(self) -> None:
        """End it, in less than five seconds; calling it again does nothing."""
        self._end = self._end or "it has been closed"
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
