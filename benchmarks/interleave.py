"""Contenders in separate processes, measured in turn, slice by slice, within one run."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import machine, measured_on, parser, ratio, report, table

HERE = Path(__file__).resolve().parent
ANSWER_SECONDS = 120.0
CLOSE_SECONDS = 10.0
# The beginnings of the names of contenders that are this package.
OURS = ("ours", "workspaces")


@dataclass(frozen=True)
class Entry:
    """One row of a table: a contender, opened in one way.

    Attributes
    ----------
    key : str
        Its name in figures and ratios.
    label : str
        What people read.
    module : str
        The file in ``contenders/`` that opens it.
    group : str
        ``"ours"``, ``"raw"``, ``"states"`` (steps from given states) or ``"forward"``.
    options : dict
        How it is opened.
    """

    key: str
    label: str
    module: str
    group: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Figure:
    """What one entry did in one job: rates in transitions/s, one for each round, or why none."""

    entry: Entry
    rates: list[float] = field(default_factory=list)
    evidence: dict[str, float] = field(default_factory=dict)
    absent: str | None = None
    reason: str | None = None

    @property
    def median(self) -> float | None:
        """Median rate, ``None`` where there is none."""
        return statistics.median(self.rates) if self.rates else None

    def record(self) -> dict[str, Any]:
        """Return the figure as it goes into a JSON file."""
        return {
            "key": self.entry.key,
            "label": self.entry.label,
            "group": self.entry.group,
            "absent": self.absent,
            "reason": self.reason,
            "rate": self.median and round(self.median),
            "rates": [round(rate) for rate in self.rates],
        }


class ContenderDied(RuntimeError):
    """A contender's process ended, or gave no answer, in the middle of a command."""


class Process:
    """A contender's process, in a group of its own so that it ends with all its children."""

    def __init__(self, module: str, interpreters: Mapping[str, str]) -> None:
        environment = dict(os.environ)
        if module.startswith(OURS):
            # The checkout of this script is measured, installed or not.
            paths = [str(HERE.parent), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        self._child = subprocess.Popen(
            [interpreters.get(module, sys.executable), str(HERE / "contender.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=tempfile.gettempdir(),  # MuJoCo writes its log into the current folder
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def ask(
        self, command: str, *, timeout: float = ANSWER_SECONDS, **arguments: Any
    ) -> dict[str, Any]:
        """Send one command and return its answer.

        Raises
        ------
        ContenderDied
            When the process ended or was silent for too long.
        """
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            ready, _, _ = select.select([self._child.stdout], [], [], timeout)
            line = self._child.stdout.readline() if ready else ""
        except BrokenPipeError as error:
            raise ContenderDied(f"the process ended before {command!r}") from error
        if not line:
            raise ContenderDied(f"the process ended, or was silent, at {command!r}")
        answer: dict[str, Any] = json.loads(line)
        if "reason" in answer:
            # Figures are for everybody: no path of this machine belongs in them.
            answer["reason"] = re.sub(r"(/[\w.+-]+){2,}", "...", answer["reason"])[:200]
        return answer

    def close(self) -> None:
        """End the process and whatever it started."""
        with contextlib.suppress(ContenderDied):
            self.ask("close", timeout=CLOSE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Contest:
    """Entries that have one job open at the same time.

    Use it in a ``with`` block; leaving it ends all processes.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        job: Mapping[str, Any],
        *,
        interpreters: Mapping[str, str],
        versions: dict[str, dict[str, str]],
    ) -> None:
        self.figures = {entry.key: Figure(entry) for entry in entries}
        self._job = dict(job)
        self._processes: dict[str, Process] = {}
        self._interpreters = interpreters
        self._versions = versions
        self._order = random.Random(0)

    def __enter__(self) -> Contest:
        try:
            self._open()
        except BaseException:
            # A `with` block that was never entered is never left either.
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        for key, figure in self.figures.items():
            entry = figure.entry
            process = self._processes[key] = Process(entry.module, self._interpreters)
            answer = self._ask(
                key, "open", module=entry.module, job=self._job, options=dict(entry.options)
            )
            if answer is None:
                process.close()
                del self._processes[key]
            else:
                figure.evidence = answer["evidence"]
                self._versions[entry.module] = answer["versions"]

    def __exit__(self, *exception: object) -> None:
        for process in self._processes.values():
            process.close()

    def run(self, *, rounds: int, seconds: float, count: int | None = None) -> None:
        """Measure every entry once a round, each round in another order."""
        keys = list(self._processes)
        for _ in range(rounds):
            self._order.shuffle(keys)
            for key in keys:
                if key not in self._processes:
                    continue
                answer = self._ask(
                    key, "measure", seconds=seconds, count=count or self._job["count"]
                )
                if answer is None:
                    self._processes.pop(key).close()
                    self.figures[key].rates.clear()
                else:
                    self.figures[key].rates.append(answer["transitions"] / answer["seconds"])

    def _ask(self, key: str, command: str, **arguments: Any) -> dict[str, Any] | None:
        figure = self.figures[key]
        try:
            answer = self._processes[key].ask(command, **arguments)
        except ContenderDied as error:
            answer = {"absent": "failed", "reason": str(error)}
        if "absent" in answer:
            figure.absent, figure.reason = answer["absent"], answer["reason"]
            return None
        return answer


def paired_ratio(over: Figure, under: Figure) -> float | None:
    """Return the median, over rounds, of one figure divided by another; ``None`` without both."""
    return ratio(over.rates, under.rates)


def shown(row: Mapping[str, Any]) -> str:
    """Return the rate in a record of a figure, or why there is none."""
    return f"{row['rate']:,}" if row["rate"] else f"{row['absent']}: {row['reason']}"


def method(results: Mapping[str, Any]) -> str:
    """Return the lines that say how contenders were measured, and in which versions."""
    versions: dict[str, set[str]] = {}
    for found in results["versions"].values():
        for package, version in found.items():
            versions.setdefault(package, set()).add(version)
    listed = (f"{name} {' and '.join(sorted(each))}" for name, each in sorted(versions.items()))
    return (
        f"{measured_on(results['machine'])}, in one run: each contender in a process of its own, "
        f"slices interleaved in random order, medians of {results['rounds']} rounds. A ratio is "
        f"the median of the rounds' ratios.\n\nVersions: {', '.join(listed)}.\n"
    )


def contest_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser for a script that runs contests."""
    found = parser(doc)
    found.add_argument("--python", action="append", default=[], metavar="CONTENDER=PATH")
    # Contenders are ended by `finally` blocks, which a plain SIGTERM would skip.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return found


def begun(options: argparse.Namespace, rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return results without figures, and the arguments that all contests of a run share."""
    # Not resolved: a virtual environment is known by the link that its interpreter is.
    pairs = (given.partition("=") for given in options.python)
    interpreters = {name: os.path.abspath(path) for name, _, path in pairs}
    versions: dict[str, Any] = {}
    results = {"machine": machine(), "rounds": rounds, "versions": versions}
    return results, {"interpreters": interpreters, "versions": versions}


def comparison(results: Mapping[str, Any], title: str, over: Mapping[str, str]) -> str:
    """Return the table of one contest.

    `over` has the keys of entries whose rates are divided by those of all, with the heads of these
    columns.
    """
    rates = {row["key"]: row["rates"] for row in results["rows"]}
    lines = []
    for row in results["rows"]:
        ratios = (ratio(rates[key], row["rates"]) for key in over)
        lines.append((row["label"], shown(row), *("" if x is None else f"{x:.2f}" for x in ratios)))
    head = ("contender", "transitions/s", *over.values())
    return "\n".join([method(results), f"{title}:", "", *table(head, lines)])


def compare(
    doc: str | None,
    name: str,
    entries: Sequence[Entry],
    job: Mapping[str, Any],
    title: str,
    over: Mapping[str, str],
    seconds: float,
) -> None:
    """Run one contest, with slices of so many seconds; print its table, and publish it."""
    options = contest_parser(doc).parse_args()
    rounds = 3 if options.quick else 11
    results, shared = begun(options, rounds)
    with Contest(entries, job, **shared) as contest:
        contest.run(rounds=rounds, seconds=seconds / 2 if options.quick else seconds)
    results["rows"] = [figure.record() for figure in contest.figures.values()]
    report(name, results, comparison(results, title, over), quick=options.quick)
