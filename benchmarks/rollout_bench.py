"""Measure rollout collection beside its rivals and beside the bare loop, in one interleaved run.

Run it from anywhere::

    python benchmarks/rollout_bench.py            # writes docs/figures/rollouts.*
    python benchmarks/rollout_bench.py --quick    # a rough look, writes nothing
    python benchmarks/rollout_bench.py --rivals /path/to/python

The rivals want older versions of what this package uses, so they live in an environment of their
own: ``pip install torch==2.13.0 torchrl==0.14.1 bbrl==1.0.1 stable-baselines3==2.9.2``, and
``--rivals`` names its interpreter. One that is not installed is listed as missing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bench import BUSY_LOAD, machine
from interleave import Contest, Entry, Figure, paired_ratio
from throughput import CORES

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
LANES, WORKERS = 16, 2
RIVALS = ("sb3_rollout", "bbrl_rollout", "torchrl_rollout")
CART_POLE = (
    Entry("ours", "plangym_like, multi, 2 workers", "ours_rollout", "ours", {"workers": WORKERS}),
    Entry(
        "ours_critic",
        "plangym_like, the same with a critic",
        "ours_rollout",
        "ours",
        {"workers": WORKERS, "critic": True},
    ),
    Entry("ours_board", "plangym_like, workspaces, 1 process", "workspaces_rollout", "ours"),
    Entry("bare", "the bare loop, 2 processes", "bare_rollout", "raw", {"processes": WORKERS}),
    Entry("sb3", "SB3, DummyVecEnv", "sb3_rollout", "forward"),
    Entry("bbrl", "BBRL, ParallelGymAgent", "bbrl_rollout", "forward"),
    Entry(
        "torchrl",
        "torchrl, MultiSyncCollector, 2 workers",
        "torchrl_rollout",
        "forward",
        {"workers": WORKERS},
    ),
)
TASKS: dict[str, tuple[str, dict[str, Any], tuple[Entry, ...]]] = {
    "cartpole": (
        "CartPole, 16 environments, a policy of 64 units",
        {"env_id": "CartPole-v1", "obs_type": None, "count": LANES},
        CART_POLE,
    ),
    "atari": (
        "Breakout, 16 environments, 4 frames of 84 x 84, random actions",
        {"env_id": "ALE/Breakout-v5", "obs_type": None, "count": LANES},
        (CART_POLE[0], CART_POLE[2]),
    ),
}
# Which of ours does what a contender does, if not the plain one.
SAME_WORK = {"sb3": "critic"}
# What ours is divided by, and what comes of it at least.
BOUNDS = {
    "cartpole": {"sb3": 4.0, "bbrl": 8.0, "torchrl": 10.0, "bare": 1.0},
    "atari": {"bare": 0.85},
}


def measure(
    key: str, *, rounds: int, seconds: float, interpreters: dict[str, str], versions: Any
) -> dict[str, Any]:
    """Return one task's figures as they go into the JSON file."""
    title, job, entries = TASKS[key]
    with Contest(entries, job, interpreters=interpreters, versions=versions) as contest:
        contest.run(rounds=rounds, seconds=seconds)
    figures = contest.figures
    return {
        "key": key,
        "title": title,
        "rows": [
            _row(figures.get(f"ours_{SAME_WORK.get(name)}", figures["ours"]), figure, BOUNDS[key])
            for name, figure in figures.items()
        ],
    }


def _row(ours: Figure, figure: Figure, bounds: dict[str, float]) -> dict[str, Any]:
    ratio = paired_ratio(ours, figure)
    return {
        "key": figure.entry.key,
        "label": figure.entry.label,
        "reason": figure.reason,
        "rate": figure.median and round(figure.median),
        "rates": [round(rate) for rate in figure.rates],
        "ours_over_it": None if ratio is None else round(ratio, 3),
        "bound": bounds.get(figure.entry.key),
    }


def table(record: dict[str, Any]) -> str:
    """Return one task's table in Markdown."""
    lines = [
        f"**{record['title']}**",
        "",
        "| collector | steps/s | ours divided by it | bound |",
        "| --- | --- | --- | --- |",
    ]
    for row in record["rows"]:
        rate = f"{row['rate']:,}" if row["rate"] else f"none: {row['reason']}"
        ratio = f"{row['ours_over_it']:.2f}" if row["ours_over_it"] and row["bound"] else ""
        bound = ""
        if row["bound"]:
            kept = row["ours_over_it"] is not None and row["ours_over_it"] >= row["bound"]
            bound = f"at least {row['bound']:g}, {'kept' if kept else 'broken'}"
        lines.append(f"| {row['label']} | {rate} | {ratio} | {bound} |")
    return "\n".join(lines)


def text(results: dict[str, Any]) -> str:
    """Return the page of tables."""
    where = results["machine"]
    versions: dict[str, str] = {}
    for found in results["versions"].values():
        versions |= found
    head = (
        f"Measured on {where['cores']} cores ({where['cpu']}), in one run: each contender in a "
        "process of its own, slices interleaved in random order, medians of "
        f"{results['rounds']} rounds. A ratio is the median of the rounds' ratios. SB3 has a "
        "critic beside its policy and is compared with ours that has one; the others have none."
    )
    listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return "\n\n".join([head, f"Versions: {listed}.", *map(table, results["tasks"])]) + "\n"


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a rough look; writes nothing")
    parser.add_argument("--only", choices=TASKS, nargs="+", help="these tasks alone")
    parser.add_argument("--rivals", help="the interpreter of the rivals' environment")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bound is broken")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    interpreters = {}
    if arguments.rivals:
        interpreters = dict.fromkeys(RIVALS, os.path.abspath(arguments.rivals))
    rounds, seconds = (3, 0.5) if arguments.quick else (11, 1.0)
    versions: dict[str, dict[str, str]] = {}
    start = time.perf_counter()
    results: dict[str, Any] = {
        "machine": machine(),
        "rounds": rounds,
        "slice_seconds": seconds,
        "versions": versions,
        "tasks": [],
    }
    if results["machine"]["load_at_start"] > BUSY_LOAD * CORES:
        print(f"This machine is busy (load {results['machine']['load_at_start']}).")
    for key in arguments.only or TASKS:
        record = measure(
            key, rounds=rounds, seconds=seconds, interpreters=interpreters, versions=versions
        )
        results["tasks"].append(record)
        print(table(record), end="\n\n", flush=True)
    results["seconds"] = round(time.perf_counter() - start)
    if not arguments.quick and not arguments.only:
        FIGURES.mkdir(parents=True, exist_ok=True)
        data = json.dumps(results, indent=1)
        (FIGURES / "rollouts.json").write_text(data + "\n", encoding="utf-8")
        (FIGURES / "rollouts.md").write_text(text(results), encoding="utf-8")
        print(f"written in {results['seconds']} s: {FIGURES}")
    rows = [row for record in results["tasks"] for row in record["rows"] if row["bound"]]
    broken = [row for row in rows if (row["ours_over_it"] or 0.0) < row["bound"]]
    return int(arguments.check and bool(broken))


if __name__ == "__main__":
    sys.exit(main())
