"""Outcomes of trials, so that environments of one kind are tried only once.

A trial (`plangym_like.snapshots.trial`) takes hundreds of steps. Its outcome is the same for every
environment that is made with the same arguments, so lanes share it, and so do the caller and its
isolated workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple


class TrialOutcome(NamedTuple):
    """What a trial has found out about environments of one kind.

    Attributes
    ----------
    kind : str
        The name of the simulator's class, or ``"auto"`` for the choice of this class.
    note : str
        Why states are only approximate; empty if they are exact.
    capacity : int
        Bytes of the codec in each row, if a trial determines this number; otherwise 0.
    way : str
        How states are saved; only for the kind ``"auto"``.
    """

    kind: str
    note: str = ""
    capacity: int = 0
    way: str = ""


class KnownTrials:
    """Outcomes of trials, with the arguments that the environments were made with."""

    def __init__(self) -> None:
        self.entries: list[tuple[TrialOutcome, Any]] = []

    def find(self, kind: str, arguments: Any) -> TrialOutcome | None:
        """Return the outcome for simulators of this kind and arguments, or ``None``."""
        for outcome, others in self.entries:
            if outcome.kind == kind and _are_equal(arguments, others):
                return outcome
        return None

    def note(self, outcome: TrialOutcome, arguments: Any) -> None:
        """Record an outcome."""
        self.entries.append((outcome, arguments))

    def outcomes(self) -> list[TrialOutcome]:
        """Return all outcomes."""
        return [outcome for outcome, _ in self.entries]


class TrialsElsewhere(KnownTrials):
    """The outcomes of trials that another process runs for one environment.

    Parameters
    ----------
    ask : callable
        Returns the outcomes. It is called when the first outcome is needed.
    """

    def __init__(self, ask: Callable[[], Sequence[TrialOutcome]]) -> None:
        super().__init__()
        self._ask: Callable[[], Sequence[TrialOutcome]] | None = ask

    def find(self, kind: str, arguments: Any) -> TrialOutcome | None:
        if self._ask is not None:
            self.entries = [(outcome, None) for outcome in self._ask()]
            self._ask = None
        return super().find(kind, None)


_known: ContextVar[KnownTrials | None] = ContextVar("known_trials", default=None)


def known_trials() -> KnownTrials:
    """Return the outcomes that are shared at present, or an empty list of outcomes."""
    return _known.get() or KnownTrials()


@contextlib.contextmanager
def trials_shared(known: KnownTrials | None = None) -> Iterator[KnownTrials]:
    """During the block, try only one environment of each kind.

    By default, blocks inside each other share one list of outcomes.
    """
    shared = known or _known.get() or KnownTrials()
    token = _known.set(shared)
    try:
        yield shared
    finally:
        _known.reset(token)


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays among the arguments have no truth value
        return False
