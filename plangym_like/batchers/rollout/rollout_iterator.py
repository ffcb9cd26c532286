"""`RolloutIterator`: an endless iterator of fragments."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Self

from plangym_like.batchers.closing import Closable
from plangym_like.batchers.rollout.fragment import Fragment


@dataclass
class RolloutStats:
    """Statistics of a rollout iterator so far.

    Attributes
    ----------
    batches : int
        Fragments that were yielded.
    steps : int
        Steps of all lanes in these fragments, including those of frozen lanes.
    version : int
        The number of times that the actor's weights have changed. `same.rollout`, which always
        uses the current weights, counts only the changes that PyTorch records; changes to a
        weight's ``data`` are not recorded.
    discarded : int
        Buffers discarded because they were filled with weights that were too old. A fragment of
        `multi.rollout` consists of `n_per_batch` buffers.
    waited : float
        Seconds that the iterator spent waiting for fragments.
    """

    batches: int = 0
    steps: int = 0
    version: int = 0
    discarded: int = 0
    waited: float = 0.0


class RolloutIterator(Closable):
    """Yields fragments without end.

    An error closes the iterator. Later calls of ``next`` raise `ClosedError`; they never end the
    caller's loop silently.

    Attributes
    ----------
    stats : RolloutStats
    """

    def __init__(self) -> None:
        self.stats = RolloutStats()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Fragment:
        self._check_open()
        try:
            fragment = self._next()
        except Exception as error:
            self._end = f"failed with {type(error).__name__}: {error}"
            self._close()
            if isinstance(error, StopIteration):
                # A StopIteration would end the caller's loop without an error.
                raise RuntimeError("the actor or an environment raised StopIteration") from error
            raise
        self.stats.batches += 1
        self.stats.steps += fragment.state.fin.numel()
        return fragment

    @abc.abstractmethod
    def _next(self) -> Fragment: ...
