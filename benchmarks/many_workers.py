"""Many workers on few cores: steps that sleep cost no CPU, so what is measured is the library.

Run it from anywhere::

    python benchmarks/many_workers.py              # writes docs/figures/many_workers.md
    python benchmarks/many_workers.py --quick      # a rough look, writes nothing

Each step sleeps for 10 ms. The efficiency of a batch is the time that its rows would take if they
were divided equally among the workers and nothing else took time, divided by the measured time; the
median over batches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from bench import machine
from tables import table

import plangym_like

PAGE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "many_workers.md"
SECONDS = 0.01
# Workers, rows for each of them, and the least efficiency that is wanted.
CASES = ((32, 16, 0.96), (64, 16, 0.93), (64, 4, 0.80))


class Sleeper(gymnasium.Env[Any, Any]):
    """Each step sleeps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.total = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin with a total of 0."""
        super().reset(seed=seed)
        self.total = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        """Sleep, and add the action to the total."""
        time.sleep(SECONDS)
        self.total += int(action)
        return np.array([float(self.total)]), 1.0, False, False, {}


def efficiency(workers: int, rows: int, batches: int) -> float:
    """Return the median efficiency of `batches` batches with `rows` rows for each worker."""
    with plangym_like.make(Sleeper, n_workers=workers, isolate=True, audit="off") as env:
        env.executor.pool.wait_ready()
        state = env.reset(seed=0).state
        actions = np.zeros(workers * rows, np.int64)
        env.step_batch(actions, state)
        found = []
        for _ in range(batches):
            begun = time.perf_counter()
            env.step_batch(actions, state)
            found.append(rows * SECONDS / (time.perf_counter() - begun))
    return statistics.median(found)


def main() -> None:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a rough look; writes nothing")
    chosen = parser.parse_args()
    rows = []
    for workers, each, wanted in CASES:
        found = efficiency(workers, each, 3 if chosen.quick else 15)
        rows.append((str(workers), str(each), f"{found:.3f}", str(wanted)))
        print(*rows[-1], sep="  ", flush=True)
    here = machine()
    measured = (
        f"Measured on {here['cores']} cores ({here['cpu']}), where each step sleeps for 10 ms. The "
        "efficiency is 1 if the rows are divided equally and nothing else takes time."
    )
    names = ("workers", "rows for each", "efficiency", "wanted, at least")
    page = [measured, "", *table(names, rows)]
    if not chosen.quick:
        PAGE.write_text("\n".join(page), encoding="utf-8")


if __name__ == "__main__":
    main()
