"""mjbatch on threads: the physics alone, from given states, with the states after it."""

from __future__ import annotations

from contenders import robots
from contenders.contract import Job, Work

PACKAGES = ("mjbatch", "mujoco", "gymnasium", "numpy")


def open_job(job: Job, *, threads: int, horizon: int = 0) -> Work:
    """Prepare the batch, its states and its controls."""
    import mjbatch
    import numpy as np

    env, states, actions = robots.gymnasium_walk(job.env_id, job.count)
    plans = actions[:, None]
    if horizon:
        sample = env.action_space.sample
        plans = np.stack([[sample() for _ in range(horizon)] for _ in range(job.count)])
    starts, controls = np.stack(states), plans.swapaxes(0, 1).copy()
    simulations = mjbatch.Batch(env.model, job.count, threads)
    state, ctrl = simulations.bind("state"), simulations.bind("ctrl")

    def step(count: int) -> int:
        state[:] = starts
        for control in controls:
            ctrl[:] = control
            simulations.step(nstep=env.frame_skip)
            state.copy()
        return job.count * len(controls)

    return Work(step, lambda: None)
