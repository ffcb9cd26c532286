"""plangym: the library that steps from given states too."""

from __future__ import annotations

import os
from typing import Any

from contenders import walks
from contenders.contract import Job, Work, summarise

PACKAGES = ("plangym", "gymnasium", "ale-py", "numpy")


def open_job(job: Job, *, n_workers: int | None, single: bool = False, **where: Any) -> Work:
    """Open plangym's environment, with its own defaults except one frame a transition.

    `single`: without batches.
    """
    env = make(job, n_workers=n_workers, **where)
    states, num_actions = _roots(env, job)
    actions = walks.batch_actions(num_actions, job.count).tolist()
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


def _roots(env: Any, job: Job) -> tuple[list[Any], int]:
    import numpy as np

    if not job.atari:
        from contenders.raw import classic_states

        states, num_actions = classic_states(job)
        env.reset()
        return [np.array(state) for state in states], num_actions
    # Its reset takes no seed, so that is given to the Gymnasium environment inside.
    env.reset()
    env.gym_env.reset(seed=walks.SEED)
    num_actions = int(env.action_space.n)
    return walks.atari_states(num_actions, job.count, env.get_state, env.step), num_actions
