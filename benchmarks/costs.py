"""What workers cost: the seconds until the first batch, and their private memory."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from interleave import ContenderDied, Process
from throughput import CART_POLE, MS_PACMAN

N_WORKERS = 2
LIBRARIES = ("ours", "plangym")
JOBS = {
    "mspacman_rgb": {"env_id": MS_PACMAN, "obs_type": "rgb", "count": 256},
    "cartpole": {"env_id": CART_POLE, "obs_type": None, "count": 256},
}
MEMORY_BATCHES = 20


def start_up(*, rounds: int, interpreters: Mapping[str, str]) -> dict[str, Any]:
    """Return, by library and job, median seconds of fresh processes.

    ``import`` is the library's import, ``first`` and ``second`` are that process's first and
    second environment, each from ``make`` to its first batch of 256 rows.
    """
    found: dict[str, dict[str, Any]] = {library: {} for library in LIBRARIES}
    for name, job in JOBS.items():
        samples: dict[str, list[dict[str, Any]]] = {library: [] for library in LIBRARIES}
        for _ in range(rounds):
            for library in LIBRARIES:
                samples[library].append(
                    _ask_fresh(library, interpreters, "start_up", job=job, n_workers=N_WORKERS)
                )
        for library, answers in samples.items():
            absent = next((answer for answer in answers if "absent" in answer), None)
            found[library][name] = absent or {
                part: round(statistics.median(answer[part] for answer in answers), 3)
                for part in ("import", "first", "second")
            }
    return found


def memory(*, interpreters: Mapping[str, str]) -> dict[str, Any]:
    """Return, by library and job, the private MB of each process that an environment started."""
    return {
        library: {
            name: _ask_fresh(
                library,
                interpreters,
                "memory",
                job=job,
                n_workers=N_WORKERS,
                batches=MEMORY_BATCHES,
            )
            for name, job in JOBS.items()
        }
        for library in LIBRARIES
    }


def _ask_fresh(
    library: str, interpreters: Mapping[str, str], command: str, **arguments: Any
) -> dict[str, Any]:
    process = Process(library, interpreters)
    try:
        return process.ask(command, module=library, **arguments)
    except ContenderDied as error:
        return {"absent": "failed", "reason": str(error)}
    finally:
        process.close()
