"""`BatchCosts`: the time that one process takes for the rows of one batch."""

from __future__ import annotations

import numpy as np

from plangym_like.batches import Inputs, single_steps, steps_of
from plangym_like.execution.costs import CostModel, portion


class BatchCosts:
    """The time that this process takes for its rows of a batch that is sent to workers.

    `CostModel` uses the shortest time per row that it was given. A few rows may be cheap because
    their episodes end early. To keep them from making all rows look cheap, the total time is
    recorded once, at the end of the batch. While no time per row is known yet, times are recorded
    during the batch as well.

    Parameters
    ----------
    costs : CostModel
        The times measured in earlier batches.
    inputs : Inputs
        The inputs of the batch.

    Attributes
    ----------
    steps : float
        How many single steps a row takes on average.

    Examples
    --------
    >>> inputs = Inputs(2, 0, np.zeros(2), np.zeros((2, 40), np.uint8), 1, None)
    >>> costs = BatchCosts(CostModel(), inputs)
    >>> costs.note_portion(1, 2, seconds=0.5)
    >>> costs.note_portion(0, 1, seconds=0.1)
    >>> costs.note_end()
    >>> round(costs.seconds_per_row, 3)
    0.3
    """

    def __init__(self, costs: CostModel, inputs: Inputs) -> None:
        self._costs, self._inputs, self.steps = costs, inputs, steps_of(inputs)
        self._taken = self._seconds = 0.0

    @property
    def seconds_per_row(self) -> float:
        """The shortest time of an average row in this process, in seconds; 0 if not known."""
        return self._costs.seconds_per_row(self.steps)

    @property
    def least(self) -> int:
        """The number of rows that take about as long in this process as sending a message."""
        return self._costs.least(self.steps)

    def portion(self, start: int, stop: int, *, last: bool = False) -> int:
        """Return how many of the rows ``start:stop`` to step before checking other processes.

        The first rows are stepped next, or the last ones if `last` is true.
        """
        rows, dt = portion(stop - start, self.seconds_per_row), self._inputs.dt
        if isinstance(dt, int):
            return rows
        # The next rows may take much longer than others, for example if rows are sorted by `dt`.
        total = np.cumsum(dt[start:stop][::-1] if last else dt[start:stop], dtype=np.float64)
        most = rows * self.steps / max(1, self._inputs.horizon)
        return max(1, int(np.searchsorted(total, most, side="right")))

    def note_portion(self, start: int, stop: int, *, seconds: float) -> None:
        """Add the time that the rows ``start:stop`` took here."""
        self._taken += single_steps(self._inputs, start, stop)
        self._seconds += seconds
        if not self.seconds_per_row:
            self.note_end()

    def note_end(self) -> None:
        """Record the time of all rows that were stepped here."""
        if self._taken:
            self._costs.note_portion(self._taken, self.steps, seconds=self._seconds)
