"""MuJoCo's ``batch`` on threads: the physics alone, from given states, with the states after it."""

from __future__ import annotations

from contenders import robots
from contenders.contract import Job, Work

PACKAGES = ("mujoco", "gymnasium", "numpy")


def open_job(job: Job, *, threads: int, horizon: int = 0) -> Work:
    """Prepare the batch, its states and its controls."""
    import mujoco
    import numpy as np
    from mujoco import batch

    env, states, actions = robots.gymnasium_walk(job.env_id, job.count)
    sample = env.action_space.sample
    starts, substeps = np.stack(states), env.frame_skip
    simulations = batch.Batch(env.model, job.count, threads)
    state, ctrl = simulations.state, simulations.bind("ctrl")
    if not horizon:

        def step(count: int) -> int:
            state[:] = starts
            ctrl[:] = actions
            simulations.step(nstep=substeps)
            state.copy()
            return job.count

        return Work(step, lambda: None)
    plans = np.stack([[sample() for _ in range(horizon)] for _ in range(job.count)])
    controls = plans.astype(np.float64).repeat(substeps, axis=1)
    whole = int(mujoco.mjtState.mjSTATE_INTEGRATION)

    def roll(count: int) -> int:
        state[:] = starts
        simulations.rollout(controls.shape[1], controls, record=(whole,))
        return job.count * horizon

    return Work(roll, lambda: None)
