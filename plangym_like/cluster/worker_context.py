"""What actors of a cluster have in common with the program that they work for."""

from __future__ import annotations

import os
import sys
from typing import Any


def worker_context() -> dict[str, Any]:
    """Return this program's import path and thread settings, as `enter_worker_context` takes them.

    Actors find the modules that this process finds, if their folders exist on the actor's machine.
    """
    return {
        "path": [entry for entry in sys.path if type(entry) is str and entry],
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def enter_worker_context(*, path: list[str], threads: str | None) -> None:
    """Give this process the program's import path and thread settings."""
    sys.path += [entry for entry in path if entry not in sys.path and os.path.exists(entry)]
    # Ray allows each actor as many threads as it has cores; here each worker has one core.
    if threads is None:
        os.environ.pop("OMP_NUM_THREADS", None)
    else:
        os.environ["OMP_NUM_THREADS"] = threads
