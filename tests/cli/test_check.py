"""``python -m plangym_like check``: what it prints and how it ends."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plangym_like.cli import main

QUICK = ["--states", "3", "--steps", "4", "--workers", ""]
BROKEN_ENVS = Path(__file__).parents[1] / "testing"


def test_it_is_clean_if_every_check_passed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "CartPole-v1", "FrozenLake-v1", *QUICK, "--seed", "3"]) == 0
    told = capsys.readouterr().out
    assert "CartPole-v1: every check passed" in told and "FrozenLake-v1: every" in told


def test_it_fails_if_a_check_failed() -> None:
    command = [sys.executable, "-m", "plangym_like", "check", "broken_envs:ClassCounter", "--json"]
    command += ["--states", "3", "--steps", "20", "--workers", ""]
    outcome = subprocess.run(
        command, capture_output=True, text=True, cwd=BROKEN_ENVS, timeout=600, check=False
    )
    assert outcome.returncode == 1, outcome.stderr
    report = json.loads(outcome.stdout)
    assert not report["ok"] and report["failed"][0]["check"] == "repeat"
    assert report["failed"][0]["field"] == "reward" and report["failed"][0]["step"] == 31


def test_arguments_reach_make(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "is_slippery=False", "--snapshot", "pickle", "--json"]
    assert main(["check", "CartPoll-v1", "FrozenLake-v1", *QUICK, *settings]) == 2
    failed, passed = map(json.loads, capsys.readouterr().out.splitlines())
    assert failed["name"] == "CartPoll-v1" and not failed["ok"]
    assert failed["error"].startswith("NameNotFound: ")
    assert passed["snapshot"] == "pickle" and passed["ok"] and "error" not in passed
    assert main(["check", "FrozenLake-v1", *QUICK, "--set", "map_name=9x9"]) == 2
    assert "KeyError: '9x9'" in capsys.readouterr().err
