"""Agents, groups of environments, and batchers that play episodes.

- `EpisodeBatcher` plays any number of whole episodes, and `Batcher` plays chunks of equal length
- `VecEnv`, `GymEnv`, `GymInfEnv`: groups of environments
- `Agent`: chooses the actions
- `DictTensor`, `Trajectories`: the arguments and results
- `masked_tensor`, `masked_dicttensor`: take each row from one of two arguments, chosen by a mask
- `replay_agent`: computes an agent's outputs again, with gradients
"""

from plangym_like.batchers.episodes.batcher import Batcher, EpisodeBatcher
from plangym_like.batchers.episodes.envs import GymEnv, GymInfEnv, VecEnv
from plangym_like.batchers.episodes.loop import Agent, replay_agent
from plangym_like.batchers.episodes.trajectories import (
    DictTensor,
    Trajectories,
    masked_dicttensor,
    masked_tensor,
)
from plangym_like.batchers.workers.group import Workers

__all__ = [
    "Agent",
    "Batcher",
    "DictTensor",
    "EpisodeBatcher",
    "GymEnv",
    "GymInfEnv",
    "Trajectories",
    "VecEnv",
    "Workers",
    "masked_dicttensor",
    "masked_tensor",
    "replay_agent",
]
