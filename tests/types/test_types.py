"""What a user's type checker says of code that uses this package."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

USER = """
from typing import assert_type

import plangym_like
from plangym_like import BatchStep, BatchTransition, PlanEnv, ResetResult, Rollout
from plangym_like import Step, Transition
from plangym_like.states.rows import Row

def use() -> None:
    env = plangym_like.make("CartPole-v1", n_workers=2)
    assert_type(env, PlanEnv)
    first = env.reset(seed=0)
    assert_type(first, ResetResult)
    assert_type(env.step(0), Step)
    assert_type(env.step(0, state=first.state), Transition)
    assert_type(env.step_batch([0, 1]), BatchStep)
    assert_type(env.step_batch([0, 1], first.state), BatchTransition)
    assert_type(env.step_batch([0, 1], [first.state] * 2, seeds=[1, 2]), BatchTransition)
    assert_type(env.rollout_batch([[0, 1]], first.state), Rollout)
    assert_type(env.rollout_batch([[0]], return_observations=True), Rollout)
    assert_type(env.clone(), PlanEnv)

def misspell(env: PlanEnv, state: Row) -> None:
    # In each of these calls mypy must find an error: otherwise, it reports the unused comment.
    env.reset(sed=0)  # type: ignore[call-overload]
    env.step(0, state, return_stat=False)  # type: ignore[call-overload]
    env.step_batch([0, 1], state, on_eror="mask")  # type: ignore[call-overload]
    env.rollout_batch([[0, 1]], state, on_eror="mask")  # type: ignore[call-overload]
"""


# With the options of `make lint`, mypy knows the package already.
OPTIONS = ["--config-file", str(ROOT / "setup.cfg"), "--cache-dir", str(ROOT / ".mypy_cache")]
TOOLS = {
    "mypy": [sys.executable, "-m", "mypy", "--strict", *OPTIONS],
    "pyright": ["pyright"],
}


@pytest.mark.parametrize("tool", TOOLS)
def test_type_checkers_know_what_calls_return(tool: str, tmp_path: Path) -> None:
    there = shutil.which(tool) if tool == "pyright" else importlib.util.find_spec(tool)
    if not there:
        pytest.skip(f"{tool} is not installed")
    scripts = {"user": USER}
    for document in ("README.md", "docs/quickstart.md"):
        fences = FENCE.findall((ROOT / document).read_text(encoding="utf-8"))
        scripts[Path(document).stem.lower()] = "\n\n".join(fences)
    for name, code in scripts.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [*TOOLS[tool], *(f"{name}.py" for name in scripts)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
