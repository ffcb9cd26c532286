"""Workspaces: agents that read and write one set of tensors ``[T, B, ...]``.

>>> from plangym_like.batchers.workspaces import Agents, TemporalAgent, Workspace
"""

from plangym_like.batchers.workspaces.agent import Agent
from plangym_like.batchers.workspaces.agents import Agents
from plangym_like.batchers.workspaces.make_env import make_env
from plangym_like.batchers.workspaces.parallel_gym_agent import ParallelGymAgent
from plangym_like.batchers.workspaces.replay_buffer import ReplayBuffer
from plangym_like.batchers.workspaces.stock_agents import CopyTAgent, EpisodesDone, PrintAgent
from plangym_like.batchers.workspaces.temporal_agent import TemporalAgent
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
