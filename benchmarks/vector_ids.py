"""`make_vec` and Gymnasium's `SyncVectorEnv`, in one process, for every id that is installed.

Run it from anywhere::

    python benchmarks/vector_ids.py                     # all; writes docs/figures/vector_ids.*
    python benchmarks/vector_ids.py --quick FrozenLake  # ids with this in their name

Both step 8 environments, with the same seeds and the same random actions, so they play the same
episodes. They are stepped in turn, slice by slice. A figure is the median over the slices of the
time of Gymnasium's slice, divided by that of ours: once in processor time, once in wall time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import tables
from gymnasium.vector import SyncVectorEnv

from plangym_like import make_vec

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
COUNT, ROUNDS, SLICE_SECONDS = 8, 15, 0.06
# Ratios below the bound are measured again, because other programs disturb them.
BOUND, ATTEMPTS = 0.98, 3
PACKAGES = ("ale_py", "minigrid")


def ids() -> list[str]:
    """Return all registered ids, with those of Atari and MiniGrid if these are installed."""
    for package in PACKAGES:
        try:
            gymnasium.register_envs(__import__(package))
        except ImportError:
            continue
    return sorted(gymnasium.registry)


def group_of(name: str) -> str:
    """Return the part of the environments' package that `name` belongs to."""
    entry = gymnasium.registry[name].entry_point
    path = entry.partition(":")[0].split(".") if isinstance(entry, str) else ["other"]
    return {"gymnasium": path[2] if len(path) > 2 else "", "ale_py": "atari"}.get(path[0], path[0])


def _slice(envs: Any, actions: Sequence[Any], steps: int) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    for number in range(steps):
        envs.step(actions[number % len(actions)])
    return time.process_time() - cpu, time.perf_counter() - wall


def measure(name: str) -> tuple[float, float, float]:
    """Return the ratio in processor time, the ratio in wall time, and our time.

    Our time is the processor time of one step of one environment, in microseconds.
    """
    theirs = SyncVectorEnv([partial(gymnasium.make, name)] * COUNT)
    ours = make_vec(name, COUNT)
    try:
        theirs.action_space.seed(0)
        actions = [theirs.action_space.sample() for _ in range(500)]
        for envs in (theirs, ours):
            envs.reset(seed=0)
            _slice(envs, actions, 20)
        steps = 1
        while (taken := min(_slice(envs, actions, steps)[1] for envs in (theirs, ours))) < (
            SLICE_SECONDS / 4
        ):
            steps *= 2
        steps = max(1, round(steps * SLICE_SECONDS / taken))
        gc.collect()
        gc.freeze()
        found = []
        for number in range(ROUNDS):
            pair = (theirs, ours) if number % 2 else (ours, theirs)
            times = {id(envs): _slice(envs, actions, steps) for envs in pair}
            found.append((*times[id(theirs)], *times[id(ours)]))
    finally:
        theirs.close()
        ours.close()
    cpu = statistics.median(each[0] / each[2] for each in found)
    wall = statistics.median(each[1] / each[3] for each in found)
    own = statistics.median(each[2] for each in found) / steps / COUNT * 1e6
    return round(cpu, 3), round(wall, 3), round(own, 2)


def measured_apart(name: str) -> tuple[float, float, float] | None:
    """Call `measure` in a new process; return ``None`` if the id cannot be made.

    If the ratio is below `BOUND`, measure again, and return the median of `ATTEMPTS` attempts.
    """
    found: list[tuple[float, float, float]] = []
    while len(found) < ATTEMPTS and not (len(found) == 1 and found[0][0] >= BOUND):
        command = [sys.executable, "-W", "ignore", __file__, "--one", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr, flush=True)
            return None
        cpu, wall, own = json.loads(done.stdout.splitlines()[-1])
        found.append((float(cpu), float(wall), float(own)))
    return statistics.median_low(found)


def table(found: dict[str, tuple[float, float, float]]) -> str:
    """Return one line for each group of ids, as a table in Markdown."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in found:
        groups[group_of(name)].append(name)
    rows = []
    for group, names in groups.items():
        slowest = min(names, key=lambda name: found[name][0])
        cpu, wall = ([found[name][index] for name in names] for index in (0, 1))
        medians = f"{statistics.median(cpu):.2f}", f"{statistics.median(wall):.2f}"
        rows.append((group, str(len(names)), *medians, f"{min(cpu):.2f}", slowest))
    head = "environments", "ids", "ratio", "in wall time", "smallest ratio", "of"
    return "\n".join(tables.table(head, rows))


def main() -> None:
    """Measure, print, and write the figures unless it is a quick look."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="measure ids with one of these in their name")
    parser.add_argument("--quick", action="store_true", help="write nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    known = ids()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    found: dict[str, tuple[float, float, float]] = {}
    for name in known:
        if arguments.names and not any(part in name for part in arguments.names):
            continue
        figures = measured_apart(name)
        if figures is not None:
            found[name] = figures
            cpu, wall, own = figures
            told = f"{name:<40} {cpu:6.3f} {wall:6.3f} {own:9.2f} us"
            print(told, "BELOW" if cpu < BOUND else "", flush=True)
    print(table(found))
    if not arguments.quick and not arguments.names:
        machine = {"cores": os.cpu_count(), "bound": BOUND}
        content = {"machine": machine, "ratios": found}
        FIGURES.joinpath("vector_ids.json").write_text(json.dumps(content, indent=1) + "\n")
        FIGURES.joinpath("vector_ids.md").write_text(table(found))


if __name__ == "__main__":
    main()
