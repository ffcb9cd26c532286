"""`CopyTAgent`, `PrintAgent`, `EpisodesDone`: small agents for common tasks."""

from __future__ import annotations

from typing import Any

from plangym_like.batchers.workspaces.agent import Agent


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
