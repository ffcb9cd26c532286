"""The learners in examples/ learn, and say so when they have not."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path

import pytest
from PIL import Image
from scripts import assert_refused, number, output_of, run
from usual import first_of


def _learn(directory: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(directory, f"{name}.py", "--out", "curves/curve.png", *arguments)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "arguments", "goal"),
    [
        ("a2c", ["--enough", "300"], 195),
        ("dqn", ["--enough", "300"], 195),
        ("reinforce", ["--enough", "250"], 195),
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
    small += ["--seconds", "0", "--out", "c4.pt"]
    curves = []
    for options in ([], ["--resume"]):
        outcome = run(tmp_path, "connect_four.py", *small, *options)
        assert outcome.returncode in (0, 1), outcome.stderr
        curves.append(re.findall(r"(\d+) games: \d+% against UCT", outcome.stdout))
    assert curves == [["4"], ["8"]]
    record = json.loads((tmp_path / "c4.json").read_text())
    assert [point["games"] for point in record["curve"]] == [4, 8] and len(record["game"]) >= 7


@pytest.mark.parametrize(
    ("option", "words"), [("--resume", "there is no no.pt"), ("--perfect", "pip install bitbully")]
)
def test_what_is_missing_is_named_before_the_first_game(
    tmp_path: Path, option: str, words: str
) -> None:
    if option == "--perfect" and importlib.util.find_spec("bitbully"):
        pytest.skip("BitBully is installed")
    assert_refused(tmp_path, words, "connect_four.py", option, "--out", "no.pt")


@pytest.mark.parametrize(
    ("path", "words"),
    [("run.json", "must end with .pt"), ("file/c4.pt", "no files can be written to")],
)
def test_a_checkpoint_has_a_name_of_its_own_in_a_folder(
    tmp_path: Path, path: str, words: str
) -> None:
    (tmp_path / "file").touch()
    assert_refused(tmp_path, words, "connect_four.py", "--out", path)


@pytest.mark.parametrize(
    ("script", "env", "words"),
    first_of(
        [
            ("dqn.py", "Pendulum-v1", "actions must be discrete"),
            ("a2c.py", "FrozenLake-v1", "observations must be vectors"),
            ("dqn.py", "CartPoll-v1", "Did you mean: `CartPole`"),
            ("reinforce.py", "no_module:Foo-v0", "No module named 'no_module'"),
        ]
    ),
)
def test_what_cannot_be_learned_is_a_clear_error(
    tmp_path: Path, script: str, env: str, words: str
) -> None:
    assert_refused(tmp_path, words, script, "--env", env)


def _ppo(directory: Path, *arguments: str) -> list[tuple[int, float]]:
    """Return the numbers of steps that PPO printed, each with the mean return."""
    lines = output_of(directory, "ppo_vector.py", *arguments)
    found = re.findall(
        r"^([\d,]+) steps: mean return of the last \d+ episodes (-?[\d.]+) \([\d,]+ steps/s\)$",
        lines,
        re.MULTILINE,
    )
    assert len(found) == lines.count("\n")
    return [(int(steps.replace(",", "")), float(score)) for steps, score in found]


@pytest.mark.full
def test_ppo_learns_to_keep_the_pole_up(tmp_path: Path) -> None:
    progress = _ppo(tmp_path, "--steps", "60000")
    assert progress[0][0] == 10_240 and progress[-1][0] == 58 * 1024
    assert progress[0][1] < 130 and progress[-1][1] > 250


def test_ppo_runs(tmp_path: Path) -> None:
    (last,) = _ppo(tmp_path, "--steps", "1100", "--workers", "2")
    assert last[0] == 1024 and last[1] > 0


@pytest.mark.full
def test_ppo_learns_the_same_with_processes(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    arguments = ["--env", "Hopper-v5", "--steps", "2100", "--seed", "3"]
    once = _ppo(tmp_path, *arguments)
    assert once[-1][0] == 2048 and once[-1][1] > 0
    assert once == _ppo(tmp_path, *arguments, "--workers", "2")


@pytest.mark.full
def test_a_search_makes_a_policy_better(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    printed = output_of(tmp_path, "guided_search.py", "--steps", "1024", "--horizon", "40")
    alone = number("mean return of the policy:", printed)
    assert number("mean return with the search:", printed) > alone + 50


@pytest.mark.full
def test_backplay_learns_what_plain_ppo_does_not(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    printed = output_of(tmp_path, "backplay.py", "--size", "12", "--steps", "40000")
    assert number("the search found a path of", printed) >= 22
    assert number("episodes begin at step", printed) == 0
    assert number("mean return with Backplay:", printed) > 0.5
    assert number("mean return of plain PPO:", printed) < 0.1
