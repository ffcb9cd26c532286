"""`CostModel`: decides from the time per row whether to send a batch to workers."""

from __future__ import annotations

# Seconds to send a batch, wake a worker and read its report: the overhead of batches of 8 and 16
# rows in `benchmarks/never_slower.py`.
MESSAGE_SECONDS = 3e-4
# After this many batches were sent, the calculated time is multiplied by the smallest ratio of
# measured to calculated time: other programs that are starting may have raised the other ratios
# (`benchmarks/cold_sizes.py`).
_FIRST = 8
# From then on, a moving average of the ratio over about `_MEMORY` batches is used. Other programs
# may disturb a batch, so each ratio is capped at `_SPOILT` times the average
# (`benchmarks/never_slower.py`).
_MEMORY, _SPOILT = 4, 1.25
# After this many batches, the way that seems slower (sending, or stepping here) is tried again. The
# number is doubled after each trial, up to the second number. A trial takes two batches, because
# idle workers are asleep when the first is sent (`benchmarks/never_slower.py`).
_TRY_AGAIN, _TRY_AGAIN_LATER = 64, 1024
# Rows are stepped in portions that take `_COARSE_SECONDS`, and less toward the end of a batch, down
# to `_FINE_SECONDS`. Between portions, rows may be moved to other processes
# (`benchmarks/never_slower.py`, 16 to 256 rows).
_FINE_SECONDS, _COARSE_SECONDS = 4e-4, 12e-3
# For each coarse portion that is stepped, the shortest time per step is raised by this fraction,
# because steps may become slower.
_FADE = 0.05


def portion(remaining: int, seconds_per_row: float) -> int:
    """Return how many rows to step before checking other processes; fewer near a batch's end.

    >>> portion(1000, 1e-4), portion(30, 1e-4), portion(1000, 0.0)
    (120, 22, 1)
    """
    if seconds_per_row <= 0.0:
        return 1
    fine = max(1, int(_FINE_SECONDS / seconds_per_row))
    coarse = max(1, int(_COARSE_SECONDS / seconds_per_row))
    return min(remaining, max(fine, min(coarse, remaining * 3 // 4)))


def faded_minimum(best: float, seconds: float, steps: float) -> float:
    """Return the shortest time per step, after `steps` steps have taken `seconds`.

    `best` is the shortest time so far, or 0 if it is not known. It fades: it is first increased a
    little, so that older measurements count less.

    >>> faded_minimum(0.0, 0.5, 4), round(faded_minimum(0.001, 0.012, 10), 5)
    (0.125, 0.00105)
    """
    each = seconds / steps
    fade = 1.0 + _FADE * seconds / _COARSE_SECONDS
    return min(each, best * fade) if best else each


class _Trials:
    """Schedules trials of the alternative that seems slower, at growing intervals."""

    def __init__(self) -> None:
        self._last = self._next = 0
        self._wait = _TRY_AGAIN

    def due(self, batch: int) -> bool:
        """Return whether to try the alternative with batch number `batch`."""
        if not self._next or batch - self._last > _TRY_AGAIN:
            self._next, self._wait = batch + _TRY_AGAIN, _TRY_AGAIN
        self._last = batch
        if batch > self._next:
            self._wait = min(2 * self._wait, _TRY_AGAIN_LATER)
            self._next = batch + self._wait
            return True
        return batch == self._next


class _Kind:
    """Measurements of batches whose rows take about the same number of steps.

    All counts are of single steps.

    Parameters
    ----------
    message : float
        Seconds that sending a batch costs.

    Attributes
    ----------
    shared : float
        The shortest time per step, in seconds, in this process while workers step other rows; 0 if
        not known.
    quiet : float
        The time per step while workers are idle, as a fraction of `shared`.
    strain : float
        The measured time of batches that were sent, as a multiple of the calculated time.
    """

    def __init__(self, message: float) -> None:
        self._message = message
        self.shared, self.quiet, self.strain = 0.0, 1.0, 1.0
        self._sent_last, self._batch = False, 0
        self._first: list[float] = []
        self._try_here, self._try_sending = _Trials(), _Trials()

    def here(self, steps: float) -> float:
        """Return the estimated seconds for `steps` steps in this process while workers are idle."""
        return steps * self.shared * self.quiet

    def sent(self, steps: float, workers: int) -> float:
        """Return the estimated seconds for `steps` steps in this process and `workers` workers."""
        return self._message + steps * self.shared / (workers + 1)

    def choose(self, steps: float, workers: int, *, tries: bool) -> bool:
        """Return True to send a batch of `steps` steps to workers, and False to step it here.

        If `tries` is true, the batch may be a trial of the way that seems slower.
        """
        here, sent = self.here(steps), self.sent(steps, workers)
        if sent >= here:
            return False
        seems_faster = self.strain * sent < here
        if not tries:
            return seems_faster
        self._batch += 1
        if seems_faster:
            return not self._try_here.due(self._batch)
        return self._try_sending.due(self._batch)

    def note_sent(self, seconds: float, steps: float, workers: int) -> None:
        """Record the time of a batch that was sent."""
        if self._sent_last:
            strain = seconds / self.sent(steps, workers)
            if len(self._first) < _FIRST:
                self._first.append(strain)
                self.strain = min(self._first) if len(self._first) == _FIRST else 1.0
            else:
                self.strain += (min(strain, _SPOILT * self.strain) - self.strain) / _MEMORY
            # A larger value makes no difference, and would take long to decrease.
            self.strain = min(self.strain, _SPOILT * self.here(steps) / self.sent(steps, workers))
        self._sent_last = True

    def note_here(self, seconds: float, steps: float) -> None:
        """Record the time of a batch that was stepped here."""
        if self._sent_last and self.here(steps) > self._message:
            self.quiet = min(1.0, seconds / steps / self.shared)
            self._sent_last = False
        else:
            self.shared = faded_minimum(self.shared, seconds / self.quiet, steps)


class CostModel:
    """Decides whether to send a batch to workers, from the time that its rows take here.

    The model is: in this process, the time of a batch is proportional to the number of its single
    steps. If the batch is sent, that time is divided by the number of processes, and the time for
    messages is added. Measurements of batches correct both calculations. Rows of 1 step, of 2 or 3,
    of 4 to 7, and so on are measured separately, because each row also has a fixed cost.

    Parameters
    ----------
    message_seconds : float
        The cost of sending a batch, in addition to its rows.

    Examples
    --------
    >>> costs = CostModel()
    >>> costs.worth_sending(256, 1, workers=1)
    True
    >>> costs.note_here(10, 1, seconds=1e-3)
    >>> costs.worth_sending(256, 1, workers=1), costs.worth_sending(2, 1, workers=1)
    (True, False)
    >>> costs.cheap(1, 1), costs.cheap(256, 1)
    (True, False)
    """

    def __init__(self, message_seconds: float = MESSAGE_SECONDS) -> None:
        self._message = message_seconds
        self._kinds: dict[int, _Kind] = {}

    def seconds_per_row(self, steps: float) -> float:
        """Return the shortest time of a row with `steps` steps in this process, in seconds.

        0 means that it is not known.
        """
        kind = self._kinds.get(_key(steps))
        return 0.0 if kind is None else kind.shared * steps

    def worth_sending(self, count: int, steps: float, *, workers: int, tries: bool = True) -> bool:
        """Return whether to send `count` rows, of `steps` steps on average, to `workers` workers.

        If no time is known yet, the result is true: the rows are then timed while the batch is
        stepped. If `tries` is false, the batch is not used as a trial of the way that seems slower;
        this is for batches whose time is not recorded, such as audits.
        """
        kind = self._kinds.get(_key(steps))
        return kind is None or kind.choose(count * steps, workers, tries=tries)

    def cheap(self, count: int, steps: float) -> bool:
        """Return whether `count` rows are known to take less time here than a message takes."""
        kind = self._kinds.get(_key(steps))
        return kind is not None and 0.0 < count * steps * kind.shared < self._message

    def least(self, steps: float) -> int:
        """Return how many rows take about as long here as sending a message, at least 1."""
        return max(1, int(self._message / (self.seconds_per_row(steps) or 1.0)))

    def note_portion(self, taken: float, steps: float, *, seconds: float) -> None:
        """Record how long this process took for its own share of a batch that was sent.

        The share consists of `taken` single steps. A row of the batch takes `steps` single steps
        on average.
        """
        kind = self._kind(steps)
        kind.shared = faded_minimum(kind.shared, seconds, taken)

    def note_here(self, count: int, steps: float, *, seconds: float) -> None:
        """Record the time of a batch that was stepped here."""
        self._kind(steps).note_here(seconds, count * steps)

    def note_sent(self, count: int, steps: float, *, seconds: float, workers: int) -> None:
        """Record the time of a batch that was sent to `workers` workers, all of them ready."""
        kind = self._kind(steps)
        if kind.shared:
            kind.note_sent(seconds, count * steps, workers)

    def _kind(self, steps: float) -> _Kind:
        kind = self._kinds.get(_key(steps))
        if kind is None:
            kind = self._kinds[_key(steps)] = _Kind(self._message)
        return kind


def _key(steps: float) -> int:
    """Return a number that is the same for all rows that take about `steps` steps."""
    return int(steps).bit_length()
