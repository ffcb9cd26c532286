"""`CostModel`: decides from the time per row whether to send a batch to workers."""

from __future__ import annotations

# Seconds to send a batch, wake a worker and read its report: the overhead of batches of 4 to 16
# rows in `benchmarks/never_slower.py`.
MESSAGE_SECONDS = 5e-4
# For so many seconds of steps, the shortest time per step is raised by this fraction, because steps
# may become slower.
_FADE_SECONDS, _FADE = 12e-3, 0.05


class CostModel:
    """Decides whether a batch is worth sending to workers, from the time that its rows take.

    The model: in this process, the time of a batch is proportional to the number of its single
    steps. If the batch is sent, that time is divided by the number of processes, and the time for
    messages is added. Rows of 1 step, of 2 or 3, of 4 to 7, and so on are measured separately,
    because each row also has a fixed cost.

    Parameters
    ----------
    message_seconds : float
        The cost of sending a batch, in addition to its rows.

    Examples
    --------
    >>> costs = CostModel()
    >>> costs.worth_sending(256, 1, workers=1)
    True
    >>> costs.note(10, 1, seconds=1e-3)
    >>> costs.worth_sending(256, 1, workers=1), costs.worth_sending(2, 1, workers=1)
    (True, False)
    """

    def __init__(self, message_seconds: float = MESSAGE_SECONDS) -> None:
        self._message = message_seconds
        # The shortest time per step, in seconds, of rows with about so many steps; see `_key`.
        self._seconds: dict[int, float] = {}

    def seconds_per_row(self, steps: float) -> float:
        """Return the seconds that a row with `steps` steps takes; 0 if this is not known."""
        return self._seconds.get(_key(steps), 0.0) * steps

    def worth_sending(self, count: int, steps: float, *, workers: int) -> bool:
        """Return whether to send `count` rows, of `steps` steps on average, to `workers` workers.

        If no time is known yet, the result is true: the rows are then timed while the batch is
        stepped.
        """
        here = count * self.seconds_per_row(steps)
        return not here or self._message + here / (workers + 1) < here

    def cheap(self, count: int, steps: float) -> bool:
        """Return whether `count` rows are known to take less time here than a message takes."""
        return 0.0 < count * self.seconds_per_row(steps) < self._message

    def note(self, taken: float, steps: float, *, seconds: float) -> None:
        """Record how long a process took for `taken` single steps, of rows with `steps` steps."""
        key = _key(steps)
        self._seconds[key] = faded_minimum(self._seconds.get(key, 0.0), seconds, taken)


def faded_minimum(best: float, seconds: float, steps: float) -> float:
    """Return the shortest time per step, after `steps` steps have taken `seconds`.

    `best` is the shortest time so far, or 0 if it is not known. The shortest time counts, because
    other programs may disturb a process. It fades: it is first increased a little, so that older
    measurements count less.

    >>> faded_minimum(0.0, 0.5, 4), round(faded_minimum(0.001, 0.012, 10), 5)
    (0.125, 0.00105)
    """
    each = seconds / steps
    return min(each, best * (1.0 + _FADE * seconds / _FADE_SECONDS)) if best else each


def _key(steps: float) -> int:
    """Return a number that is the same for all rows that take about `steps` steps."""
    return int(steps).bit_length()
