"""What all contenders of `rollout_bench.py` have in common: the policy and the environments."""

from __future__ import annotations

from typing import Any

from contenders.contract import Job

# Steps of one fragment, and units of the policy's hidden layer.
STEPS, UNITS = 51, 64


def make_env(job: Job) -> Any:
    """Return one environment of `job`: as registered, or on Atari four frames of 84 x 84."""
    import gymnasium as gym

    if not job.atari:
        return gym.make(job.env_id)
    import ale_py
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    gym.register_envs(ale_py)
    env = gym.make(job.env_id, frameskip=1, repeat_action_probability=0.0)
    return FrameStackObservation(AtariPreprocessing(env), 4)


def make_policy() -> Any:
    """Return logits of CartPole's two actions: one hidden layer of 64 units, ordinary torch."""
    import torch

    return torch.nn.Sequential(
        torch.nn.Linear(4, UNITS), torch.nn.Tanh(), torch.nn.Linear(UNITS, 2)
    )
