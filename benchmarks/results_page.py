"""Writes docs/results.md from the records of benchmarks/results.py and from published numbers."""

from __future__ import annotations

import pathlib
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tables import table

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results.md"
BEGIN = "<!-- what follows is written by benchmarks/results_page.py -->"
_BEST = (
    "The planner of this package with the highest score in each game, with the frames of the "
    "console that it simulated for the whole game. **Budgets are not equal**; those of the others "
    "are below the table."
)
_EVERY = (
    "Median score / frames of play; a game that has ended has a full stop. Random: the mean of 20 "
    "games."
)
_ROBOTS = (
    "Returns of 1,000 steps. Planners know the simulator and learn nothing; the others learned a "
    "policy or a model (TD-MPC2 plans in its model)."
)
_WALL = (
    "Wall times are those of two cores on which other programs were running: the load is the mean "
    "number of processes that wanted a core at the end."
)
Records = Mapping[str, Mapping[str, Any]]


def write(records: Records, published: Mapping[str, Any]) -> None:
    """Write the tables below the text of the page."""
    text = PAGE.read_text().split(BEGIN)[0]
    PAGE.write_text(f"{text}{BEGIN}\n\n{tables(records, published)}")


def tables(records: Records, published: Mapping[str, Any]) -> str:
    """Return all tables, as Markdown."""
    parts = [
        "## Atari",
        *_atari(records, published["atari"]),
        "## Rooms of Montezuma's Revenge",
        *_montezuma(records),
        "## Robots",
        *_control(records, published["control"]),
        "## Planning speed",
        *_speed(records),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _atari(records: Records, published: Mapping[str, Any]) -> list[str]:
    runs: dict[str, dict[str, list[Mapping[str, Any]]]] = defaultdict(dict)
    budgets: dict[tuple[str, str], int] = {}
    for name, record in records.items():
        kind, *parts = name.split("/")
        if kind == "montezuma":
            parts = ["MontezumaRevenge", "GoExplore", *parts]
        elif kind != "atari":
            continue
        game, planner, frames = parts[0], parts[1], int(parts[2])
        if frames >= budgets.get((game, planner), 0):
            if frames > budgets.get((game, planner), 0):
                runs[game][planner] = []
            budgets[game, planner] = frames
            runs[game][planner].append(record)
    lines = ["", "### Next to published scores", ""]
    others = list(published["sources"])
    head = ("game", "planner of this package", "score", "frames", "seeds", *others)
    rows = []
    for game, scores in published["scores"].items():
        played = [(name, found) for name, found in runs[game].items() if name != "Random"]
        best, found = max(played, key=lambda pair: _score(pair[1]), default=("", []))
        ours = (best, *_median(found)) if found else ("", "", "", "")
        rows.append((game, *ours, *(_number(scores.get(name)) for name in others)))
    lines += [
        _BEST,
        "",
        *table(head, rows),
        *table(
            ("column", "what", "budget", "numbers from"),
            [
                (name, source["what"], source["budget"], source["source"])
                for name, source in published["sources"].items()
            ],
        ),
        "### Every planner",
        "",
        _EVERY,
        "",
    ]
    names = list(dict.fromkeys(planner for found in runs.values() for planner in found))
    names.sort(key=lambda name: (name != "Random", name))
    rows = [
        (game, *(_cell(runs[game].get(name)) for name in names))
        for game in sorted(runs)
        if runs[game]
    ]
    lines += table(("game", *names), rows)
    rows = []
    for game in sorted(runs):
        by_budget: dict[str, list[str]] = defaultdict(list)
        for name in names:
            if name != "Random" and name in runs[game]:
                _, spent, seeds = _median(runs[game][name])
                by_budget[f"{spent} frames, seeds: {seeds}"].append(name)
        rows += [(game, text, ", ".join(them)) for text, them in by_budget.items()]
    return [*lines, "Frames simulated:", "", *table(("game", "budget", "planners"), rows)]


def _median(found: Sequence[Mapping[str, Any]]) -> tuple[str, str, str]:
    """Return score, frames and seeds of several runs."""
    frames = statistics.median(one["frames"] for one in found)
    return _number(_score(found)), f"{round(frames, -3):,.0f}", str(len(found))


def _score(found: Sequence[Mapping[str, Any]]) -> float:
    return float(statistics.median(one["score"] for one in found))


def _cell(found: Sequence[Mapping[str, Any]] | None) -> str:
    if not found:
        return ""
    if "games" in found[0]:
        return _number(_score(found))
    played = statistics.median(one["game_frames"] for one in found)
    return (
        f"{_number(_score(found))} / {played:,.0f}{'.' if all(o['ended'] for o in found) else ''}"
    )


def _montezuma(records: Records) -> list[str]:
    rows = []
    for name, record in records.items():
        if not name.startswith("montezuma/"):
            continue
        rooms = record["rooms"]
        times = ", ".join(f"{room}: {int(frames):,}" for room, frames in rooms.items())
        rows.append(
            (
                name.split("/")[2],
                f"{record['frames']:,}",
                _wall(record),
                str(len(rooms)),
                _number(record["score"]),
                f"{record['cells']:,}",
                times,
            )
        )
    found = "room: frames until it was found"
    head = ("seed", "frames", "wall time", "rooms", "best score", "cells", found)
    return ["", _WALL, "", *table(head, rows)]


def _wall(record: Mapping[str, Any]) -> str:
    """Return how long a task took, and the load of the machine."""
    return f"{record['seconds']:,.0f} s, load {record['load']:g}"


def _control(records: Records, published: Mapping[str, Any]) -> list[str]:
    runs: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for name, record in records.items():
        if name.startswith("control/"):
            runs[name.split("/")[1]].append(record)
    others = list(published["sources"])
    rows = []
    for task, returns in published["scores"].items():
        ours = ("",) * 5
        if found := runs[task]:
            one = found[0]
            options = one["options"]
            plan = f"{one['plans']} x {options['horizon']} actions of {options['dt']} steps"
            median = statistics.median(each["return"] for each in found)
            ours = (one["planner"], plan, _wall(one), str(len(found)), _number(median))
        rows.append((task, *ours, *(_number(returns.get(name)) for name in others)))
    head = ("task", "planner", "each plan", "wall time", "seeds", "return", *others)
    sources = [
        (name, source["what"], source["budget"], source["source"])
        for name, source in published["sources"].items()
    ]
    return [
        "",
        _ROBOTS,
        "",
        *table(head, rows),
        *table(("column", "what", "budget", "numbers from"), sources),
    ]


def _speed(records: Records) -> list[str]:
    lines = [""]
    if record := records.get("speed/MPPI and CEM"):
        rows = [
            (row["controller"], str(row["plans_per_second"]), f"{row['transitions_per_second']:,}")
            for row in record["rows"]
        ]
        lines += [
            f"One plan for HalfCheetah: 128 candidates of 25 actions; load {record['load']}.",
            "",
            *table(("controller", "plans/s", "transitions/s"), rows),
        ]
    if record := records.get("speed/UCT"):
        rows = [(row["search"], f"{row['transitions_per_second']:,}") for row in record["rows"]]
        lines += [
            f"One plan for CartPole: 200 descents; load {record['load']}.",
            "",
            *table(("search", "transitions/s"), rows),
        ]
    return lines


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.1f}"
