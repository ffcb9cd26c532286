"""`Variable`: the rows of one variable in a workspace."""

from __future__ import annotations

import torch
from torch import Tensor

from plangym_like.batchers.time_buffer import TimeBuffer
from plangym_like.errors import InputError


class Variable:
    """The rows ``[B, ...]`` of times 0, 1, 2, ..., kept as they were given.

    Rows written one by one become one ``[T, B, ...]`` tensor when the whole variable is first read,
    and are views of it from then on. Reading therefore copies the rows only once, and gradients
    flow through single rows and through the whole tensor. A variable may also follow a
    `TimeBuffer`: it then reads the buffer's tensor of the same name, until something else is
    written to the variable.

    Attributes
    ----------
    origins : dict of int to int
        The identifying numbers of rows, by time; not every row has one.
    """

    __slots__ = ("_buffer", "_full", "_like", "_name", "_rows", "origins")

    def __init__(self, name: str, full: Tensor | None = None) -> None:
        self._name = name
        self._full = full
        self._rows: list[Tensor | None] = []
        self._like: tuple[torch.Size, torch.dtype, torch.device] | None = None
        self._buffer: TimeBuffer | None = None
        self.origins: dict[int, int] = {}
        if full is not None:
            if not full.ndim:
                raise InputError(
                    f"variable {name!r} must be [time, batch, ...], got a tensor without axes"
                )
            self._like = (full.shape[1:], full.dtype, full.device)

    def follow(self, buffer: TimeBuffer) -> None:
        """Read the rows of this variable from `buffer` from now on; the buffer may still grow."""
        column = buffer.tensors[self._name]
        self._like = (column.shape[1:], column.dtype, column.device)
        self._rows, self._full, self._buffer = [], None, buffer
        self.origins = {t: origin for t, origin in self.origins.items() if t < buffer.num_steps}

    def follows(self, buffer: TimeBuffer) -> bool:
        """Return whether this variable reads its rows from `buffer`."""
        return self._buffer is buffer

    def set(self, t: int, value: Tensor) -> None:
        """Write the row of time `t`, ``[B, ...]``.

        Raises
        ------
        InputError
            The row has no batch dimension, or its shape, dtype or device differs from earlier rows.
        """
        if (value.shape, value.dtype, value.device) != self._like:
            self._accept(value)
        if self.origins:
            self.origins.pop(t, None)
        rows = self._stop_following()
        if self._full is not None:
            rows = self._rows = list(self._full.unbind(0))
            self._full = None
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
            if self._buffer is not None:
                row: Tensor = self._buffer.tensors[self._name][t]
                return row
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
        if self._buffer is not None:
            column: Tensor = self._buffer.tensors[self._name]
            return column[: self._buffer.num_steps]
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

    def part(self, start: int, stop: int) -> Tensor:
        """Return the rows ``start:stop`` as one tensor; other rows may be missing."""
        if self._full is not None or self._buffer is not None:
            return self.full()[start:stop]
        rows = [self.get(t) for t in range(start, min(stop, self.time_size()))]
        return torch.stack(rows) if rows else self.full()[:0]

    def last(self, n: int) -> Variable:
        """Return a new variable with the last `n` rows, moved to times 0, 1, ..."""
        start = self.time_size() - n
        kept = Variable(self._name)
        kept._like = self._like
        kept._rows = [self.get(start + t) for t in range(n)]
        kept.origins = {t - start: origin for t, origin in self.origins.items() if t >= start}
        return kept

    def truncate(self, time_size: int) -> None:
        """Drop the rows from time `time_size` on."""
        self.origins = {t: origin for t, origin in self.origins.items() if t < time_size}
        rows = self._stop_following()
        if self._full is not None:
            self._full = self._full[:time_size]
        else:
            del rows[time_size:]

    def detach(self) -> None:
        """Detach the rows from the autograd graph."""
        if self._full is not None:
            self._full = self._full.detach()
        self._rows = [row if row is None else row.detach() for row in self._rows]

    def time_size(self) -> int:
        """Return the number of rows, T."""
        if self._buffer is not None:
            return self._buffer.num_steps
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

    def _stop_following(self) -> list[Tensor | None]:
        """Stop reading from a buffer, but keep its rows; return the list of separate rows."""
        if self._buffer is not None:
            self._full, self._buffer = self.full(), None
        return self._rows

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
