"""Runs the examples as their readers do: as scripts, from a directory of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(directory: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an example in `directory`, which need not end well."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / script), *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=1150)


def output_of(directory: Path, script: str, *arguments: str) -> str:
    """Run an example in `directory`, and return what it printed."""
    outcome = run(directory, script, *arguments)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def number(pattern: str, text: str) -> float:
    """Return the number that follows `pattern` in `text`."""
    found = re.search(pattern + r"\s*(-?[\d,]+(?:\.\d+)?)", text)
    assert found, text
    return float(found[1].replace(",", ""))


def assert_refused(directory: Path, words: str, script: str, *arguments: str) -> None:
    """Check that an example ends with a clear error that has these words."""
    outcome = run(directory, script, *arguments)
    assert outcome.returncode == 2
    assert words in outcome.stderr and "Traceback" not in outcome.stderr
