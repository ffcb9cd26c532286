"""What all contenders on MuJoCo start from: the states of a seeded random walk, and actions."""

from __future__ import annotations

import os
from typing import Any

SEED = 3


def walk(job_count: int, reset: Any, step: Any, save: Any, sample: Any) -> list[Any]:
    """Return `job_count` saved states of a walk that starts again when it ends."""
    saved = []
    reset(SEED)
    for index in range(job_count):
        if step(sample()):
            reset(SEED + index)
        saved.append(save())
    return saved


def gymnasium_walk(env_id: str, count: int) -> tuple[Any, list[Any], Any, Any]:
    """Return Gymnasium's environment, integration states, actions, and a function that draws."""
    import gymnasium as gym
    import mujoco
    import numpy as np

    env: Any = gym.make(env_id, disable_env_checker=True).unwrapped
    env.action_space.seed(SEED)
    every = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    size = mujoco.mj_stateSize(env.model, every)

    def save() -> Any:
        state = np.empty(size)
        mujoco.mj_getState(env.model, env.data, state, every)
        return state

    states = walk(
        count,
        lambda seed: env.reset(seed=seed),
        lambda action: env.step(action)[2],
        save,
        env.action_space.sample,
    )
    sample = env.action_space.sample
    return env, states, np.stack([sample() for _ in range(count)]), sample


def quiet() -> None:
    """Work in a temporary folder, since MuJoCo writes its log into the current one."""
    os.chdir("/tmp")
