"""How many files an environment with workers keeps open, and what happens at the limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hosted import descriptors, run_script
from usual import first_of

import plangym_like

# Of an environment with one worker: three for the worker, two for the progress slots, three for the
# tokens and their event, and two for each block of shared memory that is used or kept.
MOST = 35

AT_THE_LIMIT = """
import os
import resource
import time

import gymnasium
import numpy as np
import plangym_like
from plangym_like.errors import PlangymError, WorkerError

class Slow(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(0, 255, (100,), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(100, np.uint8), {}

    def step(self, action):
        time.sleep(0.001)
        self.count += int(action)
        return np.full(100, self.count, np.uint8), float(action), False, False, {}

def use(env):
    state, obs, info = env.reset(seed=0)
    return env.step_batch([1] * 64, np.repeat(state[None], 64, axis=0))

with plangym_like.make(Slow, isolate=True, n_workers=2) as env:  # loads all modules
    assert use(env).rewards.sum() == 64
limit = len(os.listdir("/proc/self/fd")) + LEFT
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit + 1000))
envs, results = [], []
try:
    while len(envs) < 100:
        envs.append(plangym_like.make(Slow, isolate=True, n_workers=2))
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
with plangym_like.make(Slow, isolate=True, n_workers=2) as env:
    assert use(env).rewards.sum() == 64
print("done")
"""


@pytest.mark.parametrize("left", first_of([86, 80, 93]))
def test_at_the_limit_of_open_files_an_error_says_what_to_do(left: int, tmp_path: Path) -> None:
    """The limit is met at different moments: a worker starts, or shared memory is made."""
    done = run_script(AT_THE_LIMIT.replace("LEFT", str(left)), path=tmp_path / "script.py")
    assert done.stdout == "done\n", done.stderr


def test_an_environment_with_workers_keeps_few_files_open() -> None:
    # The fork server is there already.
    with plangym_like.make("CartPole-v1", n_workers=2) as other:
        other.reset(seed=0)
        before = len(descriptors())
        with plangym_like.make("ALE/MsPacman-v5", n_workers=2, obs_type="ram") as env:
            state, _, _ = env.reset(seed=0)
            states = np.repeat(state[None], 256, axis=0)
            for size in (64, 256, 64, 128, 64, 64):
                result = env.step_batch(np.arange(size) % 9, states[:size])
            assert env.stats.batches and result.rewards.shape == (64,)
            assert len(descriptors()) - before <= MOST
    assert len(descriptors()) <= before + 3  # the result that is still there
