"""Play games and robots with every planner, and keep the scores for docs/results.md.

    python benchmarks/results.py                             # all of it: many hours
    python benchmarks/results.py --only MsPacman             # tasks whose name matches
    python benchmarks/results.py --frames 5000000 --seeds 5  # larger budgets
    python benchmarks/results.py --page                      # write the page again, nothing else

Each task is one planner on one game or robot with one seed. Its record goes to
``docs/figures/results.json`` as soon as it is done. Tasks that already have a record are
skipped, so the work can be done in pieces. Go-Explore's search of Montezuma's Revenge
takes hours: it is saved every five minutes, and the next call continues it. ``docs/results.md`` is
written from the records; its table of all planners has only those with 400,000 frames.

Budgets are counted in frames of the console or steps of the simulator, so that scores do not depend
on the machine. Where two implementations are compared, seconds are those of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import control
import equal_budgets
import results_page
from atari_results import GAMES, PLANNERS, montezuma, play_game
from harness import FIGURES, known

FOUND = FIGURES / "results.json"
# Published scores, each with its source and its budget, copied by hand from those sources.
PUBLISHED = FIGURES / "published.json"
FRAMES, MONTEZUMA_FRAMES = 400_000, 4_000_000


def tasks(frames: int, seeds: int) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield the name, the function and the arguments of each task, the most telling ones first."""
    yield from equal_budgets.tasks()
    for seed in range(max(seeds, 3)):
        yield (
            f"montezuma/{MONTEZUMA_FRAMES}/{seed}",
            montezuma,
            {"frames": MONTEZUMA_FRAMES, "seed": seed},
        )
    yield "speed/MPPI and CEM", control.planning_speed, {}
    for task in control.TASKS:
        for seed in range(seeds):
            yield f"control/{task}/{seed}", control.play_task, {"task": task, "seed": seed}
    for game in GAMES:
        for planner in PLANNERS:
            for seed in range(seeds):
                yield (
                    f"atari/{game}/{planner}/{frames}/{seed}",
                    play_game,
                    {"game": game, "planner": planner, "frames": frames, "seed": seed},
                )


def main() -> int:
    """Do the tasks that have no record yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a regular expression for names of tasks")
    parser.add_argument(
        "--frames", type=int, default=FRAMES, help="frames for each planner on each game"
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument(
        "--checkpoints",
        type=pathlib.Path,
        default=pathlib.Path("build/searches"),
        help="where Go-Explore saves its search, to continue it if it is stopped (build/searches)",
    )
    parser.add_argument("--page", action="store_true", help="write the page from the records")
    options = parser.parse_args()
    records = known("results")
    for name, do, arguments in tasks(options.frames, options.seeds):
        if options.page or name in records or not re.search(options.only, name):
            continue
        if do is montezuma:
            arguments["folder"] = options.checkpoints
        started = time.perf_counter()
        record = do(n_workers=options.workers, **arguments)
        record.setdefault("seconds", round(time.perf_counter() - started, 1))
        record["load"] = round(os.getloadavg()[0], 1)
        records[name] = record
        FOUND.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n")
        print(f"{name}: {json.dumps(record)}", flush=True)
    results_page.write(records, json.loads(PUBLISHED.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
