"""MuJoCo's own ``rollout`` on threads: physics alone, no observations, rewards or flags."""

from __future__ import annotations

from contenders import robots
from contenders.contract import Job, Work

PACKAGES = ("mujoco", "gymnasium", "numpy")


def open_job(job: Job, *, threads: int, horizon: int = 0) -> Work:
    """Prepare everything that ``rollout`` takes, its thread pool too."""
    import mujoco
    import numpy as np
    from mujoco import rollout

    robots.quiet()
    env, states, actions, sample = robots.gymnasium_walk(job.env_id, job.count)
    model, data = env.model, env.data
    every = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    physics = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
    starts = np.empty((job.count, mujoco.mj_stateSize(model, physics)))
    warm = np.empty((job.count, model.nv))
    for index, state in enumerate(states):
        mujoco.mj_setState(model, data, state, every)
        mujoco.mj_getState(model, data, starts[index], physics)
        warm[index] = data.qacc_warmstart
    plans = actions[:, None]
    if horizon:
        plans = np.stack([[sample() for _ in range(horizon)] for _ in range(job.count)])
    controls = plans.astype(np.float64).repeat(env.frame_skip, axis=1)
    places = [mujoco.MjData(model) for _ in range(threads)]
    pool = rollout.Rollout(nthread=threads if threads > 1 else 0)

    def step(count: int) -> int:
        pool.rollout(model, places, starts, controls, initial_warmstart=warm)
        return int(plans.shape[0] * plans.shape[1])

    return Work(step, pool.close)
