"""Whether a batch is worth sending: what batches of its size have cost, here and on the lanes."""

from __future__ import annotations

# Waking a process through a socket and hearing from it costs some 100 to 200 us. What is done
# here in a small multiple of that is never worth sending.
_CHEAP_SECONDS = 4e-4
# A batch of unknown cost is tried here first, unless it would seem to take as long as this. What
# seems so may be far off: a first batch also pays for what is done only once.
_LONG_SECONDS = 2.0
# What each way is tried at first, the best of which counts: a first batch also pays for what is
# done only once, and batches that are sent for their memory.
_TRIES_HERE, _TRIES_SENT = 3, 8
# From then on it is the average that counts, for what is quick at times may be slow on the whole.
# The last few measurements make it up. One may be spoilt by another program: it counts as this
# much longer than usual at most.
_MEMORY, _SPOILT = 4, 1.25
# What is lost by trying the slower way again is at most one part in so many. Ways that are nearly
# equal are compared often: which is the slower may soon be another. It is tried twice in a row, and
# only the second time counts: workers that have not been needed for a while are asleep.
_RETRY = 64

_Size = tuple[int, int]


class _Way:
    """What batches of one size take, going one way: seconds on average, of so many tries."""

    __slots__ = ("seconds", "since", "tries")

    def __init__(self) -> None:
        self.seconds = float("inf")
        self.tries = self.since = 0

    def note(self, seconds: float, first_tries: int) -> None:
        self.tries += 1
        if self.tries <= first_tries:
            self.seconds = min(self.seconds, seconds)
        else:
            self.seconds += (min(seconds, _SPOILT * self.seconds) - self.seconds) / _MEMORY


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
        self._here: dict[_Size, _Way] = {}
        self._sent: dict[_Size, _Way] = {}
        self._last: dict[_Size, bool] = {}

    def send(self, count: int, steps: int) -> bool:
        """Return whether to send a batch of `count` rows of `steps` steps each."""
        size = (count.bit_length(), steps.bit_length())
        way = self._here.get(size)
        known = way is not None and way.tries >= _TRIES_HERE
        here = way.seconds if way is not None and known else self._bound(size)
        if here < _CHEAP_SECONDS:
            return False
        if not known and self._guess(size) < _LONG_SECONDS:
            return False
        sent = self._sent.get(size)
        if sent is None or sent.tries < _TRIES_SENT:
            return True
        faster_sent = sent.seconds < here
        less, more = sorted((here, sent.seconds))
        sent.since += 1
        enough = _RETRY * 2 * (more / less - 1.0)
        if sent.since > enough:
            if sent.since > enough + 1:
                sent.since = 0
            return not faster_sent
        return faster_sent

    def note(self, count: int, steps: int, *, seconds: float, sent: bool) -> None:
        """Remember what a batch took, unless the one of its size before went the other way."""
        size = (count.bit_length(), steps.bit_length())
        ways = self._sent if sent else self._here
        way = ways.get(size)
        if way is None:
            way = ways[size] = _Way()
        first_tries = _TRIES_SENT if sent else _TRIES_HERE
        if way.tries < first_tries or self._last.get(size) == sent:
            way.note(seconds, first_tries)
        self._last[size] = sent

    def _guess(self, size: _Size) -> float:
        """Return what a batch takes here if rows cost the same in every batch."""
        each = (
            way.seconds * 2.0 ** (size[0] - rows + size[1] - steps)
            for (rows, steps), way in self._here.items()
        )
        return min(each, default=0.0)

    def _bound(self, size: _Size) -> float:
        """Return what a batch takes here at most, by all that is known of other sizes.

        Fewer rows take no longer than more, and twice as many no longer than twice as long.
        """
        bound = float("inf") if self._here else 0.0
        for (rows, steps), way in self._here.items():
            doublings = max(0, size[0] - rows) + max(0, size[1] - steps)
            bound = min(bound, way.seconds * float(1 << doublings))
        return bound
