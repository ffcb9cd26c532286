"""Measure plangym_like against its rivals and against the bare simulator, in one interleaved run.

Run it from anywhere::

    python benchmarks/bench.py                      # all jobs, writes docs/figures/bench.*
    python benchmarks/bench.py --quick              # a rough look, writes nothing
    python benchmarks/bench.py --python plangym=/path/to/python

Each contender runs in its own process, with this interpreter or the one that ``--python`` gives for
it. Contenders that are not installed are listed as missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bounds
import cold_sizes
import costs
import never_slower
import tables
import throughput
from interleave import Figure, paired_ratio

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
CONTENDERS = ("ours", "raw", "plangym", "gymnasium", "stable_baselines3", "envpool")
FULL = {
    "rounds": 15,
    "slice_seconds": 0.25,
    "batch_rounds": 21,
    "batch_slice_seconds": 0.05,
    "cold_rounds": 9,
    "starts": 5,
}
QUICK = {
    "rounds": 3,
    "slice_seconds": 0.15,
    "batch_rounds": 5,
    "batch_slice_seconds": 0.03,
    "cold_rounds": 3,
    "starts": 1,
}
BUSY_LOAD = 0.5
# What bare loops reach for each core when nothing else runs is above 0.9 of one loop alone.
QUIET_SCALING = 0.8


def machine() -> dict[str, Any]:
    """Return what the figures depend on: cores, processor, system, and what else was running."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cores": throughput.CORES,
        "cpu": model,
        "system": platform.system(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def throughput_record(task: throughput.Task, figures: Mapping[str, Figure]) -> dict[str, Any]:
    """Return one task's figures as they go into the JSON file."""
    raw = figures["raw"]
    return {
        "key": task.key,
        "title": task.title,
        "same_work": throughput.same_work(figures),
        "raw_loops_over_one": _rounded(paired_ratio(raw, figures["raw_one"])),
        "rows": [
            {
                "key": key,
                "label": figure.entry.label,
                "group": figure.entry.group,
                "options": dict(figure.entry.options),
                "absent": figure.absent,
                "reason": figure.reason,
                "rate": figure.median and round(figure.median),
                "rates": [round(rate) for rate in figure.rates],
                "over_raw": _rounded(paired_ratio(figure, raw)),
            }
            for key, figure in figures.items()
        ],
    }


def _warnings(record: Mapping[str, Any]) -> list[str]:
    found = []
    if record["same_work"] is False:
        found.append("not everybody found the same observations and rewards")
    scaling = record["raw_loops_over_one"]
    if scaling is not None and scaling < QUIET_SCALING * throughput.CORES:
        found.append(
            f"{throughput.CORES} raw loops at once did only {scaling:.2f} times the work of one: "
            "something else is using the cores, so these figures are not for publishing"
        )
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _say(text: str) -> None:
    print(text, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="a rough look: fewer rounds, fewer entries"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="folder for bench.json, .md and .png (docs/figures; with --quick, none)",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help=f"the interpreter of one contender ({', '.join(CONTENDERS)})",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=(*(task.key for task in throughput.TASKS), "never_slower", "cold_sizes", "costs"),
        help="only these jobs",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is broken")
    arguments = parser.parse_args()
    pairs = [pair.partition("=") for pair in arguments.python]
    for name, _, path in pairs:
        if name not in CONTENDERS or not path:
            parser.error(f"--python wants NAME=PATH with NAME one of {', '.join(CONTENDERS)}")
    # Not resolved: a virtual environment is known by the link that its interpreter is.
    arguments.interpreters = {name: os.path.abspath(path) for name, _, path in pairs}
    if arguments.output is None and not arguments.quick and not arguments.only:
        arguments.output = FIGURES
    return arguments


def main() -> int:
    """Measure, print, write; return the exit status."""
    arguments = _arguments()
    # Contenders are ended by `finally` blocks, which a plain SIGTERM would skip.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    settings = QUICK if arguments.quick else FULL
    wanted = set(arguments.only or ("never_slower", "cold_sizes", "costs"))
    if not arguments.only:
        wanted |= {task.key for task in throughput.TASKS}
    interpreters = arguments.interpreters
    versions: dict[str, dict[str, str]] = {}
    start = time.perf_counter()
    results: dict[str, Any] = {
        "machine": machine(),
        "settings": settings,
        "versions": versions,
        "throughput": [],
    }
    if results["machine"]["load_at_start"] > BUSY_LOAD:
        _say(
            f"This machine is busy (load {results['machine']['load_at_start']}): ratios may suffer."
        )
    tasks: dict[str, Mapping[str, Figure]] = {}
    for task in throughput.TASKS:
        if task.key in wanted:
            tasks[task.key] = throughput.measure(
                task,
                rounds=int(settings["rounds"]),
                seconds=settings["slice_seconds"],
                interpreters=interpreters,
                versions=versions,
                quick=arguments.quick,
            )
            record = throughput_record(task, tasks[task.key])
            results["throughput"].append(record)
            _say(tables.throughput_text(record))
            for warning in _warnings(record):
                _say(f"  WARNING: {warning}")
    checks = bounds.throughput_checks(tasks)
    if "never_slower" in wanted:
        results["never_slower"] = never_slower.measure(
            rounds=int(settings["batch_rounds"]),
            seconds=settings["batch_slice_seconds"],
            interpreters=interpreters,
            versions=versions,
        )
        checks += bounds.never_slower_checks(results["never_slower"])
    if "cold_sizes" in wanted:
        results["cold_sizes"] = cold_sizes.measure(
            rounds=int(settings["cold_rounds"]), interpreters=interpreters
        )
        checks += bounds.cold_checks(results["cold_sizes"])
    if "costs" in wanted:
        results["start_up"] = costs.start_up(
            rounds=int(settings["starts"]), interpreters=interpreters
        )
        results["memory"] = costs.memory(interpreters=interpreters)
        checks += bounds.cost_checks(results["start_up"], results["memory"])
    results["checks"] = [
        {
            "what": check.what,
            "value": _rounded(check.value),
            "bound": check.bound,
            "ceiling": check.ceiling,
            "kept": check.kept,
        }
        for check in checks
    ]
    results["seconds"] = round(time.perf_counter() - start)
    _say("\n" + tables.other_tables(results))
    _say(tables.checks_text(checks))
    if arguments.output is not None:
        write(results, checks, arguments.output)
        _say(f"\nwritten in {results['seconds']} s: {arguments.output}")
    return int(arguments.check and any(check.kept is not True for check in checks))


def write(results: dict[str, Any], checks: list[bounds.Check], folder: Path) -> None:
    """Write the JSON file, the table and the chart."""
    import chart

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "bench.md").write_text(tables.markdown(results, checks))
    chart.draw(results, folder / "bench.png")


if __name__ == "__main__":
    sys.exit(main())
