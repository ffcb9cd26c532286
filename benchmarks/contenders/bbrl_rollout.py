"""BBRL: environments and policy as agents over a workspace, with autoreset."""

from __future__ import annotations

from types import SimpleNamespace

from contenders.contract import Job, Work
from contenders.workspaces_rollout import open_board

PACKAGES = ("bbrl", "torch", "gymnasium", "numpy")


def open_job(job: Job) -> Work:
    """Open the environments in this process, as its ParallelGymAgent does."""
    from bbrl.agents import Agent, Agents, TemporalAgent
    from bbrl.agents.gymnasium import ParallelGymAgent, make_env
    from bbrl.workspace import Workspace

    names = (Agent, Agents, ParallelGymAgent, TemporalAgent, Workspace, make_env)
    return open_board(job, SimpleNamespace(**{name.__name__: name for name in names}))
