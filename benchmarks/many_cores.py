"""How much faster batches become with more workers, up to the number of cores.

Run it from anywhere, on a machine with many cores on which nothing else runs::

    python benchmarks/many_cores.py              # writes docs/figures/many_cores.md
    python benchmarks/many_cores.py --quick      # fewer rounds, writes nothing

For each environment and number of rows, the batches with each number of workers take turns.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Any

import numpy as np
from harness import CORES, in_turn, machine, measured_on, parser, report, seconds_of, table

import plangym_like

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Ms. Pac-Man, RAM": ("ALE/MsPacman-v5", {"obs_type": "ram"}),
    "Ms. Pac-Man, RGB": ("ALE/MsPacman-v5", {"obs_type": "rgb"}),
    "HalfCheetah": ("HalfCheetah-v5", {}),
    "CartPole": ("CartPole-v1", {}),
}
WORKERS = tuple(count for count in (1, 2, 4, 8, 16, 32, 64) if count <= CORES)
ROWS = (256, 4096)


def seconds(name: str, options: dict[str, Any], rows: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of a batch, by the number of workers; ``""`` is without workers."""
    with ExitStack() as stack:
        calls = {}
        for workers in (None, *WORKERS):
            env = plangym_like.make(name, n_workers=workers, audit="off", **options)
            stack.enter_context(env)
            if workers:
                env.executor.pool.wait_ready()  # type: ignore[union-attr]
            env.action_space.seed(0)
            actions = np.array([env.action_space.sample() for _ in range(rows)])
            states = np.repeat(env.reset(seed=0).state[None], rows, 0)

            def step(env: Any = env, actions: Any = actions, states: Any = states) -> float:
                return seconds_of(lambda: env.step_batch(actions, states))

            step()
            calls[str(workers or "")] = step
        found = in_turn(calls, rounds)
    return {workers: statistics.median(each[1:]) for workers, each in found.items()}


def main() -> None:
    """Measure, print, and write the table."""
    chosen = parser(__doc__).parse_args()
    data: dict[str, Any] = {"machine": machine(), "seconds": {}}
    lines = []
    for label, (name, options) in CASES.items():
        for rows in ROWS:
            found = seconds(name, options, rows, 4 if chosen.quick else 12)
            data["seconds"][f"{label}, {rows:,} rows"] = found
            times = [f"{found[''] / found[str(workers)]:.2f}" for workers in WORKERS]
            lines.append((label, f"{rows:,}", f"{rows / found['']:,.0f}", *times))
            print(*lines[-1], sep="  ", flush=True)
    head = ("environment", "rows", "transitions/s without workers", *map(str, WORKERS))
    page = [f"{measured_on(data['machine'])}. The last columns are how many times as fast batches"]
    page += ["are with so many processes, the caller's included.", "", *table(head, lines)]
    report("many_cores", data, "\n".join(page), quick=chosen.quick)


if __name__ == "__main__":
    main()
