"""How many files an environment with workers keeps open, and what happens at the limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosted import run_script
from usual import first_of

AT_THE_LIMIT = """
import os
import resource

import numpy as np
import plangym_like
from plangym_like.errors import PlangymError, WorkerError

def make():
    return plangym_like.make("CartPole-v1", isolate=True, n_workers=2)

def use(env):
    state, obs, info = env.reset(seed=0)
    return env.step_batch([1] * 64, np.repeat(state[None], 64, axis=0))

with make() as env:  # loads all modules
    assert use(env).rewards.sum() == 64
limit = len(os.listdir("/proc/self/fd")) + LEFT
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit + 1000))
envs, results = [], []
try:
    while len(envs) < 100:
        envs.append(make())
        results.append(use(envs[-1]))
except PlangymError as error:
    message = str(error)
    assert isinstance(error, WorkerError), message
    assert f"{limit} open files (`ulimit -n`; at most {limit + 1000})" in message, message
    assert "Close environments" in message, message
    assert results and len(envs) < 100
else:
    raise AssertionError("no error")
# Those that work go on, and so do new ones when others are closed.
for env in envs[:-2]:
    env.close()
assert use(envs[-2]).rewards.sum() == 64
with make() as env:
    assert use(env).rewards.sum() == 64
print("done")
"""


@pytest.mark.parametrize("left", first_of([86, 80, 93]))
def test_at_the_limit_of_open_files_an_error_says_what_to_do(left: int, tmp_path: Path) -> None:
    """The limit is met at different moments: a worker starts, or shared memory is made."""
    done = run_script(AT_THE_LIMIT.replace("LEFT", str(left)), path=tmp_path / "script.py")
    assert done.stdout == "done\n", done.stderr
