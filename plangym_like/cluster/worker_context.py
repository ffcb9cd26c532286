"""The import path and thread settings that actors of a cluster copy from the program."""

from __future__ import annotations

import os
import sys
from typing import Any

from plangym_like.processes.start_checks import serve_another_process


def worker_context() -> dict[str, Any]:
    """Return this program's import path and thread settings for `enter_worker_context`.

    Actors can import the same modules as this process if the folders exist on their machine.
    """
    return {
        "path": [entry for entry in sys.path if type(entry) is str and entry],
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def enter_worker_context(*, path: list[str], threads: str | None) -> None:
    """Give this process the program's import path and thread settings."""
    serve_another_process()
    sys.path += [entry for entry in path if entry not in sys.path and os.path.exists(entry)]
    # Ray sets the number of threads to the actor's cores, but here each worker has one core.
    if threads is None:
        os.environ.pop("OMP_NUM_THREADS", None)
    else:
        os.environ["OMP_NUM_THREADS"] = threads
