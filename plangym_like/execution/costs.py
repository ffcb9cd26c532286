"""Whether a batch is worth sending: what batches of its size have cost, here and on the lanes."""

from __future__ import annotations

# Waking a process through a socket and hearing from it costs some 100 to 200 us. What is done
# here in a small multiple of that is never worth sending.
_CHEAP_SECONDS, _MESSAGE_SECONDS = 4e-4, 2e-4
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
# What is lost by trying the slower way again, and by changing over, is at most one part in so many
# of all: the first of the two, and fewer and fewer down to the second while it stays the slower
# one. The first batch after a change says little: workers that were not needed are asleep.
_RETRY, _RETRY_LATER = 64, 256
# What was lost while other programs had the cores is not to be made up for long after: so many
# batches' time at most.
_OWED = 4.0

_Size = tuple[int, int]


class _Way:
    """What batches of one size take, going one way: seconds on average, of so many tries."""

    __slots__ = ("first_tries", "seconds", "tries")

    def __init__(self, first_tries: int) -> None:
        self.seconds = float("inf")
        self.first_tries, self.tries = first_tries, 0

    @property
    def known(self) -> bool:
        return self.tries >= self.first_tries

    def note(self, seconds: float) -> None:
        self.tries += 1
        if self.tries <= self.first_tries:
            self.seconds = min(self.seconds, seconds)
        else:
            self.seconds += (min(seconds, _SPOILT * self.seconds) - self.seconds) / _MEMORY


class _Ways:
    """Both ways for batches of one size; the last one taken, so often in a row; seconds lost."""

    __slots__ = ("best", "here", "lost", "retry", "row", "sent", "took")

    def __init__(self) -> None:
        self.here, self.sent = _Way(_TRIES_HERE), _Way(_TRIES_SENT)
        self.took, self.row, self.lost = self.here, 1, 0.0
        self.best, self.retry = self.here, _RETRY

    def choose(self) -> _Way:
        if self.row == 1:
            return self.took
        try_slower = self.lost <= 0.0
        return self.sent if (self.best is self.sent) != try_slower else self.here

    def note(self, way: _Way, seconds: float) -> None:
        changed = way is not self.took
        self.took, self.row = way, 1 if changed else self.row + 1
        if not (changed and way.known):
            way.note(seconds)
        if self.sent.tries:
            best = self.sent if self.sent.seconds < self.here.seconds else self.here
            if best is not self.best:
                self.best, self.retry = best, _RETRY
            elif way is not best and not changed and way.tries > way.first_tries:
                self.retry = min(2 * self.retry, _RETRY_LATER)
            usual = way.seconds <= best.seconds and not changed
            self.lost += -seconds / self.retry if usual else seconds - best.seconds
            self.lost = min(max(self.lost, 0.0), _OWED * best.seconds)


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
    >>> costs.note(1, 1, seconds=2e-5, sent=False)
    >>> costs.cheap(2, 1), costs.cheap(256, 1)
    (True, False)
    """

    def __init__(self) -> None:
        self._ways: dict[_Size, _Ways] = {}

    def send(self, count: int, steps: int) -> bool:
        """Return whether to send a batch of `count` rows of `steps` steps each."""
        size = (count.bit_length(), steps.bit_length())
        ways = self._ways.get(size)
        if ways is None or not ways.here.known:
            if self._bound(size) < _CHEAP_SECONDS or self._guess(size) < _LONG_SECONDS:
                return False
        elif ways.here.seconds < _CHEAP_SECONDS:
            return False
        if ways is None or not ways.sent.known:
            return True
        return ways.choose() is ways.sent

    def cheap(self, count: int, steps: int) -> bool:
        """Return whether such a batch is known to take less here than a message to a process."""
        return 0.0 < self._bound((count.bit_length(), steps.bit_length())) < _MESSAGE_SECONDS

    def note(self, count: int, steps: int, *, seconds: float, sent: bool) -> None:
        """Remember what a batch took."""
        size = (count.bit_length(), steps.bit_length())
        ways = self._ways.get(size)
        if ways is None:
            ways = self._ways[size] = _Ways()
        elif seconds < _CHEAP_SECONDS and ways.here.seconds < _CHEAP_SECONDS and ways.here.known:
            return  # it stays here, whatever it took; to add it up would take 2 % as long
        ways.note(ways.sent if sent else ways.here, seconds)

    def _guess(self, size: _Size) -> float:
        """Return what a batch takes here if rows cost the same in every batch."""
        each = (
            ways.here.seconds * 2.0 ** (size[0] - rows + size[1] - steps)
            for (rows, steps), ways in self._ways.items()
        )
        return min(each, default=0.0)

    def _bound(self, size: _Size) -> float:
        """Return what a batch takes here at most, by all that is known of other sizes.

        Fewer rows take no longer than more, and twice as many no longer than twice as long.
        """
        bound = float("inf") if self._ways else 0.0
        for (rows, steps), ways in self._ways.items():
            doublings = max(0, size[0] - rows) + max(0, size[1] - steps)
            bound = min(bound, ways.here.seconds * float(1 << doublings))
        return bound
