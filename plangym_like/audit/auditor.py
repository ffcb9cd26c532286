"""The audit: step a sample of rows a second time, and compare every byte of the results.

No finite trial can prove that an environment is pure and exact, so the audit tests this while the
environment is used. The result of a row depends only on its inputs, so stepping it again has no
side effect.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.batch.arrays import Inputs
from plangym_like.batch.layout import Layout
from plangym_like.errors import ImpureEnvironmentError, InputError
from plangym_like.results import Stats
from plangym_like.states.rows import HEADER_NBYTES, Row
from plangym_like.support.arguments import as_count

MODES = ("raise", "warn", "off")
EVERY = 500
# The share of stepping time that audits may take at first. It falls once the environment has taken
# `_EARLY_STEPS` steps and been stepped for `_EARLY_SECONDS`, down to ``1 / every``, because most
# faults show up early (`benchmarks/first_second.py`, `benchmarks/audit_cost.py`).
_EARLY_SHARE, _EARLY_STEPS, _EARLY_SECONDS = 0.05, 2000, 1.0
# The most rows of one audit, and the most bytes of their results, unless `every` is 1. One row is
# audited whatever its size.
_MOST, _MOST_NBYTES = 64, 64 << 20
# Seconds that an audit, and each step of a followed row, take in addition to the environment's own
# steps. They are measured from the first audit on.
_AUDIT_SECONDS, _FOLLOWED_SECONDS = 5e-4, 1e-4
# After this many rows were stepped once more, one row is followed.
_ROWS = 8
# For how many steps a row is followed: the first time, and later.
_SHORT, _LONG = 4, 32
# The time of a step is the shortest in this many timed calls, since any of them may be interrupted.
_TIMED = 4
# Larger rows are not kept.
_KEPT_NBYTES = 1 << 20
# An audit that takes this many times what was expected, and more than this many seconds, has been
# interrupted.
_INTERRUPTED, _UNNOTICED = 5.0, 0.02

clock = time.perf_counter


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


class _Cost:
    """The seconds that an audit takes in addition to the environment's own steps.

    ``seconds`` are those of a whole audit or, for audits that follow a row, of each step.
    """

    def __init__(self, seconds: float) -> None:
        self._assumed = seconds
        # An audit may be interrupted, so the less of two counts.
        self._last: deque[float] = deque(maxlen=2)

    @property
    def seconds(self) -> float:
        return min(self._last, default=self._assumed)

    def measure(self, taken: float, own: float, units: float) -> float:
        """Record that an audit took `taken` seconds, of which its steps account for `own`.

        Return `taken`, but no more than an audit takes that is not interrupted.
        """
        usual = max(_UNNOTICED, _INTERRUPTED * (own + self.seconds * units))
        self._last.append(max(0.0, taken - own) / units)
        return min(taken, usual)


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
        In the long run, audits take one step and one second in `every`; 1 audits all rows, without
        a limit on time.
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
        # Steps until the next call that is timed: counted from now, and from the last such call.
        self._left = self._pause = 0.0 if layout.exact and mode != "off" else np.inf
        # Steps taken so far, and how many more steps audits may take, with all costs as steps.
        self._steps, self._credit = 0.0, 0.0
        self._times: deque[float] = deque(maxlen=_TIMED)
        self._until = -np.inf
        self._costs = {False: _Cost(_AUDIT_SECONDS), True: _Cost(_FOLLOWED_SECONDS)}
        self._audits, self._length = 0, _SHORT
        # Rows that were stepped once more since the last row was followed.
        self._rows = 0
        self._may_follow = True
        self._earlier: Earlier | None = None

    # The budget

    def is_due(self, steps: float) -> bool:
        """Count `steps` steps that are about to be taken; return whether to time them.

        If they are timed, `choose` rows before and call `earns` after them.
        """
        self._left -= steps
        return self._left <= 0

    def choose(self, count: int, size: float, nbytes: int) -> NDArray[np.intp]:
        """Randomly choose which of `count` rows to audit; return their sorted indices.

        A row takes `size` steps, and its audit needs `nbytes` bytes. If an audit would be too
        expensive, choose none.
        """
        if self._every == 1:
            return np.arange(count)
        if not self._times or self._earned() < self._price(size):
            return np.arange(0)
        wanted = 1
        if not self.follows:
            affordable = (self._earned() - self._as_steps(self._costs[False].seconds)) / size
            wanted = int(min(affordable, _MOST, _MOST_NBYTES // max(1, nbytes)))
        if wanted >= count:
            return np.arange(count)
        return np.sort(self._random.choice(count, max(1, wanted), replace=False))

    def earns(self, begun: float, steps: float, size: float) -> bool:
        """Record a call of `steps` steps that began at `begun`; return whether to audit it now.

        A row of the call takes `size` steps.
        """
        now = clock()
        # Calls may overlap; each moment counts once.
        self._times.append((now - max(begun, self._until)) / steps)
        self._until = now
        # A very long call pays for one audit at most.
        self._credit = min(self._earned(), max(_MOST, self._price(size)))
        self._steps += self._pause - self._left
        self._pause = self._left
        if self._credit >= self._price(size) or self._every == 1:
            return True
        self._wait(size)
        return False

    def spend(self, rows: int, steps: float, begun: float, size: float, *, followed: bool) -> None:
        """Record an audit that began at `begun`, compared `rows` rows and took `steps` steps."""
        self.stats.rows_audited += rows
        if self._left == np.inf:
            return
        self._until = clock()
        cost, each = self._costs[followed and self._every > 1], min(self._times)
        taken = cost.measure(
            self._until - begun, steps * each, max(1.0, steps) if followed else 1.0
        )
        self._credit -= max(steps, self._as_steps(taken))
        self._audits += 1
        self._rows += rows
        if followed:
            self._rows, self._length = 0, _LONG
        self._wait(size)

    def _earned(self) -> float:
        """Return how many steps audits may take now."""
        return self._credit + self._share() * (self._pause - self._left)

    def _share(self) -> float:
        """Return the share of stepping time that audits may take now."""
        seconds = self._steps * min(self._times)
        age = min(self._steps / _EARLY_STEPS, seconds / _EARLY_SECONDS)
        return max(1 / self._every, _EARLY_SHARE / max(1.0, age))

    def _price(self, size: float) -> float:
        """Return what the next audit costs, in steps."""
        more = self._as_steps(self._costs[self.follows].seconds)
        if self.follows:
            return 2 * self._length * size * (1 + more)
        # As much for rows as for the rest of the audit.
        return size + 2 * more

    def _as_steps(self, seconds: float) -> float:
        """Return how many steps take `seconds`; 0 while no step was timed."""
        each = min(self._times, default=0.0)
        return seconds / each if each > 0 else 0.0

    def _wait(self, size: float) -> None:
        """Decide when the next call is timed."""
        left = (self._price(size) - self._credit) / self._share()
        if not self._audits:  # first calls may be slower than later ones
            left = min(left, self._steps)
        self._left = self._pause = 0.0 if self._every == 1 else left

    # Which steps to take

    @property
    def follows(self) -> bool:
        """Whether the next audit follows one row, rather than stepping several once."""
        return self._may_follow and self._rows >= _ROWS

    @property
    def all_rows(self) -> bool:
        """Whether every audit steps all rows of its batch."""
        return self._every == 1

    def length(self, obs_nbytes: int) -> int:
        """Return for how many steps to follow a row whose observations have `obs_nbytes` bytes."""
        return max(2, min(self._length, _MOST_NBYTES // max(1, obs_nbytes)))

    def stop_following(self) -> None:
        """Follow no more rows, because an action has hung: a later step might hang as well."""
        self._may_follow = False

    def one_of(self, rows: NDArray[np.intp]) -> int:
        """Return one of `rows`, chosen at random."""
        return int(self._random.choice(rows))

    def earlier(self) -> Earlier | None:
        """Return the row of an earlier audit, or ``None`` if none is kept."""
        return self._earlier

    def keep(self, row: Earlier, nbytes: int) -> None:
        """Keep an audited row, to be stepped once more in a later audit."""
        if nbytes <= _KEPT_NBYTES:
            self._earlier = row

    def forget(self) -> None:
        """Drop the kept row; an edit of the environment may have changed its result."""
        self._earlier = None

    # Differences

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
