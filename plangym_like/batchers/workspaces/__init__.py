"""Workspaces: agents that read and write one set of tensors ``[T, B, ...]``.

>>> from plangym_like.batchers.workspaces import Agents, TemporalAgent, Workspace
"""

from plangym_like.batchers.workspaces.agents import (
    Agent,
    Agents,
    CopyTAgent,
    EpisodesDone,
    PrintAgent,
    TemporalAgent,
)
from plangym_like.batchers.workspaces.gym_agent import ParallelGymAgent, make_env
from plangym_like.batchers.workspaces.replay import ReplayBuffer
from plangym_like.batchers.workspaces.workspace import Workspace

__all__ = [
    "Agent",
    "Agents",
    "CopyTAgent",
    "EpisodesDone",
    "ParallelGymAgent",
    "PrintAgent",
    "ReplayBuffer",
    "TemporalAgent",
    "Workspace",
    "make_env",
]
