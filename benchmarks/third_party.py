"""Try the environments of other packages, and write the table of what was found.

    python benchmarks/third_party.py                     # all packages of its list, as installed
    python benchmarks/third_party.py --only 'highway'    # ids that match
    python benchmarks/third_party.py --each 40           # at most 40 ids of each package

Each id is tried in a process of its own (``benchmarks/third_party_trial.py``), which compares what
this package does with what ``gymnasium.make`` does. Outcomes:

- exact: every row equalled that of an episode that was never saved or restored;
- approximate: made, with ``env.exactness == "approximate"`` and a note;
- refused: ``make`` raised an error that says why;
- noticed: an error was raised in use, before or instead of a wrong row;
- silently wrong: a row differed, without an error or a note.

An id that Gymnasium itself cannot make or step is listed with its error. Results are kept in
``docs/figures/third_party.json``; ``docs/figures/third_party.md`` is written from all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

FIGURES = pathlib.Path(__file__).resolve().parent.parent / "docs" / "figures"
FOUND = FIGURES / "third_party.json"
TABLE = FIGURES / "third_party.md"
TRIAL = pathlib.Path(__file__).resolve().parent / "third_party_trial.py"
OUTCOMES = ("exact", "approximate", "refused", "noticed", "silently wrong")
_LONGEST = 160


def installed_ids() -> list[tuple[str, str, str]]:
    """Return package, id and module to import of what other packages have registered."""
    asked = [sys.executable, "-W", "ignore", str(TRIAL), "--list"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    listed: list[tuple[str, str, str]] = json.loads(done.stdout.splitlines()[-1])
    return listed


def spread(ids: list[tuple[str, str, str]], most: int) -> list[tuple[str, str, str]]:
    """Return at most `most` ids of each package, spread evenly over its sorted ids."""
    packages: dict[str, list[tuple[str, str, str]]] = {}
    for one in sorted(map(tuple, ids)):
        packages.setdefault(one[0], []).append(one)
    chosen = []
    for found in packages.values():
        count = min(most, len(found))
        chosen += [found[index * len(found) // count] for index in range(count)]
    return chosen


def attempt(name: str, module: str, options: argparse.Namespace) -> dict[str, Any]:
    """Try one id in a process of its own; return what it reports."""
    command = [sys.executable, "-W", "ignore", str(TRIAL), name, "--seconds", str(options.seconds)]
    command += ["--module", module]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=options.timeout)
    except subprocess.TimeoutExpired:
        # The trial's own group: its workers end with it.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"outcome": "failed", "said": f"not tried within {options.timeout:.0f} s"}
    found = [line for line in out.splitlines() if line.startswith('{"outcome"')]
    if found:
        report: dict[str, Any] = json.loads(found[-1])
        return {**report, "said": without_folders(report["said"])}
    lines = [line for line in err.splitlines() if line.strip()] or ["nothing was printed"]
    return {"outcome": "failed", "said": f"ended with {process.returncode}: {lines[-1]}"}


def without_folders(said: str) -> str:
    """Return `said` with paths that begin at the folder of the installed packages.

    >>> without_folders('no file "/tmp/mine/lib/python3.11/site-packages/doom/doom.wad"')
    'no file "site-packages/doom/doom.wad"'
    """
    return re.sub(r"/[^\s\"']*/(?=site-packages/)", "", said)


def version(package: str) -> str:
    """Return the version of the distribution that the module `package` comes from."""
    names = importlib.metadata.packages_distributions().get(package, [package])
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
        return importlib.metadata.version(names[0])
    return "?"


def tables(known: dict[str, dict[str, Any]]) -> str:
    """Return the Markdown tables of all reports."""
    counts: dict[str, Counter[str]] = {}
    told: dict[tuple[str, str, str], list[str]] = {}
    for name, report in sorted(known.items()):
        package = f"{report['package']} {report['version']}"
        counts.setdefault(package, Counter())[report["outcome"]] += 1
        if report["said"]:
            said = " ".join(report["said"].split()).replace("|", "/")
            said = said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."
            told.setdefault((package, report["outcome"], said), []).append(name)
    head = ["package", *OUTCOMES, "not tried"]
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    total: Counter[str] = Counter()
    for package, found in [*sorted(counts.items()), ("all", total)]:
        other = sum(found.values()) - sum(found[outcome] for outcome in OUTCOMES)
        cells = [package, *(str(found[outcome] or "") for outcome in OUTCOMES), str(other or "")]
        lines.append(f"| {' | '.join(cells)} |")
        if found is not total:
            total.update(found)
    lines += ["", "| environments | outcome | what was said |", "| --- | --- | --- |"]
    for (package, outcome, said), names in sorted(told.items()):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        shown = ", ".join(f"`{name}`" for name in names[:3])
        lines.append(f"| {shown}{more} | {package}: {outcome} | {said} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Try, keep, write; the status is 1 if anything is silently wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a regular expression that ids have to match")
    parser.add_argument("--missing", action="store_true", help="only ids without a result")
    parser.add_argument("--each", type=int, default=40, help="ids of each package at most (40)")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds to compare each id (4)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each id (120)")
    options = parser.parse_args()
    known = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    begin, wrong = time.monotonic(), 0
    ids = [one for one in installed_ids() if re.search(options.only, one[1])]
    for package, name, module in spread(ids, options.each):
        if options.missing and name in known:
            continue
        report = {"package": package, "version": version(package), **attempt(name, module, options)}
        known[name] = report
        wrong += report["outcome"] == "silently wrong"
        said = report["said"].splitlines()[0][:140] if report["said"] else ""
        spent = time.monotonic() - begin
        print(f"{spent:6.0f} s  {name}: {report['outcome']}  {said}", flush=True)
        FOUND.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
        TABLE.write_text(tables(known))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
