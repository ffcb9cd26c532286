"""The process of one contender: it reads commands to open a job or run a slice, and answers them.

Each command is a JSON line on stdin, and each answer is a JSON line on stdout. Only the standard
library is imported here, so that any interpreter with the contender's packages can be used, and
imports are part of the start-up times.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from contenders.contract import CannotDo, Job, Work

PROC = Path("/proc")


class Contender:
    """Answers the commands of the harness with one method each."""

    def __init__(self) -> None:
        self._work: Work | None = None

    def open(self, module: str, job: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """Open a job; say what it showed and which packages did it."""
        contender = importlib.import_module(f"contenders.{module}")
        self._work = contender.open_job(Job(**job), **options)
        gc.collect()
        gc.freeze()
        return {"evidence": self._work.evidence, "versions": _versions(contender.PACKAGES)}

    def measure(self, seconds: float, count: int) -> dict[str, Any]:
        """Run one slice."""
        assert self._work is not None
        transitions, taken = self._work.measure(seconds, count)
        return {"transitions": transitions, "seconds": taken}

    def start_up(self, module: str, job: dict[str, Any], n_workers: int) -> dict[str, Any]:
        """Time this process's first and second environment, each up to its first batch."""
        contender = importlib.import_module(f"contenders.{module}")
        start = time.perf_counter()
        importlib.import_module(contender.PACKAGES[0])
        imported = time.perf_counter()
        first = contender.make(Job(**job), n_workers=n_workers)
        contender.first_batch(first, Job(**job))
        first_done = time.perf_counter()
        second = contender.make(Job(**job), n_workers=n_workers)
        contender.first_batch(second, Job(**job))
        second_done = time.perf_counter()
        first.close()
        second.close()
        return {
            "import": imported - start,
            "first": first_done - imported,
            "second": second_done - first_done,
        }

    def memory(
        self, module: str, job: dict[str, Any], n_workers: int, batches: int
    ) -> dict[str, Any]:
        """Step some batches, reading what comes back; return each child's private megabytes."""
        contender = importlib.import_module(f"contenders.{module}")
        env = contender.make(Job(**job), n_workers=n_workers)
        state, _, _ = env.reset()
        actions = [0] * job["count"]
        states = [state] * job["count"]
        for _ in range(batches):
            results = env.step_batch(actions, states=states)
            # Pages that only the worker has touched would be counted as its own.
            for observation in results[1]:
                observation.sum()
        found = private_megabytes(wait_for_descendants(os.getpid()))
        env.close()
        return {"children": found}

    def cold(
        self, module: str, job: dict[str, Any], n_workers: int | None, **batches: Any
    ) -> dict[str, Any]:
        """Make a new environment and time batches; `batches` are arguments of ``time_batches``."""
        contender = importlib.import_module(f"contenders.{module}")
        seconds = contender.time_batches(Job(**job), n_workers=n_workers, **batches)
        return {"seconds": seconds}

    def close(self) -> dict[str, Any]:
        """End what was opened."""
        if self._work is not None:
            self._work.close()
        return {}


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            # A checkout that is not installed has its version in the module alone.
            version = getattr(sys.modules.get(package), "__version__", None)
            if version is not None:
                found[package] = str(version)
    return found


def _answer(contender: Contender, command: dict[str, Any]) -> dict[str, Any]:
    try:
        result: dict[str, Any] = getattr(contender, command.pop("command"))(**command)
        return result
    except CannotDo as error:
        return {"absent": "cannot", "reason": str(error)}
    except ModuleNotFoundError as error:
        return {"absent": "missing", "reason": f"no module named {error.name!r}"}
    except Exception as error:
        # What a rival raises is a result of the comparison, not the end of it.
        first_line = str(error).partition("\n")[0]  # tables have one line for each contender
        return {"absent": "failed", "reason": f"{type(error).__name__}: {first_line}"}


def main() -> None:
    """Answer commands until stdin ends."""
    # Simulators print on stdout: the answers take the pipe, everything else goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    contender = Contender()
    for line in sys.stdin:
        answers.write(json.dumps(_answer(contender, json.loads(line))) + "\n")


def descendants(pid: int) -> list[int]:
    """Return all children of ``pid``, and theirs."""
    parents: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                # It ended while the list was being read.
                continue
            # The name, in parentheses, may itself hold blanks and parentheses.
            parent = int(stat.rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    pending = [pid]
    while pending:
        children = parents.get(pending.pop(), [])
        found += children
        pending += children
    return found


def wait_for_descendants(pid: int, *, seconds: float = 0.5) -> list[int]:
    """Return the descendants of ``pid`` once short-lived ones had time to end."""
    time.sleep(seconds)
    return descendants(pid)


def private_megabytes(pids: list[int]) -> list[float]:
    """Return each process's private memory, clean and dirty, in MB (10^6 bytes), largest first."""
    sizes = []
    for pid in pids:
        kibibytes = 0
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith(("Private_Clean:", "Private_Dirty:", "Private_Hugetlb:")):
                kibibytes += int(line.split()[1])
        sizes.append(round(kibibytes * 1024 / 1e6, 1))
    return sorted(sizes, reverse=True)


if __name__ == "__main__":
    main()
