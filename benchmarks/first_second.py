"""New environments: the first 1,000 single steps and the first 20 batches against later ones.

Run it from anywhere::

    python benchmarks/first_second.py              # writes docs/figures/first_second.md
    python benchmarks/first_second.py --quick      # a rough look, writes nothing

Each round makes new environments, one after the other, and times their first calls and, once the
environment has been stepped for a while, as many later calls. Audits are on, as in `make`; the time
until environment and workers are ready is left out. A ratio is the time of the first calls divided
by that of the later ones, the median over rounds. At most 1.25 is wanted without workers; with
them, the first batches are sent to find out whether this pays.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench import machine
from tables import table

import plangym_like

PAGE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "first_second.md"
IDS = (
    "CartPole-v1",
    "ALE/MsPacman-v5",
    "HalfCheetah-v5",
    "minigrid:MiniGrid-Empty-8x8-v0",
    "LunarLander-v3",
)
STEPS, BATCHES, ROWS = 1000, 20, 64
# Calls between the first and the later ones.
BETWEEN_STEPS, BETWEEN_BATCHES = 2000, 60
WANTED = 1.25


def single_steps(env: Any) -> Callable[[], None]:
    """Return what takes the next single step of episodes, each from the state before."""
    root = env.reset(seed=0).state
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(100)]
    state, number = root, 0

    def step() -> None:
        nonlocal state, number
        result = env.step(actions[number % 100], state=state)
        state = root if result.terminated or result.truncated else result.state
        number += 1

    return step


def batches(env: Any) -> Callable[[], None]:
    """Return what steps the next batch of 64 episodes."""
    root = env.reset(seed=0).state
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(ROWS)]
    states = np.repeat(root[None], ROWS, axis=0)

    def step() -> None:
        nonlocal states
        result = env.step_batch(actions, states)
        states = result.states.copy()
        states[result.terminateds | result.truncateds] = root

    return step


def seconds(step: Callable[[], None], count: int) -> float:
    """Return how long `count` calls take."""
    begun = time.perf_counter()
    for _ in range(count):
        step()
    return time.perf_counter() - begun


def ratio(name: str, calls: Callable[[Any], Callable[[], None]], **options: Any) -> float:
    """Return the time of the first calls of a new environment, divided by that of later ones."""
    single = calls is single_steps
    count, between = (STEPS, BETWEEN_STEPS) if single else (BATCHES, BETWEEN_BATCHES)
    with plangym_like.make(name, **options) as env:
        for worker in env.executor if options else ():
            worker.wait_ready()
        step = calls(env)
        first = seconds(step, count)
        seconds(step, between)
        return first / seconds(step, count)


def main() -> None:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a rough look; writes nothing")
    parser.add_argument("--ids", nargs="*", default=list(IDS))
    chosen = parser.parse_args()
    columns: dict[str, tuple[Any, dict[str, Any]]] = {
        "single steps": (single_steps, {}),
        f"batches of {ROWS}": (batches, {}),
        f"batches of {ROWS}, 2 workers": (batches, {"n_workers": 2}),
    }
    rows = []
    for name in chosen.ids:
        plangym_like.make(name).close()  # imports
        found: dict[str, list[float]] = {column: [] for column in columns}
        for column, (calls, options) in [*columns.items()] * (3 if chosen.quick else 9):
            found[column].append(ratio(name, calls, **options))
        row = [f"{statistics.median(each):.2f}" for each in found.values()]
        rows.append((name.rpartition("/")[2].rpartition(":")[2], *row))
        print(*rows[-1], sep="  ", flush=True)
    here = machine()
    measured = (
        f"Measured on {here['cores']} cores ({here['cpu']}), with audits, medians of 9 new "
        f"environments. The time of the first {STEPS:,} steps or {BATCHES} batches, divided by "
        f"that of as many later ones. At most {WANTED} is wanted without workers; with them, the "
        "first batches are sent to find out whether this pays."
    )
    page = [
        measured,
        "",
        *table(("environment", *columns), rows),
    ]
    if not chosen.quick:
        PAGE.write_text("\n".join(page), encoding="utf-8")


if __name__ == "__main__":
    main()
