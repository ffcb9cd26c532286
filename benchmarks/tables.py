"""Figures as text: lines for the terminal, and tables for the docs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bounds import Check

NAMES = {"ours": "plangym_like"}
STARTS = {"ours": "yes", "raw": "yes", "states": "yes", "forward": "no, forward only"}


def checks_text(checks: Sequence[Check]) -> str:
    """Return one line a promise."""
    width = max(len(check.what) for check in checks)
    words = {True: "kept", False: "BROKEN", None: "not measured"}
    return "\n".join(
        f"{check.what:<{width}}  {_number(check.value):>9}  "
        f"{'at most' if check.ceiling else 'at least'} {check.bound:g}  {words[check.kept]}"
        for check in checks
    )


def markdown(results: Mapping[str, Any], checks: Sequence[Check]) -> str:
    """Return the page's tables, made of the very object that the JSON file holds."""
    machine = results["machine"]
    method = (
        f"Measured on {machine['cores']} cores ({machine['cpu']}), in one run: each contender in "
        "a process of its own, slices interleaved in random order, medians of "
        f"{results['settings']['rounds']} rounds. A ratio is the median of the rounds' ratios."
    )
    parts = [method, "", _versions_line(results["versions"]), ""]
    for task in results["throughput"]:
        parts += [f"**{task['title']}**", ""]
        parts += table(
            ("contender", "starts from given states", "transitions/s", "of the raw loops"),
            [_throughput_row(row) for row in task["rows"]],
        )
    parts += [other_tables(results), "**What is promised**", ""]
    parts += table(
        ("promise", "measured", "bound", ""),
        [
            (
                check.what,
                _number(check.value),
                f"{'at most' if check.ceiling else 'at least'} {check.bound:g}",
                {True: "kept", False: "broken", None: "not measured"}[check.kept],
            )
            for check in checks
        ],
    )
    return "\n".join(parts).rstrip() + "\n"


def other_tables(results: Mapping[str, Any]) -> str:
    """Return the tables of batch sizes and of what workers cost, where they were measured."""
    parts: list[str] = []
    if "never_slower" in results:
        parts += ["**Parallel divided by serial, by rows in a batch**", ""]
        parts += _never_slower_table(results["never_slower"])
    if "cold_sizes" in results:
        parts += ["**New environments, MsPacman RAM: parallel divided by serial**", ""]
        parts += table(
            ("batches", "ratio"),
            [
                (series, "" if ratio is None else f"{ratio:.2f}")
                for series, ratio in results["cold_sizes"].items()
            ],
        )
    if "start_up" in results:
        parts += ["**Start-up and memory, 2 workers, batches of 256 rows**", ""]
        parts += _costs_table(results["start_up"], results["memory"])
    return "\n".join(parts)


def _versions_line(versions: Mapping[str, Mapping[str, str]]) -> str:
    packages: dict[str, set[str]] = {}
    for found in versions.values():
        for package, version in found.items():
            packages.setdefault(package, set()).add(version)
    listed = (f"{name} {' and '.join(sorted(found))}" for name, found in sorted(packages.items()))
    return f"Versions: {', '.join(listed)}."


def throughput_text(task: Mapping[str, Any]) -> str:
    """Return one task's figures as aligned lines."""
    lines = [task["title"]]
    for row in task["rows"]:
        name, _, rate, ratio = _throughput_row(row)
        lines.append(f"  {name:<36} {rate:>24} {ratio:>8}")
    return "\n".join(lines)


def _throughput_row(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    starts = STARTS[row["group"]]
    if row["absent"]:
        return row["label"], starts, f"{row['absent']}: {row['reason']}", ""
    ratio = row["over_raw"]
    return row["label"], starts, f"{row['rate']:,.0f}", "" if ratio is None else f"{ratio:.2f}"


def _never_slower_table(ratios: Mapping[str, Any]) -> list[str]:
    sizes = sorted(
        {size for games in ratios.values() for row in games.values() for size in row or ()}
    )
    rows = [
        (NAMES.get(library, library), game, *(f"{row[size]:.2f}" if row else "" for size in sizes))
        for library, games in ratios.items()
        for game, row in games.items()
    ]
    return table(("library", "job", *(str(size) for size in sizes)), rows)


def _costs_table(start_up: Mapping[str, Any], memory: Mapping[str, Any]) -> list[str]:
    rows = []
    for library, games in start_up.items():
        name = NAMES.get(library, library)
        for game, seconds in games.items():
            children = memory[library][game].get("children", [])
            if "absent" in seconds:
                rows.append((name, game, seconds["reason"], "", "", ""))
            else:
                parts = [f"{seconds[part]:.2f}" for part in ("import", "first", "second")]
                own = ", ".join(f"{size:.0f}" for size in children)
                rows.append((name, game, *parts, own))
    return table(
        ("library", "job", "import, s", "first env, s", "second env, s", "own MB of its processes"),
        rows,
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown, and an empty one."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"
