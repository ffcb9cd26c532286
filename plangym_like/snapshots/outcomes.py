"""Record the outcomes of steps, and compare them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from plangym_like.batch.ownership import owned
from plangym_like.errors import EnvApiError, SnapshotError, StateError
from plangym_like.snapshots.differences import difference, without_clock

FIELDS = ("observation", "reward", "terminated", "truncated", "info")

Outcome = tuple[Any, ...]


def outcome_of(step: Callable[[Any], Any], action: Any, *, error_text: bool = True) -> Outcome:
    """Call ``step(action)``; return copies of the observation, reward, flags and info.

    If the call raises an exception, return a tuple with one string that describes it, because an
    environment may reject actions that are illegal in the current state. ``error_text=False``
    leaves out the message of the exception, which may contain a process id or a time.

    Raises
    ------
    EnvApiError
        ``step`` did not return five values.
    SnapshotError, StateError
        A state could not be saved or restored.
    """
    try:
        outcome: Outcome = tuple(step(copy.deepcopy(action)))[:5]
    except (EnvApiError, SnapshotError, StateError):
        raise
    except Exception as error:
        name = type(error).__name__
        named = not error_text or " at 0x" in str(error)
        return (name if named else f"{name}: {error}",)
    return owned((*outcome[:4], without_clock(outcome[4])))  # type: ignore[no-any-return]


def ends(outcome: Outcome) -> bool:
    """Return whether the step ended the episode or raised an exception."""
    return len(outcome) == 1 or bool(outcome[2] or outcome[3])


def compare_outcomes(one: Outcome, other: Outcome) -> tuple[str, str] | None:
    """Return where two outcomes first differ and what they hold there; ``None`` if equal."""
    if len(one) == 1 or len(other) == 1:
        before, after = (each[0] if len(each) == 1 else "nothing" for each in (one, other))
        return difference(before, after, "error")
    for name, left, right in zip(FIELDS, one, other, strict=True):
        if found := difference(left, right, name):
            return found
    return None
