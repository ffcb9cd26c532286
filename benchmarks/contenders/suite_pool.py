"""A task of dm_control in a pool of processes: each sets the physics, steps, and answers."""

from __future__ import annotations

import multiprocessing
from typing import Any

from contenders import robots
from contenders.contract import Job, Work

PACKAGES = ("dm-control", "mujoco", "numpy")
_env: Any = None


def open_job(job: Job, *, processes: int) -> Work:
    """Start the pool, and walk for the states."""
    import numpy as np

    robots.quiet()
    _start(job.env_id)
    spec = _env.action_spec()
    rng = np.random.default_rng(robots.SEED)

    def sample() -> Any:
        return rng.uniform(spec.minimum, spec.maximum)

    states = robots.walk(
        job.count,
        lambda seed: _env.reset(),
        lambda action: _env.step(action).last(),
        lambda: _env.physics.get_state().copy(),
        sample,
    )
    rows = [(state, sample()) for state in states]
    pool = multiprocessing.get_context("fork").Pool(processes, _start, (job.env_id,))

    def step(count: int) -> int:
        return len(pool.map(_row, rows))

    return Work(step, pool.terminate)


def _start(name: str) -> None:
    global _env
    from dm_control import suite

    domain, _, task = name.partition("-")
    _env = suite.load(domain, task, task_kwargs={"random": 0})
    _env.reset()


def _row(row: Any) -> Any:
    state, action = row
    with _env.physics.reset_context():
        _env.physics.set_state(state)
    found = _env.step(action)
    return _env.physics.get_state(), found.observation, found.reward, found.last()
