"""What the audit costs: batches with and without it, in turn, in one process.

    python benchmarks/audit_cost.py [--pairs 6] [--rounds 8]

Prints, for each job and executor, the median of all ratios of the time with the default audit to
the time without, once the first 40,000 rows have been stepped. Two environments that are made alike
may differ by 3 %, depending on where their arrays lie in memory, so several pairs are compared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

import plangym_like

# Job -> environment, its arguments, rows in a batch.
JOBS: dict[str, tuple[str, dict[str, Any], int]] = {
    "CartPole, 1,024 rows": ("CartPole-v1", {}, 1024),
    "CartPole by pickle, 64 rows": ("CartPole-v1", {"snapshot": "pickle"}, 64),
    "HalfCheetah, 256 rows": ("HalfCheetah-v5", {}, 256),
    "MsPacman RAM, 256 rows": ("ALE/MsPacman-v5", {"obs_type": "ram", "frameskip": 1}, 256),
}
WARM_UP_ROWS = 40_000
SLICE_SECONDS = 0.3


def contender(name: str, rows: int, kwargs: dict[str, Any]) -> Any:
    """Return a function that steps one batch, and the environment to close."""
    env = plangym_like.make(name, **kwargs)
    state, _, _ = env.reset(seed=0)
    actions = np.stack([env.sample_action() for _ in range(rows)])
    states = np.repeat(state[None], rows, axis=0)

    def step() -> None:
        env.step_batch(actions, states)

    for _ in range(-(-WARM_UP_ROWS // rows)):
        step()
    return step, env


def seconds_a_batch(step: Any) -> float:
    """Return what a batch takes, on average over a slice of time."""
    begun, batches = time.perf_counter(), 0
    while time.perf_counter() - begun < SLICE_SECONDS:
        step()
        batches += 1
    return (time.perf_counter() - begun) / batches


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    for job, (name, kwargs, rows) in JOBS.items():
        for executor, more in {"serial": {}, "2 workers": {"n_workers": 2}}.items():
            ratios: list[float] = []
            for number in range(options.pairs):
                modes = ("raise", "off") if number % 2 else ("off", "raise")
                made = {
                    mode: contender(name, rows, {**kwargs, **more, "audit": mode}) for mode in modes
                }
                for index in range(options.rounds):
                    order = modes if index % 2 else modes[::-1]
                    seconds = {mode: seconds_a_batch(made[mode][0]) for mode in order}
                    ratios.append(seconds["raise"] / seconds["off"])
                audited = made["raise"][1].stats
                for _, env in made.values():
                    env.close()
            print(
                f"{job:30} {executor:10} {statistics.median(ratios):.3f}"
                f"  ({audited.rows_audited} of {audited.rows} rows audited)"
            )


if __name__ == "__main__":
    main()
