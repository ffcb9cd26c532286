"""Measure rollout collection against its rivals and the bare loop, in one interleaved run.

Run it from anywhere::

    python benchmarks/rollout_bench.py            # writes docs/figures/rollouts.*
    python benchmarks/rollout_bench.py --quick    # a rough look, writes nothing
    python benchmarks/rollout_bench.py --rivals /path/to/python

The rivals need older versions of this package's dependencies, so install them in a separate
environment: ``pip install torch==2.13.0 torchrl==0.14.1 bbrl==1.0.1 stable-baselines3==2.9.2``.
``--rivals`` is the path of its interpreter. Rivals that are not installed are listed as missing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from bench import BUSY_LOAD, QUIET_SCALING, machine
from interleave import Contest, Entry
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
    # Half of the environments: what one core does alone says how quiet the machine was.
    Entry(
        "bare_one", "the same, 1 process, 8 environments", "bare_rollout", "raw", {"alone": True}
    ),
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
        tuple(entry for entry in CART_POLE if entry.key in ("ours", "bare")),
    ),
}
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
    return {
        "key": key,
        "title": title,
        "rows": [
            {
                "key": name,
                "label": figure.entry.label,
                "reason": figure.reason,
                "rates": [round(rate) for rate in figure.rates],
            }
            for name, figure in contest.figures.items()
        ],
    }


def counted(record: dict[str, Any]) -> list[int]:
    """Return the rounds that count: where two bare loops did about twice the work of one.

    In the others something else was using the cores.
    """
    rates = {row["key"]: row["rates"] for row in record["rows"]}
    every = list(range(len(rates["ours"])))
    both, one = rates["bare"], rates.get("bare_one")
    if not both or not one:
        return every
    return [i for i in every if both[i] >= QUIET_SCALING * WORKERS * one[i]]


def ratio(record: dict[str, Any], over: str, under: str) -> float | None:
    """Return the median over the rounds that count of one rate divided by another."""
    rates = {row["key"]: row["rates"] for row in record["rows"]}
    if not rates.get(over) or not rates.get(under) or not counted(record):
        return None
    return statistics.median(rates[over][i] / rates[under][i] for i in counted(record))


def checks(record: dict[str, Any]) -> list[tuple[str, float | None, float]]:
    """Return what is promised: the rival, what came of it, and what was to come of it at least."""
    bounds = BOUNDS[record["key"]].items()
    return [(name, ratio(record, "ours", name), bound) for name, bound in bounds]


def table(record: dict[str, Any]) -> str:
    """Return one task's table in Markdown."""
    critic = any(row["key"] == "ours_critic" for row in record["rows"])
    heads = ["collector", "steps/s", "ours divided by it"]
    heads += ["ours with a critic divided by it"] * critic + ["bound"]
    lines = [f"**{record['title']}**", "", _line(heads), _line(["---"] * len(heads))]
    bounds = {name: (found, bound) for name, found, bound in checks(record)}
    for row in record["rows"]:
        rates = [row["rates"][i] for i in counted(record)] if row["rates"] else []
        cells = [row["label"], f"{statistics.median(rates):,.0f}" if rates else row["reason"] or ""]
        cells += [_shown(ratio(record, "ours", row["key"]))]
        cells += [_shown(ratio(record, "ours_critic", row["key"]))] * critic
        found, bound = bounds.get(row["key"], (None, None))
        kept = bound and ("kept" if (found or 0.0) >= bound else "broken")
        lines.append(_line([*cells, f"at least {bound:g}, {kept}" if bound else ""]))
    every = len(record["rows"][0]["rates"])
    return "\n".join([*lines, "", f"{len(counted(record))} of {every} rounds count."])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def text(results: dict[str, Any]) -> str:
    """Return the page of tables."""
    where = results["machine"]
    versions: dict[str, str] = {}
    for found in results["versions"].values():
        versions |= found
    head = (
        f"Measured on {where['cores']} cores ({where['cpu']}), in one run: each contender in a "
        "process of its own, slices interleaved in random order, medians over "
        "the rounds that count: those in which two bare loops did at least 1.6 times the work of "
        "one, so that nothing else was using the cores. A ratio is the median of the rounds' "
        "ratios. SB3 has a critic besides its policy, the other rivals have none."
    )
    listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return "\n\n".join([head, f"Versions: {listed}.", *map(table, results["tasks"])]) + "\n"


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a rough look; writes nothing")
    parser.add_argument("--only", choices=TASKS, nargs="+", help="only these tasks")
    parser.add_argument("--rivals", help="the interpreter of the rivals' environment")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is broken")
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
    broken = [
        name
        for record in results["tasks"]
        for name, found, bound in checks(record)
        if (found or 0.0) < bound
    ]
    return int(arguments.check and bool(broken))


if __name__ == "__main__":
    sys.exit(main())
