"""In one process everything works where Python does; workers need Linux, and an error says so.

The scripts run in a process in which `elsewhere` has hidden what macOS or Windows lack.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hosted import script_environ

HERE = Path(__file__).parent

IN_ONE_PROCESS = """
import contextlib
import hashlib
import io
import gymnasium
import numpy as np
import plangym_like
from plangym_like import planners
from plangym_like.cli import main

class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal()
        return np.array([self.place]), {}

    def step(self, action):
        self.place += (2 * action - 1) * self.np_random.random()
        return np.array([self.place]), -abs(self.place), abs(self.place) > 9, False, {}

def show(what, *arrays):
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in arrays))
    print(what, digest.hexdigest()[:16])

def use(name, **options):
    rng = np.random.default_rng(0)
    with plangym_like.make(name, **options) as env:
        env.action_space.seed(0)
        state, obs, info = env.reset(seed=0)
        actions = [env.sample_action() for _ in range(40)]
        batch = env.step_batch(actions, state)
        again = env.step_batch(actions, batch.states, dt=2)
        later = env.step_batch(actions, state, blocking=False).result()
        env.set_state(batch.states[3])
        single = env.step(actions[0], batch.states[0])
        show(name, batch.rewards, again.rewards, again.obs, later.obs, single.obs)
        clone = env.clone()
        clone.close()
"""

CORE = """
use("CartPole-v1")
use(Walk, snapshot="pickle")
use(Walk, snapshot="replay")
with plangym_like.make("CartPole-v1") as env:
    state, obs, info = env.reset(seed=0)
    plan = planners.UCT(env).plan(state, budget=500, seed=0)
    print(plan.score, plan.replay(env))
    batch = env.step_batch([0, 1, 0], state)
    for _ in range(2):  # the second file replaces the first
        env.save_states("rows.npy", batch.states)
    show("file", env.load_states("rows.npy"))
    archive = plangym_like.StateArchive(env, directory=".")
    nodes = archive.add(batch.states, parents=archive.add(state[None]), actions=[0, 1, 0])
    show("archive", nodes, archive.get(nodes))
    print("check", plangym_like.check_env(env, steps=50).ok)
with plangym_like.make_vec("CartPole-v1", 3) as envs:
    obs, infos = envs.reset(seed=0)
    for _ in range(20):
        obs, rewards, *rest = envs.step(np.array([0, 1, 1]))
    show("make_vec", obs, rewards)
with contextlib.redirect_stdout(io.StringIO()):
    code = main("plan CartPole-v1 --budget 1e3 --out plan --json".split())
print("plan", code)
"""

ERRORS = """
import plangym_like
from plangym_like.errors import WorkerStartError

def refused(what, start):
    try:
        start()
    except WorkerStartError as error:
        message = str(error)
        assert "workers need Linux" in message and "leave out n_workers" in message, message
        assert "this system is .darwin." in message.replace(chr(39), "."), message
        assert error.__context__ is None
        print("refused:", what)
    else:
        raise AssertionError(what)

make, make_vec = plangym_like.make, plangym_like.make_vec
class Mine:
    def __call__(self):
        raise AssertionError("nothing is made before the error")

refused("n_workers=2", lambda: make("CartPole-v1", n_workers=2))
refused("isolate=True", lambda: make(Mine(), isolate=True))
env_class = plangym_like.ClassicControlEnv
refused("ParallelEnv", lambda: plangym_like.ParallelEnv(env_class, "CartPole-v1"))
refused("make_vec", lambda: make_vec("CartPole-v1", 4, n_workers=2))
refused("ExternalProcess", lambda: plangym_like.ExternalProcess(list))
"""


def _run(script: str, folder: Path, *, hidden: bool) -> list[str]:
    folder.mkdir()
    path = folder / "script.py"
    path.write_text(("import elsewhere\nelsewhere.hide()\n" if hidden else "") + script)
    environ = script_environ()
    environ["PYTHONPATH"] += os.pathsep + str(HERE)
    command = [sys.executable, "-W", "error::RuntimeWarning:__main__", str(path)]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_one_process_gives_the_same_results_elsewhere(tmp_path: Path) -> None:
    elsewhere = _run(IN_ONE_PROCESS + CORE, tmp_path / "elsewhere", hidden=True)
    assert elsewhere == _run(IN_ONE_PROCESS + CORE, tmp_path / "here", hidden=False)
    assert elsewhere


def test_workers_are_refused_with_one_clear_error(tmp_path: Path) -> None:
    assert len(_run(ERRORS, tmp_path / "elsewhere", hidden=True)) == 5
