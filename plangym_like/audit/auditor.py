"""The audit: step a sample of rows a second time, and compare every byte of the results.

No finite trial can prove that an environment is pure and exact, so the audit tests this while the
environment is used. The result of a row depends only on its inputs, so stepping it again has no
side effect.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Executor
from plangym_like.batch.row_stepper import RowStepper
from plangym_like.errors import ImpureEnvironmentError
from plangym_like.states.rows import HEADER_NBYTES, Row

MODES = ("raise", "warn", "off")
EVERY = 500
# The share of stepping time that audits may take at first. It falls once the environment has taken
# `_EARLY_STEPS` steps and been stepped for `_EARLY_SECONDS`, down to ``1 / every``, because most
# faults show up early.
_EARLY_SHARE, _EARLY_STEPS, _EARLY_SECONDS = 0.05, 2000, 1.0
# The length of the first audit, and of the longest.
_SHORT, _LONG = 2, 16
# The most bytes of the results of an audit, unless `every` is 1.
_MOST_NBYTES = 64 << 20
# Seconds that a step of the first audit is expected to take. A step of a later one is expected to
# take as long as in the audit before; one that takes `_INTERRUPTED` times as long was interrupted.
_FIRST_SECONDS, _INTERRUPTED = 2e-4, 5

clock = time.perf_counter


class Auditor:
    """Decides which calls to audit, and which of their rows, and reports rows that differ.

    An audit of length L steps up to L rows again, and follows one of them for L steps, with and
    without restores. Each audit is longer by 1 than the one before, up to a limit. It costs as many
    steps as it takes or, if that is more, as could be taken in the same time. Every step earns a
    share of a step, and a call is audited if the expected cost has been earned since the last
    audit. If an audit costs more than expected, the next one has to wait longer.

    Parameters
    ----------
    stepper : RowStepper
        Steps rows in this process.
    executor : Executor
        Steps the batches.
    mode : {"raise", "warn", "off"}
        What happens when results differ.
    every : int
        In the long run, audits take one step and one second in `every`; 1 audits all rows, without
        a limit on time.

    Attributes
    ----------
    layout : Layout
        The layout of the environment's batches; a warning sets its ``exact`` to false.
    alone : Executor
        Steps rows one by one: in this process, unless batches are isolated.
    off : bool
        Whether no call is audited, now and later.
    may_follow : bool
        Whether audits follow rows. They stop when an action has hung, because a later step might
        hang as well.
    random : numpy.random.Generator
        The generator that chooses rows.
    """

    def __init__(self, stepper: RowStepper, executor: Executor, *, mode: str, every: int) -> None:
        self._stepper = stepper
        self.layout = stepper.layout
        self.alone: Executor = executor if executor.isolated else stepper
        self.stats = executor.stats
        self._mode, self._every = mode, every
        self.may_follow = True
        self.random = np.random.default_rng(0)
        self.off = mode == "off" or not self.layout.exact
        # The steps taken so far, those that pay for the audits so far, and those at which the next
        # call is due.
        self._steps = self._paid = self._due = 0.0
        # Seconds of a step that the environment takes, and of one in an audit.
        self._step_seconds, self._audit_seconds = np.inf, _FIRST_SECONDS
        self._length = _SHORT

    # The budget

    def is_due(self, steps: float) -> bool:
        """Count `steps` steps that are about to be taken; return whether to prepare an audit."""
        self._steps += steps
        return self._steps >= self._due

    @property
    def all_rows(self) -> bool:
        """Whether every audit steps all rows of its batch, and every batch is audited."""
        return self._every == 1

    def length(self, nbytes: int) -> int:
        """Return the length of the next audit; the results of a step need `nbytes` bytes."""
        return max(2, min(self._length, _MOST_NBYTES // max(1, nbytes)))

    def choose(self, count: int, length: int) -> NDArray[np.intp]:
        """Choose rows of a batch of `count` rows for an audit; return their sorted indices.

        The rows are evenly spread, beginning with a random one.
        """
        if self.all_rows:
            return np.arange(count)
        wanted = min(count, length)
        first = self.random.integers(count)
        return np.sort((first + np.arange(wanted) * (count // wanted)) % count)

    def affords(self, needed: float, steps: float, seconds: float) -> bool:
        """Return whether to audit a call of `steps` steps that took `seconds`.

        The audit needs `needed` steps. If it would be too expensive, a later call is due.
        """
        # The first calls, and those that are interrupted, are slower than most.
        self._step_seconds = max(1e-9, min(seconds / steps, 1.25 * self._step_seconds))
        self._due = self._paid + self._price(needed) / self._share()
        return self._steps >= self._due

    def spend(self, rows: int, needed: float, seconds: float) -> None:
        """Record an audit that compared `rows` rows, and took `needed` steps and `seconds`."""
        self.stats.rows_audited += rows
        expected = max(self._audit_seconds, self._step_seconds)
        self._audit_seconds = min(seconds / needed, _INTERRUPTED * expected)
        price = self._price(needed) / self._share()
        self._paid = self._due = max(self._steps, self._paid + price)
        self._length = min(self._length + 1, _LONG)

    def _price(self, steps: float) -> float:
        """Return what an audit costs that takes `steps` steps."""
        return steps * max(1.0, self._audit_seconds / self._step_seconds)

    def _share(self) -> float:
        """Return the share of stepping time that audits may take now."""
        if self.all_rows:
            return np.inf
        seconds = self._steps * self._step_seconds
        age = min(self._steps / _EARLY_STEPS, seconds / _EARLY_SECONDS)
        return max(1 / self._every, _EARLY_SHARE / max(1.0, age))

    # Differences

    def state_difference(self, one: Row, other: Row) -> tuple[str, str] | None:
        """Return a field that differs between two rows, and both values.

        Return ``None`` if the rows hold the same state, even if their bytes differ.
        """
        if np.array_equal(one, other):
            return None
        found = self.alone.state_difference(one[HEADER_NBYTES:], other[HEADER_NBYTES:])
        return None if found is None else (f"next state {found[0]}", found[1])

    def report(self, row: int, field: str, values: str, how: str, cause: str) -> None:
        """Raise an error for a difference or, in mode ``"warn"``, warn and stop auditing.

        `row` is the index of the row in its batch, `how` says how the row was stepped again, and
        `cause` is the likely cause; "" means that it is unknown. After a warning, later differences
        are ignored.

        Raises
        ------
        ImpureEnvironmentError
            The mode is ``"raise"``.
        """
        if self.off:
            return
        message = (
            f"row {row} of {self._stepper.name} {how}, and {field} differed: {values}. "
            f"{cause or self._likely_cause()} Results of this environment cannot be relied on; "
            "audit='warn' turns this error into a warning"
        )
        if self._mode == "raise":
            raise ImpureEnvironmentError(message, row, field, values)
        self.off = True
        self.layout.exact = False
        self._stepper.declare_approximate(message)

    def _likely_cause(self) -> str:
        outside = "state outside the environment (a class, a module, a file, the clock)"
        generator = "a random generator that is not saved in the state"
        names = " or ".join(self._stepper.simulator.suspect_wrappers())
        if not names:
            return f"Likely causes: {outside}, or {generator}."
        return (
            f"Likely causes: {outside}, {generator}, or a wrapper, such as {names}, with a memory "
            "that is not saved."
        )
