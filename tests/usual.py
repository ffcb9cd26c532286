"""Which cases of a test ``make test`` tries; ``pytest -m full`` tries the others.

Workers import modules of tests, so this one imports little.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_of(ways: Iterable[Any], usual: int = 1) -> list[Any]:
    """Return ways to do the same as parameters of a test: `usual` of them, and the rest if full."""
    made = list(ways)
    return [*made[:usual], *map(_full, made[usual:])]


def third_of(names: Iterable[Any]) -> list[Any]:
    """Return names as parameters of a test: every third of them, and the rest if full."""
    return [_full(name) if number % 3 else name for number, name in enumerate(names)]


def _full(case: Any) -> Any:
    """Return a case of a test as a parameter that ``pytest -m full`` alone tries."""
    if hasattr(case, "marks"):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.full], id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)
