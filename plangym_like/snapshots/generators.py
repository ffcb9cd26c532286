"""Read the states of the global random generators."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np


@contextlib.contextmanager
def watched_generators() -> Iterator[Callable[[], str]]:
    """Watch the global random generators during the block, and restore them at its end.

    Yield a function that returns a sentence about the generators that were used so far. What
    another thread draws during the block, it draws again afterwards.
    """
    before = global_generators()
    saved = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield lambda: draws_note(moved_generators(before))
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])


def global_generators() -> dict[str, Any]:
    """Return the states of the global random generators by name, as values to compare by ``==``."""
    numpys: Any = np.random.get_state(legacy=False)
    inner = [v.tobytes() if isinstance(v, np.ndarray) else v for v in numpys["state"].values()]
    return {
        "the module random": random.getstate(),
        "numpy.random": (inner, numpys.get("has_gauss"), numpys.get("gauss")),
    }


def moved_generators(before: dict[str, Any]) -> list[str]:
    """Return the names of the global random generators whose states differ from `before`."""
    return [name for name, state in global_generators().items() if state != before[name]]


def draws_note(names: Iterable[str]) -> str:
    """Return a sentence saying that the global random generators `names` were used.

    Without names, the sentence is empty.
    """
    drawn = " and of ".join(names)
    return f"It draws from the global generator of {drawn}. " if drawn else ""


def stir_global_generators() -> None:
    """Draw from the global random generators, so that later draws differ from earlier ones."""
    random.random()
    np.random.random_sample()
