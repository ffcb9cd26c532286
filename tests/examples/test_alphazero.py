"""The learner on tree search learns, and says so when it has not."""

import re
import subprocess
import sys
from pathlib import Path

from PIL import Image

SCRIPT = Path(__file__).parents[2] / "examples" / "alphazero.py"


def _learn(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--out", "curves/curve.png", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600)


def test_it_keeps_the_pole_up(tmp_path: Path) -> None:
    outcome = _learn(tmp_path, "--seconds", "400", "--enough", "200", "--goal", "150")
    assert outcome.returncode == 0, outcome.stderr
    found = re.search(r"seed 0: mean evaluated return ([\d.]+)", outcome.stdout)
    assert found and float(found[1]) >= 150
    with Image.open(tmp_path / "curves" / "curve.png") as curve:
        assert curve.width > 100


def test_a_seed_that_misses_the_goal_is_named(tmp_path: Path) -> None:
    outcome = _learn(tmp_path, "--seconds", "0.1", "--seeds", "3", "--goal", "501")
    assert outcome.returncode == 1 and "seeds [3] did not reach 501" in outcome.stderr
