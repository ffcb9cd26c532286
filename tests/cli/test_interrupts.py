"""Ctrl-C: what was found until then is written, except where nothing was found."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from suite import TAXI
from usual import first_of

import plangym_like
from plangym_like.planners import Plan

COMMAND = [sys.executable, "-m", "plangym_like", "plan"]
MODULE = """
import pathlib, time
import gymnasium

def cells(obs, infos):
    pathlib.Path("begun").touch()
    return obs.tolist()

def never():
    pathlib.Path("begun").touch()
    time.sleep(1000)

def slow(obs, infos):
    pathlib.Path("begun").touch()
    time.sleep(1000)
"""


def interrupted(folder: Path, *arguments: str, again: bool = False) -> tuple[int, str, str]:
    """Run `plan`, press Ctrl-C when it has begun, and return status, output and errors."""
    (folder / "mine.py").write_text(MODULE)
    command = [*COMMAND, *arguments, "--seconds", "1000", "--no-images", "--out", "out"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (folder / "begun").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        if again:
            assert process.stderr is not None
            assert "Press Ctrl-C again" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
        shown, errors = process.communicate()
    return process.returncode, shown, errors


@pytest.mark.parametrize("workers", first_of([["--workers", "2"], []]))
def test_what_was_found_is_written(tmp_path: Path, workers: list[str]) -> None:
    options = ["--planner", "go-explore", "--option", "cell_of=mine:cells", *workers]
    status, shown, errors = interrupted(tmp_path, TAXI, *options, "--json")
    assert status == 130 and errors.count("\n") == 1 and "Press Ctrl-C again" in errors
    found: dict[str, Any] = json.loads(shown)
    assert found["interrupted"] and found["score"] == found["replayed_score"]
    with plangym_like.make(TAXI) as env:
        assert Plan.load(tmp_path / "out" / "plan.json").replay(env) == found["score"]


def test_while_an_environment_is_made(tmp_path: Path) -> None:
    status, shown, errors = interrupted(tmp_path, "mine:never")
    assert (status, shown, errors) == (130, "", "plangym-like: interrupted\n")


def test_the_second_one_ends_at_once(tmp_path: Path) -> None:
    options = ["--planner", "go-explore", "--option", "cell_of=mine:slow"]
    status, shown, errors = interrupted(tmp_path, TAXI, *options, again=True)
    assert (status, shown, errors) == (130, "", "plangym-like: interrupted\n")
