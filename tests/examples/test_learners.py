"""The learners learn, and say so when they have not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from usual import first_of

EXAMPLES = Path(__file__).parents[2] / "examples"


def _learn(directory: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = str(EXAMPLES / f"{name}.py")
    command = [sys.executable, script, "--out", "curves/curve.png", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=1150)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "arguments", "goal"),
    [
        ("a2c", ["--enough", "300"], 195),
        ("dqn", ["--enough", "300"], 195),
        ("reinforce", ["--enough", "250"], 195),
        ("alphazero", ["--enough", "200", "--goal", "150"], 150),
    ],
)
def test_it_keeps_the_pole_up(tmp_path: Path, name: str, arguments: list[str], goal: int) -> None:
    # It stops when it is good enough, so the machine's speed does not matter.
    outcome = _learn(tmp_path, name, "--seconds", "1000", *arguments)
    assert outcome.returncode == 0, outcome.stderr
    found = re.search(r"seed 0: mean evaluated return ([\d.]+)", outcome.stdout)
    assert found and float(found[1]) >= goal
    with Image.open(tmp_path / "curves" / "curve.png") as curve:
        assert curve.width > 100


@pytest.mark.parametrize(
    ("name", "arguments", "goal"),
    first_of(
        [
            ("reinforce", ["--seconds", "0.1", "--processes", "0"], 195),
            ("a2c", ["--seconds", "0", "--goal", "501"], 501),
            ("dqn", ["--seconds", "0.1"], 195),
            ("alphazero", ["--seconds", "0.1", "--goal", "501"], 501),
        ]
    ),
)
def test_a_seed_that_misses_the_goal_is_named(
    tmp_path: Path, name: str, arguments: list[str], goal: int
) -> None:
    outcome = _learn(tmp_path, name, "--seeds", "3", *arguments)
    assert outcome.returncode == 1 and f"seeds [3] did not reach {goal}" in outcome.stderr
    with Image.open(tmp_path / "curves" / "curve.png") as curve:
        assert curve.width > 100


@pytest.mark.full
def test_self_play_is_continued_from_its_checkpoint(tmp_path: Path) -> None:
    small = ["--games", "4", "--simulations", "4", "--opponent", "2", "--matches", "2"]
    script, curves = str(EXAMPLES / "connect_four.py"), []
    for options in ([], ["--resume"]):
        command = [sys.executable, script, "--seconds", "0", "--out", "c4.pt", *small, *options]
        outcome = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert outcome.returncode in (0, 1), outcome.stderr
        curves.append(re.findall(r"(\d+) games: \d+% against UCT", outcome.stdout))
    assert curves == [["4"], ["8"]]
