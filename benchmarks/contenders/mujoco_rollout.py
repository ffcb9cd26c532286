"""MuJoCo's ``rollout`` on threads: the physics alone, or with observations, rewards and flags."""

from __future__ import annotations

from typing import Any

from contenders import robots
from contenders.contract import Job, Work

PACKAGES = ("mujoco", "gymnasium", "numpy")


def open_job(job: Job, *, threads: int, horizon: int = 0, told: bool = False) -> Work:
    """Prepare everything that ``rollout`` takes, its thread pool too.

    `told`: HalfCheetah's observations, rewards and flags are worked out of the states that it
    returns, for all rows at once.
    """
    import mujoco
    import numpy as np
    from mujoco import rollout

    env, states, actions = robots.gymnasium_walk(job.env_id, job.count)
    sample = env.action_space.sample
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

    if not told:
        return Work(step, pool.close)
    cheetah, length = env, plans.shape[1]

    def tell() -> tuple[Any, Any, Any, Any]:
        states, _ = pool.rollout(model, places, starts, controls, initial_warmstart=warm)
        reached = states[:, cheetah.frame_skip - 1 :: cheetah.frame_skip]
        where = np.concatenate([starts[:, None, 1], reached[:, :, 1]], axis=1)
        speed = (where[:, 1:] - where[:, :-1]) / cheetah.dt
        effort = np.square(plans).sum(axis=-1)
        rewards = cheetah._forward_reward_weight * speed - cheetah._ctrl_cost_weight * effort
        observations = reached[:, -1, 2 : 1 + model.nq + model.nv].copy()
        return observations, rewards, *np.zeros((2, len(starts), length), bool)

    def step_and_tell(count: int) -> int:
        return int(tell()[1].size)

    return Work(step_and_tell, pool.close)
