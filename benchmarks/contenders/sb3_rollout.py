"""Stable-Baselines3: the rollouts of its A2C, over DummyVecEnv."""

from __future__ import annotations

from contenders import collecting
from contenders.contract import Job, Work

PACKAGES = ("stable_baselines3", "torch", "gymnasium", "numpy")


def open_job(job: Job) -> Work:
    """Open the environments in this process."""
    import torch
    from stable_baselines3 import A2C
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    envs = DummyVecEnv([lambda: collecting.make_env(job)] * job.count)
    model = A2C(
        "MlpPolicy",
        envs,
        n_steps=collecting.STEPS,
        policy_kwargs={"net_arch": [collecting.UNITS]},
        device="cpu",
        seed=0,
    )
    _, callback = model._setup_learn(total_timesteps=1 << 60)
    assert model.env is not None

    def step(count: int) -> int:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, collecting.STEPS)
        return job.count * collecting.STEPS

    return Work(step, envs.close, {})
