"""What the scripts share: arguments, the machine, medians of calls in turn, tables, and files."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
CORES = len(os.sched_getaffinity(0))


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the first line of a script's docstring, and the option ``--quick``."""
    found = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    found.add_argument("--quick", action="store_true", help="a rough look; writes nothing")
    return found


def machine() -> dict[str, Any]:
    """Return what figures depend on: cores, processor, system, and what else was running."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cores": CORES,
        "cpu": model,
        "system": platform.system(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def measured_on(here: Mapping[str, Any]) -> str:
    """Return the beginning of the sentence that says where and how figures were measured."""
    load = here["load_at_start"]
    return f"Measured on {here['cores']} cores ({here['cpu']}), load {load} at the start"


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table in Markdown, and an empty one."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines] + [""]


def report(name: str, data: Any, page: str, *, quick: bool) -> None:
    """Print the page; publish it too, unless this is a quick look."""
    print(page)
    if not quick:
        publish(name, data, page)


def publish(name: str, data: Any, page: str) -> None:
    """Write the figures `name` as JSON, and the page that shows them."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    (FIGURES / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (FIGURES / f"{name}.md").write_text(page.rstrip() + "\n", encoding="utf-8")


def known(name: str) -> dict[str, Any]:
    """Return the figures `name` that were written earlier; an empty dict if there are none."""
    path = FIGURES / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def seconds_of(call: Callable[[], object], count: int = 1, clock: Any = time.perf_counter) -> float:
    """Return how long `count` calls take together."""
    begun: float = clock()
    for _ in range(count):
        call()
    return float(clock() - begun)


def calls_within(call: Callable[[], object], seconds: float, clock: Any = time.perf_counter) -> int:
    """Return how many calls take about `seconds`, at least one."""
    count = 1
    while (taken := seconds_of(call, count, clock)) < seconds / 4:
        count *= 2
    return max(1, round(count * seconds / taken))


def in_turn(
    calls: Mapping[str, Callable[[], float]], rounds: int, chance: random.Random | None = None
) -> dict[str, list[float]]:
    """Call everything once in each round, in another order each time; return what was returned."""
    chance = chance or random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in chance.sample(list(calls), len(calls)):
            found[name].append(calls[name]())
    return found


def medians(found: Mapping[str, Sequence[float]], digits: int = 2) -> dict[str, float]:
    """Return the median of each list."""
    return {name: round(statistics.median(each), digits) for name, each in found.items()}


def ratio(over: Sequence[float], under: Sequence[float]) -> float | None:
    """Return the median, over rounds, of one number divided by another; ``None`` without both."""
    if not over or not under:
        return None
    return round(statistics.median(a / b for a, b in zip(over, under, strict=True)), 3)
