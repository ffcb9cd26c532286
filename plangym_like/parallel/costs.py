"""Whether a batch is worth sending: what batches of its size have cost, here and on the lanes."""

from __future__ import annotations

# Waking a process through a socket and hearing from it costs some 100 to 200 us. What is done
# here in a small multiple of that is never worth sending.
_CHEAP_SECONDS = 4e-4
# One measurement may be spoilt by another program, but only to the worse. So the best one counts,
# and fades slowly, so that it can become worse where batches really do.
_FADE = 1.02
# The way not taken is tried again after so many batches, unless it is out of the question.
_RETRY = 64
# The first batches that are sent also pay for memory and for lanes that get to know their speed.
_FIRST_TRIES = 8
_HOPELESS = 1.6


class Costs:
    """Remembers seconds by the size of batches and by the way that they went.

    Sizes are the powers of two that contain them.

    >>> costs = Costs()
    >>> costs.send(256, 1)
    False
    >>> costs.note(256, 1, seconds=0.03, sent=False)
    >>> costs.send(256, 1)
    True
    """

    def __init__(self) -> None:
        self._best: dict[tuple[int, int, bool], float] = {}
        self._tries: dict[tuple[int, int], int] = {}
        self._since: dict[tuple[int, int], int] = {}

    def send(self, count: int, steps: int) -> bool:
        """Return whether to send a batch of `count` rows of `steps` steps each."""
        size = (count.bit_length(), steps.bit_length())
        here = self._best.get((*size, False))
        if here is None:
            return self._guess(size) > 50 * _CHEAP_SECONDS
        if here < _CHEAP_SECONDS:
            return False
        if self._tries.get(size, 0) < _FIRST_TRIES:
            return True
        there = self._best[(*size, True)]
        better, worse = min(here, there), max(here, there)
        self._since[size] = self._since.get(size, 0) + 1
        if self._since[size] >= _RETRY and worse < _HOPELESS * better:
            self._since[size] = 0
            return not there < here
        return there < here

    def note(self, count: int, steps: int, *, seconds: float, sent: bool) -> None:
        """Remember what a batch took."""
        size = (count.bit_length(), steps.bit_length())
        key = (*size, sent)
        if sent:
            self._tries[size] = self._tries.get(size, 0) + 1
        best = self._best.get(key)
        self._best[key] = seconds if best is None else min(seconds, best * _FADE)

    def _guess(self, size: tuple[int, int]) -> float:
        """Return what a batch of a size never tried here would take, from the nearest size."""
        known = [
            (abs(rows - size[0]) + abs(steps - size[1]), rows, steps, seconds)
            for (rows, steps, sent), seconds in self._best.items()
            if not sent
        ]
        if not known:
            return 0.0
        _, rows, steps, seconds = min(known)
        doublings = float(size[0] - rows + size[1] - steps)
        guess: float = seconds * 2.0**doublings
        return guess
