"""What all contenders on MuJoCo start from: the states of a seeded random walk, and actions."""

from __future__ import annotations

from typing import Any

SEED = 3


def walk(count: int, space: Any, reset: Any, step: Any, save: Any) -> tuple[list[Any], Any]:
    """Return `count` saved states of a walk that starts again when it ends, and as many actions."""
    import numpy as np

    space.seed(SEED)
    saved = []
    reset(SEED)
    for index in range(count):
        if step(space.sample()):
            reset(SEED + index)
        saved.append(save())
    return saved, np.stack([space.sample() for _ in range(count)])


def gymnasium_walk(env_id: str, count: int) -> tuple[Any, list[Any], Any]:
    """Return Gymnasium's environment, integration states, and actions."""
    import gymnasium as gym
    import mujoco
    import numpy as np

    env: Any = gym.make(env_id, disable_env_checker=True).unwrapped
    every = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    size = mujoco.mj_stateSize(env.model, every)

    def save() -> Any:
        state = np.empty(size)
        mujoco.mj_getState(env.model, env.data, state, every)
        return state

    states, actions = walk(
        count,
        env.action_space,
        lambda seed: env.reset(seed=seed),
        lambda action: env.step(action)[2],
        save,
    )
    return env, states, actions
