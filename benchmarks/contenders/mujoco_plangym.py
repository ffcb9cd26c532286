"""plangym on MuJoCo."""

from __future__ import annotations

from contenders import robots
from contenders.contract import Job, Work

PACKAGES = ("plangym", "mujoco", "gymnasium", "numpy")


def open_job(job: Job, *, n_workers: int | None) -> Work:
    """Open plangym's environment with its own defaults, one frame a transition."""
    import plangym

    robots.quiet()
    _, states, actions, _ = robots.gymnasium_walk(job.env_id, job.count)
    env = plangym.make(job.env_id, n_workers=n_workers, frameskip=1, render_mode=None)
    env.reset()
    chosen = list(actions)

    def step(count: int) -> int:
        env.step_batch(actions=chosen, states=states)
        return job.count

    step(job.count)
    return Work(step, env.close)
