"""Gymnasium's SyncVectorEnv and AsyncVectorEnv, and Stable-Baselines3's SubprocVecEnv.

They step from their current states, and cannot be given states.
"""

from __future__ import annotations

from typing import Any

from contenders.contract import Job, Work

PACKAGES = ("gymnasium", "stable_baselines3", "ale-py", "numpy")
# Actions are drawn before the clock runs, and used in turn.
NUM_DRAWS = 64


def open_job(job: Job, *, kind: str, num_envs: int) -> Work:
    """Open ``num_envs`` environments in a vector environment of the class ``kind``."""
    import gymnasium as gym

    factories = [Constructor(job)] * num_envs
    if kind == "SubprocVecEnv":
        from stable_baselines3.common.vec_env import SubprocVecEnv

        # Forked workers step no slower, and need not import torch again.
        envs: Any = SubprocVecEnv(factories, start_method="fork")
    else:
        envs = getattr(gym.vector, kind)(factories)
    envs.reset()
    draws = draw_actions(int(Constructor(job)().action_space.n), num_envs)
    turn = 0

    def step(count: int) -> int:
        nonlocal turn
        turn = (turn + 1) % NUM_DRAWS
        envs.step(draws[turn])
        return num_envs

    return Work(step=step, close=envs.close)


def draw_actions(num_actions: int, num_envs: int) -> Any:
    """Return ``(NUM_DRAWS, num_envs)`` random actions."""
    import numpy as np

    return np.random.default_rng(0).integers(0, num_actions, (NUM_DRAWS, num_envs))


class Constructor:
    """Makes one environment; a class, since a closure cannot be sent to every kind of worker."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self) -> Any:
        import gymnasium as gym

        if not self._job.atari:
            return gym.make(self._job.env_id, disable_env_checker=True)
        import ale_py

        gym.register_envs(ale_py)
        return gym.make(
            self._job.env_id,
            frameskip=1,
            repeat_action_probability=0.0,
            obs_type=self._job.obs_type,
            disable_env_checker=True,
        )
