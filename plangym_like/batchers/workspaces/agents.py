"""`Agents`: calls several agents in sequence."""

from __future__ import annotations

from typing import Any, Self

from torch import nn

from plangym_like.batchers.workspaces.agent import Agent
from plangym_like.batchers.workspaces.workspace import Workspace
from plangym_like.errors import InputError


class Agents(Agent):
    """Calls each of its agents, in the order given, with the same arguments.

    Examples
    --------
    >>> import torch
    >>> from plangym_like.batchers.workspaces import CopyTAgent
    >>> workspace = Workspace()
    >>> workspace.set("x", 0, torch.tensor([1, 2]))
    >>> Agents(CopyTAgent("x", "y"), CopyTAgent("y", "z"))(workspace, t=0)
    >>> workspace["z"]
    tensor([[1, 2]])
    """

    def __init__(self, *agents: Agent, name: str | None = None) -> None:
        super().__init__(name)
        for each in agents:
            if not isinstance(each, Agent):
                raise InputError(f"Agents takes instances of Agent, got {type(each).__name__}")
        self.agents = nn.ModuleList(agents)

    def __call__(self, workspace: Workspace, **kwargs: Any) -> None:
        for agent in self.agents:
            agent(workspace, **kwargs)

    def __getitem__(self, index: int) -> Agent:
        agent = self.agents[index]
        assert isinstance(agent, Agent)
        return agent

    def __len__(self) -> int:
        return len(self.agents)

    def seed(self, seed: int) -> Self:
        """Seed every agent with the same `seed`."""
        for agent in self.agents:
            assert isinstance(agent, Agent)
            agent.seed(seed)
        return self
