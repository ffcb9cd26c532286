"""Environments of other packages are judged by what Gymnasium alone does."""

from __future__ import annotations

import json
import os
import pathlib
import runpy
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
TRIAL = ROOT / "benchmarks" / "third_party_trial.py"

LATE_DRAWS = """
import gymnasium
import numpy as np


class LateDraws(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1), {}

    def step(self, action):
        self.steps += 1
        drawn = np.random.normal() if self.steps > 40 else 0.0
        return np.array([drawn]), float(action), False, self.steps > 60, {}


gymnasium.register("LateDraws-v0", LateDraws)
"""


def judged(name: str, module: str, path: pathlib.Path) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", str(TRIAL), name, "--module", module]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_late_draws_from_a_global_generator_are_never_called_exact(tmp_path: pathlib.Path) -> None:
    (tmp_path / "late_draws.py").write_text(LATE_DRAWS)
    report = judged("LateDraws-v0", "late_draws", tmp_path)
    assert report["outcome"] in ("silently wrong", "noticed", "refused"), report


def test_an_environment_without_fault_is_exact(tmp_path: pathlib.Path) -> None:
    report = judged("CartPole-v1", "gymnasium", tmp_path)
    assert (report["outcome"], report["said"]) == ("exact", ""), report
    assert report["rows"] > 100


def test_no_report_names_the_folder_of_a_virtual_environment() -> None:
    module = runpy.run_path(str(ROOT / "benchmarks" / "third_party.py"))
    said = "File '/tmp/mine/lib/python3.11/site-packages/doom/doom.wad' does not exist."
    assert module["without_folders"](said) == "File 'site-packages/doom/doom.wad' does not exist."
    text = module["FOUND"].read_text(encoding="utf-8")
    assert module["without_folders"](text) == text
    assert module["tables"](json.loads(text)) == module["TABLE"].read_text(encoding="utf-8")


def test_the_table_counts_outcomes_and_says_what_was_said() -> None:
    table = runpy.run_path(str(ROOT / "benchmarks" / "third_party.py"))["tables"]
    one = {"package": "zoo", "version": "1.0", "outcome": "exact", "said": ""}
    two = {**one, "outcome": "refused", "said": "SnapshotError: a | b"}
    text = table({"Cat-v0": one, "Dog-v0": two, "Eel-v0": two})
    assert "| zoo 1.0 | 1 |  | 2 |  |  |  |" in text and "| all | 1 |  | 2 |" in text
    assert "| `Dog-v0`, `Eel-v0` | zoo 1.0: refused | SnapshotError: a / b |" in text
