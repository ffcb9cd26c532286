"""`Agent`: a torch module that reads and writes a workspace; and agents for common tasks."""

from __future__ import annotations

import copy
import itertools
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
            return self._current_workspace().get_full(index)
        return self._current_workspace().get(*index)

    def set(self, index: str | tuple[str, int], value: Tensor) -> None:
        """Write a variable ``[T, B, ...]``; for ``(name, t)``, write its row t, ``[B, ...]``."""
        if isinstance(index, str):
            self._current_workspace().set_full(index, value)
        else:
            self._current_workspace().set(*index, value)

    def get_time_truncated(self, var_name: str, from_time: int, to_time: int) -> Tensor:
        """Return the rows ``from_time:to_time`` of one variable."""
        return self._current_workspace().get_time_truncated(var_name, from_time, to_time)

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

    def _current_workspace(self) -> Workspace:
        if self.workspace is None:
            raise InputError(
                f"{type(self).__name__} has no workspace now: get and set work only while the "
                "agent is called, as by agent(workspace, t=0)"
            )
        return self.workspace


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


class CopyTAgent(Agent):
    """Copies a variable to another name, at one time or as a whole.

    Examples
    --------
    >>> import torch
    >>> from plangym_like.batchers.workspaces import Workspace
    >>> workspace = Workspace()
    >>> workspace.set("x", 0, torch.tensor([1, 2]))
    >>> CopyTAgent("x", "y")(workspace, t=0)
    >>> workspace["y"]
    tensor([[1, 2]])
    """

    def __init__(
        self, input_name: str, output_name: str, detach: bool = False, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.input_name = input_name
        self.output_name = output_name
        self.detach = detach

    def forward(self, t: int | None = None, **kwargs: Any) -> None:
        """Copy the row of time `t`, or the whole variable if `t` is ``None``."""
        value = self.get(self.input_name if t is None else (self.input_name, t))
        value = value.detach() if self.detach else value
        self.set(self.output_name if t is None else (self.output_name, t), value)


class PrintAgent(Agent):
    """Prints the rows of some variables, by default of all variables that have a row at `t`.

    Examples
    --------
    >>> import torch
    >>> from plangym_like.batchers.workspaces import Workspace
    >>> workspace = Workspace()
    >>> workspace.set("x", 0, torch.tensor([1, 2]))
    >>> PrintAgent("x")(workspace, t=0)
    x  =  tensor([1, 2])
    """

    def __init__(self, *names: str, name: str | None = None) -> None:
        super().__init__(name)
        self.names = names

    def forward(self, t: int, **kwargs: Any) -> None:
        """Print the rows of time `t`."""
        assert self.workspace is not None
        for name in self.names or self.workspace.keys():
            if self.names or self.workspace.has(name, t):
                print(name, " = ", self.get((name, t)))


class EpisodesDone(Agent):
    """Keeps a flag true once it has been true.

    The output shows which environments have ended their first episode, even with autoreset. With
    ``stop_variable=out_var``, a run ends when all environments have ended an episode.

    Examples
    --------
    >>> import torch
    >>> from plangym_like.batchers.workspaces import TemporalAgent, Workspace
    >>> workspace = Workspace()
    >>> workspace.set_full("env/done", torch.tensor([[False, False], [True, False], [False, True]]))
    >>> TemporalAgent(EpisodesDone(out_var="over"))(workspace, n_steps=3)
    >>> workspace["over"]
    tensor([[False, False],
            [ True, False],
            [ True,  True]])
    """

    def __init__(self, in_var: str = "env/done", out_var: str = "env/done") -> None:
        super().__init__()
        self.in_var = in_var
        self.out_var = out_var

    def forward(self, t: int, **kwargs: Any) -> None:
        """Write whether the flag was true at any time up to `t` in this workspace."""
        assert self.workspace is not None
        done = self.get((self.in_var, t))
        if self.workspace.has(self.out_var, t - 1):
            done = done | self.get((self.out_var, t - 1))
        self.set((self.out_var, t), done)
