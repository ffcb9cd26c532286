"""Whether a batch is worth sending: what batches of its size have cost, here and on the lanes."""

from __future__ import annotations

# Waking a process through a socket and hearing from it costs some 100 to 200 us. What is done
# here in a small multiple of that is never worth sending.
_CHEAP_SECONDS = 4e-4
# A batch of unknown cost is tried here first, unless it would seem to take as long as this. What
# seems so may be far off: a first batch also pays for what is done only once.
_LONG_SECONDS = 2.0
# One measurement may be spoilt by another program, but only to the worse. So the best one counts,
# and fades slowly, so that it can become worse where batches really do.
_FADE = 1.02
# What each way is tried at first; batches that are sent also pay for memory then.
_TRIES_HERE, _TRIES_SENT = 3, 8
# What is lost by trying the slower way again is at most one part in so many. Ways that are nearly
# equal are compared often: which is the slower may soon be another.
_RETRY = 64

_Size = tuple[int, int]


class Costs:
    """Remembers seconds by the size of batches and by the way that they went.

    Sizes are the powers of two that contain the number of rows and of steps in each.

    >>> costs = Costs()
    >>> costs.send(256, 1)
    False
    >>> for _ in range(3):
    ...     costs.note(256, 1, seconds=0.03, sent=False)
    >>> costs.send(256, 1), costs.send(2, 1)
    (True, False)
    """

    def __init__(self) -> None:
        self._here: dict[_Size, float] = {}
        self._sent: dict[_Size, float] = {}
        self._tries: dict[tuple[_Size, bool], int] = {}
        self._since: dict[_Size, int] = {}

    def send(self, count: int, steps: int) -> bool:
        """Return whether to send a batch of `count` rows of `steps` steps each."""
        size = (count.bit_length(), steps.bit_length())
        known = self._here.get(size)
        if known is not None and known < _CHEAP_SECONDS:
            return False
        here = self._bound(size)
        if here < _CHEAP_SECONDS:
            return False
        tries = self._tries.get((size, False), 0)
        if tries < _TRIES_HERE and self._guess(size) < _LONG_SECONDS:
            return False
        if self._tries.get((size, True), 0) < _TRIES_SENT:
            return True
        sent = self._sent[size]
        faster_sent = sent < here
        self._since[size] = self._since.get(size, 0) + 1
        if self._since[size] > _RETRY * (max(here, sent) / min(here, sent) - 1.0):
            self._since[size] = 0
            return not faster_sent
        return faster_sent

    def note(self, count: int, steps: int, *, seconds: float, sent: bool) -> None:
        """Remember what a batch took."""
        size = (count.bit_length(), steps.bit_length())
        self._tries[size, sent] = self._tries.get((size, sent), 0) + 1
        best = self._sent if sent else self._here
        known = best.get(size)
        best[size] = seconds if known is None else min(seconds, known * _FADE)

    def _guess(self, size: _Size) -> float:
        """Return what a batch takes here if rows cost the same in every batch."""
        each = (
            seconds * 2.0 ** (size[0] - rows + size[1] - steps)
            for (rows, steps), seconds in self._here.items()
        )
        return min(each, default=0.0)

    def _bound(self, size: _Size) -> float:
        """Return what a batch takes here at most, by all that is known of other sizes.

        Fewer rows take no longer than more, and twice as many no longer than twice as long.
        """
        bound = float("inf") if self._here else 0.0
        for (rows, steps), seconds in self._here.items():
            doublings = max(0, size[0] - rows) + max(0, size[1] - steps)
            bound = min(bound, seconds * float(1 << doublings))
        return bound
