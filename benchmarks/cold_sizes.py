"""New environments on batches of many sizes: parallel against serial, and one large first batch.

Run it from anywhere::

    python benchmarks/cold_sizes.py                     # ratios, medians of 9 rounds
    python benchmarks/cold_sizes.py --rounds 3 --tree /path/to/another/checkout

Each round makes new environments, serial and parallel in turn, gives workers a second to start, and
times a series of batches from the first one on.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from interleave import HERE, ContenderDied, Process
from throughput import CORES, MS_PACMAN

JOB = {"env_id": MS_PACMAN, "obs_type": "ram", "count": 256}
LARGE = 16384
ROUNDS = 9


def series() -> dict[str, tuple[list[int], int]]:
    """Return the sizes of the batches of each series, and the largest `dt` of their rows."""
    rng = np.random.default_rng(0)
    growing = [1]
    while growing[-1] < 1500:
        growing.append(min(1500, max(growing[-1] + 1, round(growing[-1] * 1.05))))
    return {
        "40 of 256": ([256] * 40, 1),
        "40 of 100 to 400": (rng.integers(100, 401, 40).tolist(), 1),
        "40 of 8 to 64": (rng.integers(8, 65, 40).tolist(), 1),
        "growing from 1 to 1,500": (growing, 1),
        "160 of 16, each row with dt from 1 to 8": ([16] * 160, 8),
        "40 of 64, each row with dt from 1 to 8": ([64] * 40, 8),
    }


def measure(
    *, rounds: int, interpreters: Mapping[str, str], tree: str | None = None
) -> dict[str, float | None]:
    """Return by series the parallel rate divided by the serial one, the median over rounds.

    ``"16,384 at once"`` is the rate of one such batch, the first of its environment, divided by
    that of batches of 256 on workers that are warm. A figure is ``None`` if it could not be had.
    """
    places = {"serial": None, "parallel": CORES}
    processes = {place: Process("ours", interpreters, tree=tree) for place in places}
    ratios: dict[str, list[float]] = {}

    def rate(place: str, sizes: Sequence[int], most_dt: int = 1, *, warm: int = 0) -> float:
        answer = processes[place].ask(
            "cold",
            module="ours",
            job=JOB,
            n_workers=places[place],
            sizes=list(sizes),
            most_dt=most_dt,
            warm=warm,
        )
        if "absent" in answer:
            raise ContenderDied(f"{answer['absent']}: {answer['reason']}")
        return sum(sizes) / float(answer["seconds"])

    try:
        for number in range(rounds):
            for name, (sizes, most_dt) in series().items():
                order = sorted(places, reverse=bool(number % 2))
                rates = {place: rate(place, sizes, most_dt) for place in order}
                ratios.setdefault(name, []).append(rates["parallel"] / rates["serial"])
            once = rate("parallel", [LARGE])
            many = rate("parallel", [256] * (LARGE // 256), warm=20)
            ratios.setdefault(f"{LARGE:,} at once", []).append(once / many)
    except ContenderDied:
        return dict.fromkeys([*series(), f"{LARGE:,} at once"])
    finally:
        for process in processes.values():
            process.close()
    return {name: round(statistics.median(values), 3) for name, values in ratios.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tree", type=Path, help="another checkout of this package to measure")
    arguments = parser.parse_args()
    tree = None if arguments.tree is None else str(arguments.tree.resolve())
    found: dict[str, Any] = measure(rounds=arguments.rounds, interpreters={}, tree=tree)
    print(tree or str(HERE.parent))
    for name, ratio in found.items():
        print(f"  {name:<40} {'-' if ratio is None else f'{ratio:.2f}'}")


if __name__ == "__main__":
    main()
