"""Searches on states help learners, in the two examples that show it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")


def _printed(directory: Path, script: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    outcome = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=900)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern + r" (-?[\d,]+(?:\.\d+)?)", text)
    assert found, text
    return float(found[1].replace(",", ""))


@pytest.mark.full
def test_a_search_makes_a_policy_better(tmp_path: Path) -> None:
    printed = _printed(tmp_path, "guided_search.py", "--steps", "1024", "--horizon", "40")
    alone = _number("mean return of the policy:", printed)
    assert _number("mean return with the search:", printed) > alone + 50


@pytest.mark.full
def test_backplay_learns_what_plain_ppo_does_not(tmp_path: Path) -> None:
    printed = _printed(tmp_path, "backplay.py", "--size", "12", "--steps", "40000")
    assert _number("the search found a path of", printed) >= 22
    assert _number("episodes begin at step", printed) == 0
    assert _number("mean return with Backplay:", printed) > 0.5
    assert _number("mean return of plain PPO:", printed) < 0.1


@pytest.mark.full
def test_a_search_says_what_came_of_a_little_learning(tmp_path: Path) -> None:
    printed = _printed(tmp_path, "guided_search.py", "--steps", "256", "--horizon", "10")
    assert _number("mean return of the policy:", printed) > 0
    assert _number("mean return with the search:", printed) > 0


@pytest.mark.full
def test_backplay_says_what_came_of_a_little_learning(tmp_path: Path) -> None:
    printed = _printed(tmp_path, "backplay.py", "--size", "6", "--steps", "1000")
    assert _number("the search found a path of", printed) >= 10
    assert _number("episodes begin at step", printed) >= 0
