"""Check everything that is installed, and write the support table.

    python benchmarks/support_table.py                     # all of it: seconds for each id
    python benchmarks/support_table.py --only 'Ant|Taxi'   # ids that match

Each environment is checked in its own process (``python -m plangym_like check ID --json``). Each
report is written to ``docs/figures/support.json`` at once, so the work can be done in pieces. A new
report replaces the old one of the same id, unless an extra that the id needs is not installed here.
``docs/checked.md``, and the summary in ``docs/support.md``, are written from all reports.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import re
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from typing import Any

import gymnasium

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
FOUND = DOCS / "figures" / "support.json"
PAGE, SUMMARY = DOCS / "checked.md", DOCS / "support.md"
MARKS = [f"<!-- written by benchmarks/support_table.py: {end} -->\n" for end in ("begin", "end")]
BEGIN = "<!-- what follows is written by benchmarks/support_table.py -->"
HEAD = """\
| environments | saved by | it is | bytes a state | save us | restore us | step us |
| --- | --- | --- | ---: | ---: | ---: | ---: |
"""


def ids() -> Iterator[tuple[str, str]]:
    """Yield group and id of everything that is installed here."""
    for package in ("ale_py", "minigrid"):
        try:
            gymnasium.register_envs(importlib.import_module(package))
        except ImportError:
            print(f"{package} is not installed", file=sys.stderr)
    for name, spec in gymnasium.registry.items():
        maker = spec.entry_point
        place = maker if isinstance(maker, str) else getattr(maker, "__name__", "")
        if place.startswith("ale_py") and name.startswith("ALE/"):
            yield "Atari", name
        elif place.startswith("gymnasium.envs."):
            yield place.split(".")[2].split(":")[0], name
        elif place.startswith("minigrid"):
            yield "MiniGrid", f"minigrid:{name}"
        elif not place.startswith("ale_py"):
            yield "others", name
    for variant in ("MsPacman-v0", "MsPacmanNoFrameskip-v4", "MsPacman-ramDeterministic-v4"):
        if variant in gymnasium.registry:
            yield "Atari", variant
    try:
        from plangym_like.envs.dm_control import load_suite

        yield from (("dm_control", f"{domain}-{task}") for domain, task in load_suite().ALL_TASKS)
    except ImportError:
        print("dm_control is not installed", file=sys.stderr)
    try:
        importlib.import_module("stable_retro")
        yield "stable-retro", "Airstriker-Genesis-v0"
    except ImportError:
        print("stable-retro is not installed", file=sys.stderr)
    try:
        games = importlib.import_module("pgx").available_envs()
        yield from (("pgx", f"pgx/{game}") for game in games)
    except ImportError:
        print("pgx is not installed", file=sys.stderr)


def check(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the report on `name`; where there is none, the reason."""
    command = [sys.executable, "-W", "ignore", "-m", "plangym_like", "check", name, "--json"]
    command += ["--states", str(options.states), "--steps", str(options.steps)]
    command += ["--workers", options.workers]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        return {"ok": False, "reason": f"not checked within {options.timeout:.0f} s"}
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if found:
        report: dict[str, Any] = json.loads(found[-1])
        if "error" in report:
            # The folder of this machine's packages means nothing to others.
            report["reason"] = report["error"].replace(f"{sysconfig.get_path('purelib')}/", "")
        elif report["failed"]:
            report["reason"] = "; ".join(
                f"{failed['check']}: {failed['detail']}" for failed in report["failed"]
            )
        return report
    return {"ok": False, "reason": f"it ended with {done.returncode}"}


def write_pages(known: dict[str, dict[str, Any]]) -> None:
    """Write a table with a row for each id, and a summary with a row for each family."""
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    refused: list[str] = []
    for name, report in sorted(known.items()):
        if report["ok"]:
            groups.setdefault(report["group"], {})[name] = report
        else:
            reason = " ".join(report["reason"].split()).replace("|", "/")
            refused.append(f"| `{name}` | {reason[:300]} |\n")
    exact = sum(report["ok"] and report["exactness"] == "exact" for report in known.values())
    asked = sorted({json.dumps(report["asked"]) for report in known.values()})
    told = "; ".join(
        f"{one['states']} states, each for {one['steps']} steps, on {one['workers']} workers"
        for one in map(json.loads, asked)
    )
    found = f"{len(known)} environments were checked, {exact} of them are exact ({told}).\n"
    parts = [found]
    for group, reports in sorted(groups.items()):
        rows = "".join(_row(f"`{name}`", [report]) for name, report in reports.items())
        parts.append(f"\n## {group}\n\n{HEAD}{rows}")
    if refused:
        head = "| environment | reason |\n| --- | --- |\n"
        parts.append(f"\n## What does not work here\n\n{head}{''.join(refused)}")
    by_hand = PAGE.read_text().partition(BEGIN)[0]
    PAGE.write_text(f"{by_hand}{BEGIN}\n\n{''.join(parts)}")
    rows = "".join(
        _row(f"{group} ({len(reports)})", list(reports.values()))
        for group, reports in sorted(groups.items())
    )
    before, _, rest = SUMMARY.read_text().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    SUMMARY.write_text(f"{before}{MARKS[0]}\n{found}\n{HEAD}{rows}\n{MARKS[1]}{after}")


def _row(name: str, reports: list[dict[str, Any]]) -> str:
    """Return a row of a table: ranges of bytes, and medians of times."""
    sizes = sorted({report["state_nbytes"] for report in reports})
    nbytes = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    times = (
        statistics.median(report[f"{what}_us"] for report in reports)
        for what in ("save", "restore", "step")
    )
    kinds = (
        ", ".join(sorted({report[key] for report in reports})) for key in ("snapshot", "exactness")
    )
    cells = [name, *kinds, nbytes, *(f"{value:,.0f}" for value in times)]
    return f"| {' | '.join(cells)} |\n"


def main() -> int:
    """Check, keep, write; the status is 1 if a check failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a regular expression that ids have to match")
    parser.add_argument("--missing", action="store_true", help="only ids without a report")
    parser.add_argument("--states", type=int, default=16, help="states to continue from (16)")
    parser.add_argument("--steps", type=int, default=20, help="steps from each state (20)")
    parser.add_argument("--workers", default="1,2,3", help="numbers of processes (1,2,3)")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for each (600)")
    parser.add_argument("--seconds", type=float, help="start no check after this time")
    options = parser.parse_args()
    known = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    begin, failed = time.monotonic(), 0
    for group, name in ids():
        if not re.search(options.only, name) or (options.missing and name in known):
            continue
        if options.seconds and time.monotonic() - begin > options.seconds:
            break
        report = {"group": group, **check(name, options)}
        if report.get("reason", "").startswith("MissingExtraError") and name in known:
            print(f"{name}: what was known of it stays; {report['reason']}", flush=True)
            continue
        report["asked"] = {"states": options.states, "steps": options.steps}
        report["asked"]["workers"] = options.workers
        known[name] = report
        failed += bool(report.get("failed"))
        said = "ok" if report["ok"] else report["reason"][:100]
        print(f"{time.monotonic() - begin:6.0f} s  {name}: {said}", flush=True)
        FOUND.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    write_pages(known)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
