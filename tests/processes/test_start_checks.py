"""A process that imports a module on behalf of another one starts no workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hosted import script_environ

# A module that makes workers when it is imported. Each generation of processes counts one more, and
# the third does nothing, so that nothing runs away even if workers are not refused.
MODULE = """
import os

GENERATION = int(os.environ.get("GENERATION", "0"))
os.environ["GENERATION"] = str(GENERATION + 1)
with open(os.environ["GENERATIONS"], "a") as file:
    print(GENERATION, file=file)
if GENERATION > 2:
    raise SystemExit("too many generations")

import time
import gymnasium
import plangym_like

class Mine(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Discrete(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return 0, {}

    def step(self, action):
        time.sleep(0.01)  # worth sending
        self.count += int(action)
        return self.count, float(action), self.count > 50, False, {}

"""
START = {
    "make": "env = plangym_like.make(Mine, n_workers=2)",
    "registered": 'gymnasium.register("Mine-v0", "search:Mine")\n'
    'env = plangym_like.make("Mine-v0", n_workers=2, isolate=True)',
}
USE = """
from plangym_like.errors import WorkerStartError

try:
    import search
    if hasattr(search.env, "step_batch"):
        state, obs, info = search.env.reset(seed=0)
        search.env.step_batch([1] * 64, state)
        assert not search.env.isolate, "an isolated worker stepped rows"
        search.env._processes.pool.wait(60)
        search.env._processes.pool.tend()
    else:
        search.env.reset(seed=0)
except WorkerStartError as error:
    print(error)
else:
    raise AssertionError("the workers that import the module were not refused")
"""


@pytest.mark.parametrize("how", START)
def test_a_module_that_starts_workers_when_imported_starts_them_once(
    how: str, tmp_path: Path
) -> None:
    (tmp_path / "search.py").write_text(MODULE + START[how])
    (tmp_path / "use.py").write_text(USE)
    generations = tmp_path / "generations"
    environ = script_environ() | {"GENERATIONS": str(generations)}
    process = subprocess.Popen(
        [sys.executable, "use.py"],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert set(generations.read_text().split()) <= {"0", "1"}
    assert process.returncode == 0, output + errors
    assert "the module 'search' starts workers while it is imported" in output
    assert '`if __name__ == "__main__":`' in output
