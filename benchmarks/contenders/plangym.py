"""plangym: the library that steps from given states too."""

from __future__ import annotations

import os
from typing import Any

from contenders import robots, walks
from contenders.contract import Job, Work, summarise
from contenders.raw import classic_states

PACKAGES = ("plangym", "gymnasium", "ale-py", "mujoco", "dm-control", "numpy")


def open_job(job: Job, *, n_workers: int | None, single: bool = False, **where: Any) -> Work:
    """Open plangym's environment, with its own defaults except one frame a transition.

    `single`: without batches.
    """
    env = make(job, n_workers=n_workers, **where)
    actions, states = _rows(env, job)
    slices: dict[int, tuple[Any, Any]] = {job.count: (actions, states)}
    if single:
        return Work(walks.single_steps(env, actions, states), env.close)

    def step(count: int) -> int:
        if count not in slices:
            slices[count] = actions[:count], states[:count]
        some_actions, some_states = slices[count]
        env.step_batch(actions=some_actions, states=some_states)
        return count

    _, observations, rewards, _, _, _ = env.step_batch(actions=actions, states=states)
    return Work(step=step, close=env.close, evidence=summarise(observations, rewards))


def make(job: Job, *, n_workers: int | None, **where: Any) -> Any:
    """Make the environment; ``frameskip=1``, since plangym applies a frameskip twice on Atari."""
    import plangym

    # Ray starts a cluster of its own, instead of joining one that is already running. (Each
    # contender has a process of its own.)
    os.environ["RAY_ADDRESS"] = "local"
    options = {"obs_type": job.obs_type} if job.atari else {}
    return plangym.make(job.env_id, n_workers=n_workers, frameskip=1, **options, **where)


def _rows(env: Any, job: Job) -> tuple[list[Any], list[Any]]:
    """Return the actions and the states of a batch."""
    import numpy as np

    env.reset()
    if not hasattr(env.action_space, "n"):
        states, actions = robots.walk(
            job.count,
            env.action_space,
            lambda seed: env.reset(),
            lambda action: env.step(action)[2],
            env.get_state,
        )
        return list(actions), states
    num_actions = int(env.action_space.n)
    if job.atari:
        # Its reset takes no seed, so that is given to the Gymnasium environment inside.
        env.gym_env.reset(seed=walks.SEED)
        states = walks.atari_states(num_actions, job.count, env.get_state, env.step)
    else:
        states = [np.array(state) for state in classic_states(job)]
    return walks.batch_actions(num_actions, job.count).tolist(), states
