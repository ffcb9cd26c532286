"""The process of one contender: it reads commands to open a job or run a slice, and answers them.

Each command is a JSON line on stdin, and each answer is a JSON line on stdout. Only the standard
library is imported here, so that any interpreter with the contender's packages can be used.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import json
import os
import platform
import sys
from typing import Any

from contenders.contract import CannotDo, Job, Work


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


if __name__ == "__main__":
    main()
