"""plangym_like on MuJoCo: single steps, or plans of several."""

from __future__ import annotations

from contenders import robots
from contenders.contract import Job, Work, summarise

PACKAGES = ("plangym_like", "mujoco", "gymnasium", "dm-control", "numpy")


def open_job(job: Job, *, n_workers: int | None, horizon: int = 0) -> Work:
    """Open the environment; with `horizon`, a batch is as many plans of so many steps."""
    import numpy as np

    import plangym_like

    robots.quiet()
    env = plangym_like.make(job.env_id, n_workers=n_workers, autoreset=False)
    env.action_space.seed(robots.SEED)
    sample = env.action_space.sample
    states = np.stack(
        robots.walk(
            job.count,
            lambda seed: env.reset(seed=seed),
            lambda action: env.step(action).terminated,
            env.get_state,
            sample,
        )
    )
    actions = np.stack([sample() for _ in range(job.count)])
    result = env.step_batch(actions, states)
    evidence = summarise(result.obs, result.rewards)
    if not horizon:
        return Work(lambda count: len(env.step_batch(actions, states).rewards), env.close, evidence)
    plans = np.stack([[sample() for _ in range(horizon)] for _ in range(job.count)])

    def roll(count: int) -> int:
        return int(env.rollout_batch(plans, states).rewards.size)

    return Work(roll, env.close, evidence)
