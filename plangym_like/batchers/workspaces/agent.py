"""`Agent`: a torch module that reads and writes a workspace."""

from __future__ import annotations

import copy
from typing import Any, Self

from torch import Tensor, nn

from plangym_like.batchers.workspaces.workspace import Workspace
from plangym_like.errors import InputError


class Agent(nn.Module):
    """Acts on a workspace; subclasses define ``forward(self, t, **kwargs)``, using `get` and `set`.

    ``forward`` receives all keyword arguments of the call, and names the ones that it uses.

    >>> import torch
    >>> class Double(Agent):
    ...     def forward(self, t, **kwargs):
    ...         self.set(("y", t), 2 * self.get(("x", t)))
    >>> workspace = Workspace()
    >>> workspace.set("x", 0, torch.tensor([1, 2]))
    >>> Double()(workspace, t=0)
    >>> workspace["y"]
    tensor([[2, 4]])
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name
        self.prefix = ""
        self.workspace: Workspace | None = None

    def __call__(self, workspace: Workspace, **kwargs: Any) -> None:
        """Call ``forward`` with `kwargs`; inside it, `get` and `set` use `workspace`."""
        if not isinstance(workspace, Workspace):
            raise InputError(f"an agent is called on a Workspace, got {type(workspace).__name__}")
        # `Module.__setattr__` would take more time than the ``forward`` of a small agent.
        before, self.__dict__["workspace"] = self.workspace, workspace
        try:
            self.forward(**kwargs)
        finally:
            self.__dict__["workspace"] = before

    def get(self, index: str | tuple[str, int]) -> Tensor:
        """Return a variable ``[T, B, ...]``; for ``(name, t)``, return its row t, ``[B, ...]``."""
        if isinstance(index, str):
            return self._board().get_full(index)
        return self._board().get(*index)

    def set(self, index: str | tuple[str, int], value: Tensor) -> None:
        """Write a variable ``[T, B, ...]``; for ``(name, t)``, write its row t, ``[B, ...]``."""
        if isinstance(index, str):
            self._board().set_full(index, value)
        else:
            self._board().set(*index, value)

    def get_time_truncated(self, var_name: str, from_time: int, to_time: int) -> Tensor:
        """Return the rows ``from_time:to_time`` of one variable."""
        return self._board().get_time_truncated(var_name, from_time, to_time)

    def seed(self, seed: int) -> Self:
        """Seed the agent's random generators; by default, this does nothing."""
        return self

    def clone(self) -> Self:
        """Return a copy of the agent, including its parameters but not their gradients."""
        twin = copy.deepcopy(self)
        twin.zero_grad()
        return twin

    def set_name(self, name: str) -> Self:
        """Set the name by which `get_by_name` finds this agent."""
        self.name = name
        return self

    def with_prefix(self, prefix: str) -> Self:
        """Set `prefix`, which ``forward`` may put before variable names; empty by default."""
        self.prefix = prefix
        return self

    def get_name(self) -> str | None:
        """Return the name of this agent."""
        return self.name

    def get_by_name(self, name: str) -> list[Agent]:
        """Return each agent called `name` among this agent and the agents inside it."""
        return [each for each in self.modules() if isinstance(each, Agent) and each.name == name]

    def _board(self) -> Workspace:
        if self.workspace is None:
            raise InputError(
                f"{type(self).__name__} has no workspace now: get and set work only while the "
                "agent is called, as by agent(workspace, t=0)"
            )
        return self.workspace
