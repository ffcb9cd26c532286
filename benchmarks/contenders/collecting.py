"""What all contenders of `rollout_bench.py` have in common: the policy and the environments."""

from __future__ import annotations

from typing import Any

from contenders.contract import Job

# Steps of one fragment, and units of the policy's hidden layer.
STEPS, UNITS = 51, 64


def make_env(job: Job) -> Any:
    """Return one environment of `job`, as registered."""
    import gymnasium as gym

    return gym.make(job.env_id)


def make_policy() -> Any:
    """Return logits of CartPole's two actions: one hidden layer of 64 units, ordinary torch."""
    import torch

    return torch.nn.Sequential(
        torch.nn.Linear(4, UNITS), torch.nn.Tanh(), torch.nn.Linear(UNITS, 2)
    )
