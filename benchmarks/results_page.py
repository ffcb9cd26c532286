"""Writes docs/results.md from the records of benchmarks/results.py and from published numbers."""

from __future__ import annotations

import pathlib
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from harness import table

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results.md"
BEGIN = "<!-- what follows is written by benchmarks/results_page.py -->"
_UCT = (
    "As in M. Bellemare et al., JAIR 47, 2013: an action lasts 5 frames, and each is planned with "
    "150,000 frames, to a depth of 60 actions below a new node."
)
_ROLLOUT_IW = (
    "As in W. Bandres et al., AAAI 2018: an action lasts 15 frames, and games have at most 1,200 "
    "actions. Their planner had 0.5 seconds an action on a machine of 2017. Here, each planner has "
    "as many frames as this gave them on average, or fewer if nothing new is left. RolloutIW is "
    "their variant NS+RA, with pairs of colours of tiles now and before as features. Unlike "
    "theirs, it subtracts no background, and takes only actions that the game knows. The other two "
    "see the RAM, and no cost of a death."
)
_CEM = (
    "As in C. Pinneri et al., CoRL 2020: 200 actions of 1 step, each planned with the same number "
    "of plans of 30 actions. Options are those of the authors' code "
    "(https://github.com/martius-lab/iCEM, icem/settings). The paper shows curves, no numbers. "
    "Mean return, and the lowest and highest of several seeds."
)
_EVERY = (
    "Score / frames of play, of one game with one seed; a game that has ended has a full stop. "
    "Random: the mean of 20 games. `FractalMonteCarlo`, `BeamSearch` and `GoExplore` search once, "
    "with the whole budget, and the score is that of the best game that they have seen. The others "
    "plan each action of 16 frames with an equal part of the budget, and stop with the game, so "
    "they spend less if it is short."
)
_FRAMES = 400_000
_MONTEZUMA = (
    "One search with Go-Explore, whose cells are rooms and positions that it reads from the RAM. "
    "The last columns say how many rooms were found within so many million frames. Wall times are "
    "those of two cores on which other programs were running: the load is the mean number of "
    "processes that wanted a core at the end."
)
_MILLIONS = (0.5, 1, 2, 4, 10, 30, 100)
_OTHERS = (
    "Published scores, in ascending order of their frames. All are means, but each score above is "
    "that of the best game of a single search. All but the last are of policies that see the "
    "screen and cannot return to a state; the last is of searches with more than 50 seeds."
)
_ROBOTS = "Returns of 1,000 steps, of one episode with one seed."
Record = Mapping[str, Any]
Records = Mapping[str, Record]


def write(records: Records, published: Mapping[str, Any]) -> None:
    """Write the tables below the text of the page."""
    text = PAGE.read_text().split(BEGIN)[0]
    PAGE.write_text(f"{text}{BEGIN}\n\n{tables(records, published)}")


def tables(records: Records, published: Mapping[str, Any]) -> str:
    """Return all tables that have records, as Markdown."""
    parts: list[str] = []
    for title, text, rows in (
        ("UCT with 150,000 frames an action", _UCT, _uct(records, published)),
        ("Rollout-IW in almost real time", _ROLLOUT_IW, _rollout_iw(records, published)),
        ("CEM and iCEM with equal numbers of plans", _CEM, _cem(records)),
        (f"All planners with {_FRAMES:,} frames", _EVERY, _every(records)),
        ("Rooms of Montezuma's Revenge", _MONTEZUMA, _montezuma(records, published)),
        ("Robots", _ROBOTS, _control(records)),
        ("Planning speed", "", _speed(records)),
    ):
        if rows:
            parts += [f"## {title}", "", *([text, ""] if text else []), *rows]
    return "\n".join(parts).rstrip() + "\n"


def _runs(records: Records, kind: str) -> dict[tuple[str, ...], list[Record]]:
    """Return the records of a kind of task by the parts of their names, without the seed."""
    found: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for name, record in records.items():
        first, *parts = name.split("/")
        if first == kind:
            found[tuple(parts[:-1])].append(record)
    return found


def _sources(published: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    rows = [
        (name, source["what"], source["budget"], source["source"])
        for name, source in published["sources"].items()
        if name in columns
    ]
    return table(("column", "what", "budget", "numbers from"), rows)


def _uct(records: Records, published: Mapping[str, Any]) -> list[str]:
    columns = ("random", "human", "UCT 2013")
    rows = [
        (
            game,
            _number(_median(found, "score")),
            f"{_median(found, 'frames_per_action'):,.0f}",
            f"{_median(found, 'actions'):,.0f}",
            str(len(found)),
            *(_number(published["scores"][game][column]) for column in columns),
        )
        for (game,), found in _runs(records, "uct-2013").items()
    ]
    head = ("game", "UCT", "frames an action", "actions", "seeds", *columns)
    return [*table(head, rows), *_sources(published, columns)] if rows else []


def _rollout_iw(records: Records, published: Mapping[str, Any]) -> list[str]:
    columns = ("random", "human", "Rollout-IW")
    runs = _runs(records, "rollout-iw")
    planners = ("RolloutIW", "UCT", "FractalMonteCarlo")
    rows = []
    for game in sorted({game for game, _ in runs}):
        ours = []
        for planner in planners:
            found = runs.get((game, planner))
            ours.append(
                f"{_number(_median(found, 'score'))} / {_median(found, 'frames_per_action'):,.0f}"
                if found
                else ""
            )
        seeds = " / ".join(str(len(runs.get((game, planner), ()))) for planner in planners)
        scores = published["scores"][game]
        rows.append((game, *ours, seeds, *(_number(scores[column]) for column in columns)))
    head = ("game", *(f"{name}: score / frames an action" for name in planners))
    head += ("seeds of each",)
    return [*table((*head, *columns), rows), *_sources(published, columns)] if rows else []


def _cem(records: Records) -> list[str]:
    runs = _runs(records, "samples")
    rows = []
    for robot, samples in sorted({(robot, int(samples)) for robot, _, samples in runs}):
        pair = [runs.get((robot, planner, str(samples)), []) for planner in ("CEM", "ICEM")]
        seeds = " and ".join(str(n) for n in sorted({len(found) for found in pair}))
        rows.append((robot, str(samples), *(_spread(found) for found in pair), seeds))
    return table(("robot", "plans an action", "CEM", "iCEM", "seeds"), rows) if rows else []


def _spread(found: Sequence[Record]) -> str:
    """Return the mean return, and the lowest and highest one of several seeds."""
    if not found:
        return ""
    returns = [record["return"] for record in found]
    mean = _number(statistics.mean(returns))
    if len(returns) == 1:
        return mean
    return f"{mean} ({_number(min(returns))} to {_number(max(returns))})"


def _every(records: Records) -> list[str]:
    runs: dict[str, dict[str, list[Record]]] = defaultdict(dict)
    for (game, planner, frames), found in _runs(records, "atari").items():
        if int(frames) == _FRAMES:
            runs[game][planner] = found
    names = list(dict.fromkeys(planner for found in runs.values() for planner in found))
    names.sort(key=lambda name: (name != "Random", name))
    rows = [(game, *(_cell(runs[game].get(name)) for name in names)) for game in sorted(runs)]
    return table(("game", *names), rows) if rows else []


def _median(found: Sequence[Record], key: str) -> float:
    return float(statistics.median(record[key] for record in found))


def _cell(found: Sequence[Record] | None) -> str:
    if not found:
        return ""
    score = _number(_median(found, "score"))
    if "games" in found[0]:
        return score
    ended = "." if all(record["ended"] for record in found) else ""
    return f"{score} / {_median(found, 'game_frames'):,.0f}{ended}"


def _montezuma(records: Records, published: Mapping[str, Any]) -> list[str]:
    rows = []
    names = [name.split("/")[1:] for name in records if name.startswith("montezuma/")]
    for frames, seed in sorted((int(frames), int(seed)) for frames, seed in names):
        record = records[f"montezuma/{frames}/{seed}"]
        when = [int(first) for first in record["rooms"].values()]
        counts = (
            str(sum(first <= 1e6 * most for first in when)) if 1e6 * most <= frames else ""
            for most in _MILLIONS
        )
        score, cells = _number(record["score"]), f"{record['cells']:,}"
        rows.append((f"{record['frames']:,}", seed, score, cells, _wall(record), *counts))
    head = ("frames", "seed", "best score", "cells", "wall time")
    head += tuple(f"rooms at {most:g} M" for most in _MILLIONS)
    others = [
        (each["what"], f"{each['frames']:,}", _number(each["score"]), each["source"])
        for each in published["montezuma"]
    ]
    theirs = table(("published", "frames", "score", "numbers from"), others)
    return [*table(head, rows), _OTHERS, "", *theirs] if rows else []


def _wall(record: Record) -> str:
    """Return how long a task took, and the load of the machine if it is known."""
    load = f", load {record['load']:g}" if "load" in record else ""
    return f"{record['seconds']:,.0f} s{load}"


def _control(records: Records) -> list[str]:
    rows = []
    for (task,), found in _runs(records, "control").items():
        one = found[0]
        options = one["options"]
        plan = f"{one['plans']} x {options['horizon']} actions of {options['dt']} steps"
        score = _number(_median(found, "return"))
        rows.append((task, one["planner"], plan, _wall(one), str(len(found)), score))
    head = ("task", "planner", "each plan", "wall time", "seeds", "return")
    return table(head, rows) if rows else []


def _speed(records: Records) -> list[str]:
    lines: list[str] = []
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
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.1f}"
