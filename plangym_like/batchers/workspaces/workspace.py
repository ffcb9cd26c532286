"""`Workspace`: the time-by-batch tensors that agents read and write; each is a `Variable`."""

from __future__ import annotations

from collections.abc import Callable, KeysView, Sequence
from typing import overload

import torch
from torch import Tensor

from plangym_like.errors import InputError


class Variable:
    """The rows ``[B, ...]`` of times 0, 1, 2, ..., kept as they were given.

    Rows written one by one become one ``[T, B, ...]`` tensor when the whole variable is first read,
    and are views of it from then on. Reading therefore copies the rows only once, and gradients
    flow through single rows and through the whole tensor.
    """

    __slots__ = ("_full", "_like", "_name", "_rows")

    def __init__(self, name: str, full: Tensor | None = None) -> None:
        self._name = name
        self._full = full
        self._rows: list[Tensor | None] = []
        self._like: tuple[torch.Size, torch.dtype, torch.device] | None = None
        if full is not None:
            if not full.ndim:
                raise InputError(
                    f"variable {name!r} must be [time, batch, ...], got a tensor without axes"
                )
            self._like = (full.shape[1:], full.dtype, full.device)

    def set(self, t: int, value: Tensor) -> None:
        """Write the row of time `t`, ``[B, ...]``.

        Raises
        ------
        InputError
            The row has no batch dimension, or its shape, dtype or device differs from earlier rows.
        """
        if (value.shape, value.dtype, value.device) != self._like:
            self._accept(value)
        if self._full is not None:
            self._rows, self._full = list(self._full.unbind(0)), None
        rows = self._rows
        if t == len(rows):
            rows.append(value)
            return
        if t < 0:
            raise InputError(f"time {t} of {self._name!r} is negative; times begin at 0")
        rows.extend([None] * (t + 1 - len(rows)))
        rows[t] = value

    def has(self, t: int) -> bool:
        """Return whether a row was written at time `t`."""
        if not 0 <= t < self.time_size():
            return False
        return not self._rows or self._rows[t] is not None

    def get(self, t: int) -> Tensor:
        """Return the row of time `t`, ``[B, ...]``.

        Raises
        ------
        InputError
            Nothing was written at time `t`.
        """
        if 0 <= t < self.time_size():
            if self._full is not None:
                return self._full[t]
            given = self._rows[t]
            if given is not None:
                return given
        raise InputError(
            f"nothing was written to {self._name!r} at time {t}; it holds {self.time_size()} steps"
        )

    def full(self) -> Tensor:
        """Return all rows as one tensor ``[T, B, ...]``.

        Raises
        ------
        InputError
            A row is missing: it was not written, but later rows were.
        """
        if self._full is None:
            # `get` raises an error for a row that was never written.
            rows = [self.get(t) if row is None else row for t, row in enumerate(self._rows)]
            if rows:
                self._full = torch.stack(rows)
            else:
                assert self._like is not None
                shape, dtype, device = self._like
                self._full = torch.empty((0, *shape), dtype=dtype, device=device)
            self._rows = []
        return self._full

    def last(self, n: int) -> Variable:
        """Return a new variable with the last `n` rows, moved to times 0, 1, ..."""
        start = self.time_size() - n
        kept = Variable(self._name)
        kept._like = self._like
        kept._rows = [self.get(start + t) for t in range(n)]
        return kept

    def truncate(self, time_size: int) -> None:
        """Drop the rows from time `time_size` on."""
        if self._full is not None:
            self._full = self._full[:time_size]
        else:
            del self._rows[time_size:]

    def detach(self) -> None:
        """Detach the rows from the autograd graph."""
        if self._full is not None:
            self._full = self._full.detach()
        self._rows = [row if row is None else row.detach() for row in self._rows]

    def time_size(self) -> int:
        """Return the number of rows, T."""
        return len(self._rows) if self._full is None else len(self._full)

    def batch_size(self) -> int:
        """Return the size of the batch dimension, B.

        Raises
        ------
        InputError
            The variable was set to a tensor ``[T]``, which has no batch dimension.
        """
        if not self.has_batch():
            raise InputError(
                f"{self._name!r} was set to a tensor [time], without a batch dimension; set it to "
                "a tensor [time, batch, ...]"
            )
        assert self._like is not None
        return self._like[0][0]

    def has_batch(self) -> bool:
        """Return whether rows have a batch dimension."""
        return self._like is None or bool(self._like[0])

    def _accept(self, value: Tensor) -> None:
        if not value.ndim:
            raise InputError(f"a row of {self._name!r} is [batch, ...], got a tensor without axes")
        if self._like is not None:
            shape, dtype, device = self._like
            raise InputError(
                f"rows of {self._name!r} are {tuple(shape)} {dtype} on {device}, "
                f"got {tuple(value.shape)} {value.dtype} on {value.device}"
            )
        self._like = (value.shape, value.dtype, value.device)


class Workspace:
    """Named variables. Each has a row ``[B, ...]`` for every time, so its shape is ``[T, B, ...]``.

    Reading a row that was never written raises an error; missing rows are not filled in. When an
    environment writes time t again (`rewind`), the rows after t are removed from every variable.

    >>> workspace = Workspace()
    >>> for t in range(3):
    ...     workspace.set("x", t, torch.tensor([t, 10 * t]))
    >>> workspace["x"]
    tensor([[ 0,  0],
            [ 1, 10],
            [ 2, 20]])
    >>> workspace.time_size(), workspace.batch_size()
    (3, 2)

    Parameters
    ----------
    workspace : Workspace, optional
        The workspace to copy; by default, the new workspace is empty.
    """

    # Workspaces are used in one process.
    is_shared = False

    def __init__(self, workspace: Workspace | None = None) -> None:
        self.variables: dict[str, Variable] = {}
        self._written: set[str] | None = None
        if workspace is not None:
            for name in workspace.variables:
                self.set_full(name, workspace[name].clone())

    # One time

    def set(self, var_name: str, t: int, v: Tensor) -> None:
        """Write the row ``[B, ...]`` of time `t`; the tensor itself is kept, not a copy.

        Raises
        ------
        InputError
            The shape, dtype or device of the row differs from the variable's other rows.
        """
        variable = self.variables.get(var_name)
        if variable is None:
            variable = Variable(var_name)
            variable.set(t, v)
            self.variables[var_name] = variable
        else:
            variable.set(t, v)
        if self._written is not None:
            self._written.add(var_name)

    def get(self, var_name: str, t: int) -> Tensor:
        """Return the row ``[B, ...]`` of time `t`.

        Raises
        ------
        InputError
            Nothing was written at time `t`.
        """
        return self._variable(var_name).get(t)

    def has(self, var_name: str, t: int) -> bool:
        """Return whether `var_name` was written at time `t`."""
        variable = self.variables.get(var_name)
        return variable is not None and variable.has(t)

    def rewind(self, t: int) -> None:
        """Remove the rows of time `t` and later from every variable.

        An agent that writes the rows of an environment calls this before it starts again at `t`,
        because these rows belong to the earlier run. Rows that other agents wrote at `t`
        in the current step of a `TemporalAgent` are kept.
        """
        for name, variable in list(self.variables.items()):
            fresh = self._written is not None and name in self._written
            variable.truncate(t + fresh)
            if not variable.time_size():
                del self.variables[name]

    def begin_step(self) -> None:
        """Begin a step of a `TemporalAgent`; see `rewind`."""
        self._written = set()

    def end_step(self) -> None:
        """End the step of a `TemporalAgent`."""
        self._written = None

    # Whole variables

    def set_full(self, var_name: str, value: Tensor) -> None:
        """Set the whole variable to `value` ``[T, B, ...]``.

        A tensor ``[T]`` is a variable without a batch dimension; its rows are single values, and
        `batch_size` raises an error.
        """
        self.variables[var_name] = Variable(var_name, value)
        if self._written is not None:
            self._written.add(var_name)

    def get_full(self, var_name: str) -> Tensor:
        """Return the whole variable, ``[T, B, ...]``."""
        return self._variable(var_name).full()

    @overload
    def __getitem__(self, key: str) -> Tensor: ...
    @overload
    def __getitem__(self, key: tuple[str, ...] | list[str]) -> tuple[Tensor, ...]: ...
    def __getitem__(self, key: str | tuple[str, ...] | list[str]) -> Tensor | tuple[Tensor, ...]:
        if isinstance(key, str):
            return self.get_full(key)
        return tuple(self.get_full(name) for name in key)

    def __contains__(self, var_name: object) -> bool:
        return var_name in self.variables

    def keys(self) -> KeysView[str]:
        """Return the names of the variables."""
        return self.variables.keys()

    def time_size(self) -> int:
        """Return the number of steps, T, which all variables must share; 0 for an empty workspace.

        Raises
        ------
        InputError
            T differs between variables.
        """
        return self._shared("steps", {name: v.time_size() for name, v in self.variables.items()})

    def batch_size(self) -> int:
        """Return the batch size, B, which all variables must share; 0 for an empty workspace.

        Raises
        ------
        InputError
            B differs between variables, or a variable has no batch dimension.
        """
        return self._shared("columns", {name: v.batch_size() for name, v in self.variables.items()})

    def clear(self, name: str | None = None) -> None:
        """Remove the variable `name`; by default, remove all variables."""
        if name is None:
            self.variables.clear()
        else:
            self.remove_variable(name)

    def remove_variable(self, var_name: str) -> None:
        """Remove the variable `var_name`."""
        self._variable(var_name)
        del self.variables[var_name]

    def zero_grad(self) -> None:
        """Detach every row from the autograd graph."""
        for variable in self.variables.values():
            variable.detach()

    # Along time

    def copy_n_last_steps(self, n: int, var_names: Sequence[str] | None = None) -> None:
        """Keep only the last `n` steps, as the first steps of the next epoch.

        Continue with ``agent(workspace, t=n, n_steps=...)``. No transition is lost or added between
        two epochs. Variables that are not in `var_names` are removed.

        Raises
        ------
        InputError
            The variables differ in their number of steps, or have fewer than `n`.
        """
        names = list(self.variables) if var_names is None else list(var_names)
        sizes = {name: self._variable(name).time_size() for name in names}
        time_size = self._shared("steps", sizes)
        if not 1 <= n <= time_size:
            raise InputError(f"cannot keep the last {n} steps: the workspace holds {time_size}")
        # In one assignment, so that an interrupt never leaves rows of two epochs.
        self.variables = {name: self.variables[name].last(n) for name in names}

    def copy_time(
        self, from_time: int, to_time: int, n_steps: int, var_names: Sequence[str] | None = None
    ) -> None:
        """Copy `n_steps` rows, beginning at `from_time`, to the times that begin at `to_time`."""
        for name in list(self.variables) if var_names is None else var_names:
            variable = self._variable(name)
            times = range(from_time, from_time + n_steps)
            for step, row in enumerate([variable.get(t) for t in times]):
                self.set(name, to_time + step, row)

    def subtime(self, from_t: int, to_t: int) -> Workspace:
        """Return the steps ``from_t:to_t`` as a workspace that shares memory with this one."""
        self.time_size()
        return self._map(lambda full: full[from_t:to_t])

    def get_time_truncated(self, var_name: str, from_time: int, to_time: int) -> Tensor:
        """Return the rows ``from_time:to_time`` of one variable, ``[T', B, ...]``."""
        if not 0 <= from_time < to_time:
            raise InputError(f"steps {from_time} to {to_time}: need 0 <= from_time < to_time")
        return self._variable(var_name).full()[from_time:to_time]

    def get_time_truncated_workspace(self, from_time: int, to_time: int) -> Workspace:
        """Return a workspace of the steps ``from_time:to_time``; variables may differ in length."""
        workspace = Workspace()
        for name in self.variables:
            workspace.set_full(name, self.get_time_truncated(name, from_time, to_time))
        return workspace

    def select_subtime(self, t: Tensor, window_size: int) -> Workspace:
        """Return a workspace with `window_size` steps of each column b, from time ``t[b]`` on."""
        time_size, columns = self.time_size(), torch.arange(self.batch_size())
        if len(t) != len(columns) or bool(((t < 0) | (t + window_size > time_size)).any()):
            raise InputError(
                f"cannot select windows of {window_size} steps that begin at {t.tolist()} "
                f"in a workspace of {len(columns)} columns and {time_size} steps"
            )
        times = t.cpu() + torch.arange(window_size)[:, None]
        return self._map(lambda full: full[times.to(full.device), columns.to(full.device)])

    # Along the batch

    def select_batch(self, batch_indexes: Tensor) -> Workspace:
        """Return the columns `batch_indexes` as a new workspace."""
        self.batch_size()
        return self._map(lambda full: full[:, batch_indexes.to(full.device)])

    def select_batch_n(self, n: int) -> Workspace:
        """Return a new workspace of `n` columns, drawn with replacement."""
        return self.select_batch(torch.randint(self.batch_size(), (n,)))

    @staticmethod
    def cat_batch(workspaces: Sequence[Workspace]) -> Workspace:
        """Join workspaces, all with the same number of steps, along the batch dimension.

        Raises
        ------
        InputError
            `workspaces` is empty, or they differ in their number of steps.
        """
        if not workspaces:
            raise InputError("no workspaces to join")
        sizes = {f"workspace {i}": each.time_size() for i, each in enumerate(workspaces)}
        Workspace._shared("steps", sizes)
        whole = Workspace()
        for each in workspaces:
            each.batch_size()
        for name in workspaces[0].variables:
            whole.set_full(name, torch.cat([each[name] for each in workspaces], dim=1))
        return whole

    def sample_subworkspace(
        self, n_times: int, n_batch_elements: int, n_timesteps: int
    ) -> Workspace:
        """Return a workspace of `n_times` random samples, joined along the batch dimension.

        Each sample begins at a random time, and holds `n_timesteps` consecutive steps of
        `n_batch_elements` columns, which are drawn without replacement.
        """
        time_size, batch_size = self.time_size(), self.batch_size()
        if not 1 <= n_timesteps <= time_size or not 1 <= n_batch_elements <= batch_size:
            raise InputError(
                f"cannot sample {n_timesteps} steps of {n_batch_elements} columns "
                f"from a workspace of {time_size} steps and {batch_size} columns"
            )
        samples = []
        for _ in range(n_times):
            start = int(torch.randint(time_size - n_timesteps + 1, ()))
            window = self.subtime(start, start + n_timesteps)
            samples.append(window.select_batch(torch.randperm(batch_size)[:n_batch_elements]))
        return Workspace.cat_batch(samples)

    # The whole workspace

    def get_transitions(
        self, no_final_state: bool = False, filter_key: str = "env/done"
    ) -> Workspace:
        """Return the transitions as a workspace of two steps, ``[2, N, ...]``.

        ``[0]`` is the start of a transition and ``[1]`` its end. Transitions are sorted by time,
        then by column. Pairs whose first step ended an episode are left out, because the next step
        belongs to another episode or repeats the final step.

        Parameters
        ----------
        no_final_state : bool
            Keep every pair; meant for workspaces without the final observations of episodes.
        filter_key : str
            The bool variable that is true where an episode ended.

        Raises
        ------
        InputError
            The variables differ in their number of steps.
        """
        time_size, batch_size = self.time_size(), self.batch_size()
        pairs = max(time_size - 1, 0) * batch_size
        if no_final_state:
            kept = torch.arange(pairs)
        else:
            kept = torch.nonzero(~self[filter_key].bool().flatten()[:pairs]).squeeze(1)

        def pair(full: Tensor) -> Tensor:
            rows, first = full.flatten(0, 1), kept.to(full.device)
            return torch.stack([rows[first], rows[first + batch_size]])

        return self._map(pair)

    def contiguous(self) -> Workspace:
        """Return a workspace of the same tensors, each contiguous in memory."""
        return self._map(lambda full: full.contiguous())

    def to(self, device: torch.device | str) -> Workspace:
        """Return a workspace whose tensors are on `device`."""
        return self._map(lambda full: full.to(device))

    def __repr__(self) -> str:
        lines = [
            f"  {name}: time_size = {variable.time_size()}, "
            f"batch_size = {variable.batch_size() if variable.has_batch() else None}"
            for name, variable in self.variables.items()
        ]
        return "\n".join(["Workspace:", *lines])

    def _map(self, change: Callable[[Tensor], Tensor]) -> Workspace:
        workspace = Workspace()
        for name in self.variables:
            workspace.set_full(name, change(self.get_full(name)))
        return workspace

    def _variable(self, name: str) -> Variable:
        try:
            return self.variables[name]
        except KeyError:
            known = ", ".join(self.variables) or "none"
            raise InputError(f"no variable {name!r} in this workspace; it has: {known}") from None

    @staticmethod
    def _shared(what: str, sizes: dict[str, int]) -> int:
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise InputError(f"the variables differ in their number of {what}: {told}")
        return next(iter(sizes.values()), 0)
