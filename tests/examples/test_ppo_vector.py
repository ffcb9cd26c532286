"""PPO on a vectorised environment learns, and repeats itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "ppo_vector.py"


def _learn(directory: Path, *arguments: str) -> list[tuple[int, float]]:
    """Return the numbers of steps that were printed, each with the mean return."""
    command = [sys.executable, "-W", "error", str(SCRIPT), *arguments]
    outcome = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600)
    assert outcome.returncode == 0, outcome.stderr
    found = re.findall(
        r"^([\d,]+) steps: mean return of the last \d+ episodes (-?[\d.]+) \([\d,]+ steps/s\)$",
        outcome.stdout,
        re.MULTILINE,
    )
    assert len(found) == outcome.stdout.count("\n")
    return [(int(steps.replace(",", "")), float(score)) for steps, score in found]


@pytest.mark.full
def test_it_learns_to_keep_the_pole_up(tmp_path: Path) -> None:
    progress = _learn(tmp_path, "--steps", "60000")
    assert progress[0][0] == 10_240 and progress[-1][0] == 58 * 1024
    assert progress[0][1] < 130 and progress[-1][1] > 250


def test_it_runs(tmp_path: Path) -> None:
    (last,) = _learn(tmp_path, "--steps", "1100", "--workers", "2")
    assert last[0] == 1024 and last[1] > 0


@pytest.mark.full
def test_a_seed_learns_the_same_with_processes(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    arguments = ["--env", "Hopper-v5", "--steps", "2100", "--seed", "3"]
    once = _learn(tmp_path, *arguments)
    assert once[-1][0] == 2048 and once[-1][1] > 0
    assert once == _learn(tmp_path, *arguments, "--workers", "2")
