"""Check everything that is installed, and write the support table.

    python benchmarks/support_table.py                     # all of it: seconds for each id
    python benchmarks/support_table.py --only 'Ant|Taxi'   # ids that match

Each environment is checked in its own process (``python -m plangym_like check ID --json``). Each
report is written to ``docs/figures/support.json`` at once, so the work can be done in pieces. A new
report replaces the old one of the same id, unless an extra that the id needs is not installed here.
``docs/figures/checked.md`` has a row for each id, and ``docs/figures/support.md`` one for each
family.
"""

from __future__ import annotations

import importlib
import json
import re
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
from harness import FIGURES, known, parser, publish, table

STATES, STEPS, WORKERS = 16, 20, "1,2,3"
TIMEOUT = 600.0
HEAD = ("environments", "saved by", "it is", "bytes a state", "save us", "restore us", "step us")


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


def check(name: str, *more: str, timeout: float = TIMEOUT) -> dict[str, Any]:
    """Return the report on `name`; where there is none, the reason.

    `more` are options of the check.
    """
    command = [sys.executable, "-W", "ignore", "-m", "plangym_like", "check", name, "--json", *more]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"ok": False, "reason": f"not checked within {timeout:.0f} s"}
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


def pages(reports: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """Return a summary with a row for each family, and a page with a row for each id."""
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    refused: list[tuple[str, str]] = []
    for name, report in sorted(reports.items()):
        if report["ok"]:
            groups.setdefault(report["group"], {})[name] = report
        else:
            reason = " ".join(report["reason"].split()).replace("|", "/")
            refused.append((f"`{name}`", reason[:300]))
    exact = sum(report["ok"] and report["exactness"] == "exact" for report in reports.values())
    asked = sorted({json.dumps(report["asked"]) for report in reports.values()})
    told = "; ".join(
        f"{one['states']} states, each for {one['steps']} steps, on {one['workers']} workers"
        for one in map(json.loads, asked)
    )
    found = f"{len(reports)} environments were checked, {exact} of them are exact ({told}).\n"
    summary = [
        _row(f"{group} ({len(each)})", list(each.values()))
        for group, each in sorted(groups.items())
    ]
    page = [found]
    for group, each in sorted(groups.items()):
        rows = [_row(f"`{name}`", [report]) for name, report in each.items()]
        page += [f"## {group}", "", *table(HEAD, rows)]
    if refused:
        page += ["## What does not work here", "", *table(("environment", "reason"), refused)]
    return "\n".join([found, *table(HEAD, summary)]), "\n".join(page)


def _row(name: str, reports: list[dict[str, Any]]) -> list[str]:
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
    return [name, *kinds, nbytes, *(f"{value:,.0f}" for value in times)]


def main() -> int:
    """Check, keep, write; the status is 1 if a check failed."""
    options = parser(__doc__)
    options.add_argument("--only", default="", help="a regular expression that ids have to match")
    chosen = options.parse_args()
    states, steps, workers = (2, 3, "") if chosen.quick else (STATES, STEPS, WORKERS)
    asked = {"states": states, "steps": steps, "workers": workers}
    more = [part for name, value in asked.items() for part in (f"--{name}", str(value))]
    found = known("support")
    begin, failed = time.monotonic(), 0
    for group, name in ids():
        if not re.search(chosen.only, name):
            continue
        report = {"group": group, "asked": asked, **check(name, *more)}
        said = "ok" if report["ok"] else report["reason"][:100]
        print(f"{time.monotonic() - begin:6.0f} s  {name}: {said}", flush=True)
        failed += bool(report.get("failed"))
        # What is known of an id whose extra is not installed here stays.
        if not report.get("reason", "").startswith("MissingExtraError") or name not in found:
            found[name] = report
        if not chosen.quick:
            summary, page = pages(found)
            publish("support", dict(sorted(found.items())), summary)
            (FIGURES / "checked.md").write_text(page, encoding="utf-8")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
