"""The audit: step a sample of rows a second time, and compare every byte of the results.

No finite trial can prove that an environment is pure and exact, so the audit tests this while the
environment is used. The result of a row depends only on its inputs, so stepping it again has no
side effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like import spaces
from plangym_like.batches import Inputs
from plangym_like.counts import as_count
from plangym_like.errors import ImpureEnvironmentError, InputError
from plangym_like.layout import Layout
from plangym_like.states import HEADER_NBYTES, Row
from plangym_like.stats import Stats

MODES = ("raise", "warn", "off")
EVERY = 500
# The first `_FIRST` rows of a new environment are all audited. After N rows, one row in N / _FADING
# is audited, and in the long run one in `every`, because most faults show up early.
_FIRST, _FADING = 256, 64
# The largest fractions of the time of batches that audits may take: in the long run, and before
# that (`benchmarks/audit_cost.py`). Where action logs are replayed, an audit may cost much more
# than its rows did in their batch.
_SHARE, _EARLY_SHARE = 0.002, 0.1
# `_EARLY_SHARE` applies once audits have taken more than this many seconds in total. A single audit
# that takes longer is cut short.
FREE_SECONDS = 0.5
# The most rows of one audit, unless `every` is 1 or some of the first `_FIRST` rows are left.
_MOST = 64
# The number of audited rows to keep. Each audit steps one of them again.
_KEPT = 8
# Audits number 1, 2, 4, 8, ... take many steps from some rows. After audit `_FOLLOWED_FROM`, every
# audit with a number divisible by `_FOLLOWED` does so too (`benchmarks/cold_sizes.py`).
_FOLLOWED, _FOLLOWED_FROM = 8, 64


class Difference(NamedTuple):
    """The first difference: the index of the row in its batch, the field, and both values."""

    row: int
    field: str
    values: str


class Earlier(NamedTuple):
    """An audited row: its index in its batch, its inputs as a batch of one, and its result."""

    row: int
    inputs: Inputs
    result: Any


class Auditor:
    """Chooses rows to audit, and reports rows whose results differ.

    Parameters
    ----------
    layout : Layout
        The layout of the environment's batches; a warning sets its ``exact`` to false.
    name : str
        The name of the environment in messages.
    state_difference : callable
        ``state_difference(one, other)`` returns the name and both values of a field that differs
        between two payloads; ``None`` if they hold the same state.
    on_found : callable
        Called with a message if a difference is found and `mode` is ``"warn"``.
    mode : {"raise", "warn", "off"}
        What happens when results differ.
    every : int
        In the long run, one row in `every` is audited; 1 audits all rows, without a limit on time.
    stats : Stats
        Its ``rows_audited`` counts the audited rows.
    wrappers : sequence of str
        Names of the wrappers around the environment, for messages.
    """

    def __init__(
        self,
        layout: Layout,
        name: str,
        state_difference: Callable[[Row, Row], tuple[str, str] | None],
        on_found: Callable[[str], None],
        *,
        mode: str,
        every: int,
        stats: Stats,
        wrappers: Sequence[str] = (),
    ) -> None:
        check_audit(mode, every)
        self._layout = layout
        self._name = name
        self._state_difference = state_difference
        self._on_found = on_found
        self._mode = mode
        self._every = every
        self.stats = stats
        self._wrappers = wrappers
        self._random = np.random.default_rng(0)
        self._first = _FIRST
        self._seen, self._gap = 0.0, 1.0  # one row in `_gap` is audited
        # Seconds of the shortest audit so far, separately for audits with `follows` false and true.
        self._seconds = {False: np.inf, True: np.inf}
        self._spent = 0.0
        # Rows until the next audit: counted from now, and from the end of the last audit.
        self._left = self._pause = 0.0 if layout.exact and mode != "off" else np.inf
        self._audits = 0
        self._earlier: list[Earlier] = []

    # Batches

    def is_due(self, count: int) -> bool:
        """Count `count` rows that are about to be stepped; return whether to audit some of them."""
        self._left -= count
        return self._left <= 0

    def choose(self, count: int) -> NDArray[np.intp]:
        """Randomly choose which of `count` rows to audit; return their sorted indices."""
        if self._every == 1:
            return np.arange(count)
        wanted = max(self._first, int(min(_MOST, -self._left // self._gap + 1)))
        rows = np.arange(count)
        if wanted < count:
            rows = np.sort(self._random.choice(count, wanted, replace=False))
        return rows

    def earlier(self) -> Earlier | None:
        """Return a randomly chosen row of an earlier audit, or ``None`` if none is kept."""
        return self._earlier[self._random.integers(len(self._earlier))] if self._earlier else None

    def keep(self, row: Earlier) -> None:
        """Keep an audited row, to be stepped once more in later audits."""
        if len(self._earlier) < _KEPT:
            self._earlier.append(row)
        else:
            self._earlier[self._random.integers(_KEPT)] = row

    def forget(self) -> None:
        """Drop the kept rows; an edit of the environment may have changed their results."""
        self._earlier.clear()

    @property
    def follows(self) -> bool:
        """Whether this audit also takes many steps from some rows."""
        number = self._audits + 1
        if number & (number - 1) == 0:
            return True
        return number % _FOLLOWED == 0 and number > _FOLLOWED_FROM

    def some(self, rows: NDArray[np.intp]) -> list[int]:
        """Return two of `rows`, chosen at random, or all if there are fewer."""
        count = min(len(rows), 2)
        return [int(row) for row in self._random.choice(rows, count, replace=False)]

    def is_out_of_time(self, seconds: float) -> bool:
        """Return whether an audit that has taken `seconds` should skip the rest of its rows."""
        return seconds > FREE_SECONDS and self._every > 1

    @property
    def continues(self) -> bool:
        """Whether this audit (every second one) also compares steps with and without a restore."""
        return self._audits % 2 == 0

    def note(self, rows: int, compared: int, each: float, seconds: float) -> None:
        """Record an audit for which `rows` rows were chosen; decide when the next one is due.

        The audit took `seconds`, and compared `compared` rows. In the batch itself, each row took
        `each` seconds.
        """
        self.stats.rows_audited += compared
        if self._left == np.inf:
            return
        followed = self.follows
        self._audits += 1
        self._seen += self._pause - self._left
        self._first = max(0, self._first - rows)
        cheapest = self._seconds[followed] = min(self._seconds[followed], seconds)
        self._spent += seconds
        self._gap = min(self._every, max(1.0, self._seen / _FADING))
        self._pause = 0.0 if self._first else self._gap
        if self._gap == self._every > 1:
            self._pause = max(self._gap, cheapest / (_SHARE * max(each, 1e-9)))
        elif self._spent > FREE_SECONDS and self._every > 1:
            self._pause = max(self._pause, seconds / (_EARLY_SHARE * max(each, 1e-9)))
        self._left = self._pause

    def state_difference(self, one: Row, other: Row) -> tuple[str, str] | None:
        """Return a field that differs between two rows, and both values.

        Return ``None`` if the rows hold the same state, even if their bytes differ.
        """
        if np.array_equal(one, other):
            return None
        found = self._state_difference(one[HEADER_NBYTES:], other[HEADER_NBYTES:])
        return None if found is None else (f"next state {found[0]}", found[1])

    def as_row(self, obs: Any) -> Any:
        """Return a single observation in the dtypes that it has in a batch."""
        return spaces.as_row(self._layout.observation_space, obs)

    def report(self, found: Difference, how: str, cause: str) -> None:
        """Raise an error for a difference or, in mode ``"warn"``, warn and stop auditing.

        `how` says how the row was stepped again, and `cause` is the likely cause; "" means that it
        is unknown. After a warning, later differences are ignored.

        Raises
        ------
        ImpureEnvironmentError
            The mode is ``"raise"``.
        """
        if self._left == np.inf:
            return
        message = (
            f"row {found.row} of {self._name} {how}, and {found.field} differed: {found.values}. "
            f"{cause or self._likely_cause()} Results of this environment cannot be relied on; "
            "audit='warn' turns this error into a warning"
        )
        if self._mode == "raise":
            raise ImpureEnvironmentError(message, *found)
        self._left = np.inf
        self._layout.exact = False
        self._on_found(message)

    def _likely_cause(self) -> str:
        outside = "state outside the environment (a class, a module, a file, the clock)"
        generator = "a random generator that is not saved in the state"
        if not self._wrappers:
            return f"Likely causes: {outside}, or {generator}."
        names = " or ".join(self._wrappers)
        return (
            f"Likely causes: {outside}, {generator}, or a wrapper, such as {names}, with a memory "
            "that is not saved."
        )


def check_audit(mode: Any, every: Any) -> None:
    """Raise `InputError` if `mode` or `every` is not a valid option of an audit."""
    if mode not in MODES:
        raise InputError(f"audit must be one of {', '.join(map(repr, MODES))}, got {mode!r}")
    as_count("audit_every", every)
