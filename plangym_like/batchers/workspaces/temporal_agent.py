"""`TemporalAgent`: calls an agent at successive times."""

from __future__ import annotations

import itertools
from typing import Any, Self

from plangym_like.batchers.workspaces.agent import Agent
from plangym_like.batchers.workspaces.workspace import Workspace
from plangym_like.errors import InputError


class TemporalAgent(Agent):
    """Calls `agent` at times ``t``, ``t + 1``, ..., for some steps or until a variable is true.

    Examples
    --------
    >>> import torch
    >>> class Count(Agent):
    ...     def forward(self, t, **kwargs):
    ...         self.set(("n", t), torch.tensor([t]))
    ...         self.set(("done", t), torch.tensor([t == 2]))
    >>> workspace = Workspace()
    >>> TemporalAgent(Count())(workspace, t=0, stop_variable="done")
    >>> workspace["n"].flatten()
    tensor([0, 1, 2])
    """

    def __init__(self, agent: Agent, name: str | None = None) -> None:
        super().__init__(name)
        if not isinstance(agent, Agent):
            raise InputError(f"a TemporalAgent calls an Agent, got {agent!r}")
        self.agent = agent

    def __call__(
        self,
        workspace: Workspace,
        t: int = 0,
        n_steps: int | None = None,
        stop_variable: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Call the agent at time `t` and the following times.

        Parameters
        ----------
        n_steps : int, optional
            The maximum number of calls.
        stop_variable : str, optional
            Stop after the first step at which this variable is true for the whole batch. If it has
            a later row but none for this step, it counts as false, since an agent may write one
            step ahead.
        kwargs
            Other arguments, which every agent gets.

        Raises
        ------
        InputError
            Neither `n_steps` nor `stop_variable` is given, `n_steps` is less than 1, or `t` is less
            than 0.
        """
        if n_steps is None and stop_variable is None:
            raise InputError("a TemporalAgent needs n_steps, a stop_variable, or both")
        if t < 0 or (n_steps is not None and n_steps < 1):
            raise InputError(f"{n_steps} steps from time {t} on: need t >= 0 and n_steps >= 1")
        times = itertools.count(t) if n_steps is None else range(t, t + n_steps)
        try:
            for now in times:
                workspace.begin_step()
                self.agent(workspace, t=now, **kwargs)
                if stop_variable is not None and _is_true(workspace, stop_variable, now):
                    break
        finally:
            workspace.end_step()

    def seed(self, seed: int) -> Self:
        """Seed `agent`."""
        self.agent.seed(seed)
        return self


def _is_true(workspace: Workspace, name: str, t: int) -> bool:
    if name in workspace and t < workspace.variables[name].time_size():
        return workspace.has(name, t) and bool(workspace.get(name, t).all())
    return bool(workspace.get(name, t).all())  # raises: nothing was written there
