"""Stable-Baselines3's SubprocVecEnv: one process for each environment, no way to give states."""

from __future__ import annotations

from contenders.contract import Job, Work
from contenders.gymnasium import Constructor, forward_work

PACKAGES = ("stable_baselines3", "gymnasium", "ale-py", "numpy")


def open_job(job: Job, *, num_envs: int) -> Work:
    """Open ``num_envs`` environments, each in its own process."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    # Forked workers step no slower, and need not import torch again.
    envs = SubprocVecEnv([Constructor(job)] * num_envs, start_method="fork")
    return forward_work(job, envs, num_envs)
