"""`ReplayBuffer`: keeps the latest transitions, and samples from them."""

from __future__ import annotations

import torch
from torch import Tensor

from plangym_like.batchers.workspaces.workspace import Workspace
from plangym_like.errors import InputError
from plangym_like.processes.child import interrupts_deferred


class ReplayBuffer:
    """Keeps the last `max_size` columns of the workspaces that were added with `put`.

    An entry is one column of a workspace, with a tensor ``[T, ...]`` for every variable. Columns
    that come from `Workspace.get_transitions` are transitions. Memory is allocated once, at the
    first `put`.

    >>> buffer = ReplayBuffer(max_size=3)
    >>> workspace = Workspace()
    >>> workspace.set_full("x", torch.arange(8).reshape(2, 4))
    >>> buffer.put(workspace)
    >>> buffer.size(), buffer.get_shuffled(5)["x"].shape
    (3, torch.Size([2, 5]))

    Parameters
    ----------
    max_size : int
        The largest number of entries; when it is reached, new entries replace the oldest.
    device : torch.device or str
        The device of entries and samples.
    """

    def __init__(self, max_size: int, device: torch.device | str = "cpu") -> None:
        self.max_size = int(max_size)
        if self.max_size < 1:
            raise InputError(f"max_size must be at least 1, got {max_size}")
        self.device = torch.device(device)
        self.variables: dict[str, Tensor] = {}
        self.position = 0
        self.is_full = False

    def put(self, workspace: Workspace) -> None:
        """Add the columns of `workspace`, at most the last `max_size` of them.

        Raises
        ------
        InputError
            The names, numbers of steps, shapes or dtypes of the variables are not the same as in
            the first `put`. Nothing was added.
        """
        columns = workspace.batch_size()
        new = {name: workspace[name].detach() for name in workspace.variables}
        if not self.variables:
            self.variables = {
                name: torch.empty(
                    (self.max_size, len(value), *value.shape[2:]),
                    dtype=value.dtype,
                    device=self.device,
                )
                for name, value in new.items()
            }
        self._check(new)
        start = max(columns - self.max_size, 0)
        added = columns - start
        places = (torch.arange(added, device=self.device) + self.position) % self.max_size
        stop = self.position + added
        # A Ctrl-C must not leave entries that are written in some variables only.
        with interrupts_deferred():
            for name, value in new.items():
                entries = value[:, start:].to(self.device).transpose(0, 1)
                self.variables[name].index_copy_(0, places, entries)
            self.is_full = self.is_full or stop >= self.max_size
            self.position = stop % self.max_size

    def get_shuffled(self, n: int, generator: torch.Generator | None = None) -> Workspace:
        """Return `n` entries, drawn with replacement, as a workspace ``[T, n, ...]``.

        Raises
        ------
        InputError
            The buffer is empty.
        """
        if not self.size():
            raise InputError("this buffer is empty: put a workspace into it first")
        drawn = torch.randint(self.size(), (n,), device=self.device, generator=generator)
        workspace = Workspace()
        for name, entries in self.variables.items():
            workspace.set_full(name, entries[drawn].transpose(0, 1))
        return workspace

    def size(self) -> int:
        """Return the number of entries."""
        return self.max_size if self.is_full else self.position

    def __len__(self) -> int:
        return self.size()

    def to(self, device: torch.device | str) -> ReplayBuffer:
        """Move the entries to `device`."""
        self.device = torch.device(device)
        self.variables = {name: value.to(device) for name, value in self.variables.items()}
        return self

    def _check(self, new: dict[str, Tensor]) -> None:
        have = {name: (tuple(v.shape[1:]), v.dtype) for name, v in self.variables.items()}
        got = {name: ((len(v), *v.shape[2:]), v.dtype) for name, v in new.items()}
        if have != got:
            raise InputError(f"this buffer holds {have}; got {got}")
