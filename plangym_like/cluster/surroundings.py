"""What actors of a cluster have to have in common with the program that they work for."""

from __future__ import annotations

import os
import sys
from typing import Any


def surroundings() -> dict[str, Any]:
    """Return what `settle_in` takes: this program's surroundings, as far as others can share them.

    Modules that this process would find are found, as far as their folders exist on that machine.
    """
    return {
        "path": [entry for entry in sys.path if type(entry) is str and entry],
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def settle_in(*, path: list[str], threads: str | None) -> None:
    """Make this process see the world as the program does."""
    sys.path += [entry for entry in path if entry not in sys.path and os.path.exists(entry)]
    # Ray allows each actor as many threads as it has cores; here each lane has one core.
    if threads is None:
        os.environ.pop("OMP_NUM_THREADS", None)
    else:
        os.environ["OMP_NUM_THREADS"] = threads
