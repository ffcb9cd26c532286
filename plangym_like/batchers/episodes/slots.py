"""Where workers write what happens: slots of rows in shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from plangym_like.batchers.engine.nests import Leaf
from plangym_like.errors import InputError

# Integers stand in for the dtypes that NumPy does not have.
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Section(NamedTuple):
    """A part of one step's record: tensors by name, and what their names begin with in it."""

    prefix: str
    fields: TensorDict


def layout_of_record(before: list[Section], after: list[Section]) -> dict[str, Any]:
    """Return the nest of `Leaf` that describes one step of one environment.

    Parameters
    ----------
    before : list of Section
        What is known when an action has been chosen.
    after : list of Section
        What the step will add; these fields look like those of `before`.

    Raises
    ------
    InputError
        Two fields have the same name.
    """
    layout: dict[str, Any] = {}
    for prefix, fields in [*before, *after]:
        for key, field in fields.items():
            name = prefix + key
            if name in layout:
                raise InputError(
                    f"two fields of a step are called {name!r}; observations, agent states and "
                    "what agents return beside the action need names of their own"
                )
            layout[name] = _layout(field)
    return layout


def _layout(field: Any) -> Any:
    if isinstance(field, torch.Tensor):
        return Leaf(tuple(field.shape[1:]), field.dtype)
    return {key: _layout(value) for key, value in field.items()}


class _Column(NamedTuple):
    """One tensor of all slots ``[n_slots, n_timesteps, ...]``, as what NumPy can write to."""

    array: NDArray[Any]
    dtype: torch.dtype
    shape: tuple[int, ...]
    stand_in: torch.dtype | None


class Slots:
    """The writing side: `n_slots` pieces of trajectories of up to `n_timesteps` steps.

    Parameters
    ----------
    tensors : nested dict of tensors
        ``[n_slots, n_timesteps, ...]``.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._columns = {path: _column(tensor) for path, tensor in _flatten(tensors)}

    def write(self, slots: NDArray[np.int64], t: int, sections: list[Section]) -> None:
        """Write `sections`, which together are a whole record, as step `t` of each of `slots`.

        Raises
        ------
        InputError
            A field is missing, has come in addition, or has another shape or dtype than it had in
            the first step.
        """
        n_written = 0
        for prefix, fields in sections:
            for path, value in _flatten(fields, prefix):
                column = self._columns.get(path)
                if (
                    column is None
                    or value.dtype is not column.dtype
                    or value.shape[1:] != column.shape
                    or value.shape[0] != len(slots)
                ):
                    raise _other_than_before(path, value, column, len(slots))
                value = value.detach()
                if column.stand_in is not None:
                    value = value.contiguous().view(column.stand_in)
                column.array[slots, t] = value.cpu().numpy()
                n_written += 1
        if n_written != len(self._columns):
            written = {path for part in sections for path, _ in _flatten(part.fields, part.prefix)}
            missing = sorted(map(str, self._columns.keys() - written))
            raise InputError(f"fields that the first step had are missing now: {missing}")


def _flatten(fields: Any, prefix: str = "") -> Iterator[tuple[Any, torch.Tensor]]:
    """Yield the tensors with their names; within a nest, a tuple of names."""
    for key, value in fields.items():
        if isinstance(value, torch.Tensor):
            yield prefix + key, value
        else:
            for path, tensor in _flatten(value):
                yield (prefix + key, *(path if isinstance(path, tuple) else (path,))), tensor


def _column(tensor: torch.Tensor) -> _Column:
    shape = tuple(tensor.shape[2:])
    try:
        return _Column(tensor.numpy(), tensor.dtype, shape, None)
    except TypeError:
        stand_in = _SAME_SIZE[tensor.dtype.itemsize]
        return _Column(tensor.view(stand_in).numpy(), tensor.dtype, shape, stand_in)


def _other_than_before(
    path: Any, value: torch.Tensor, column: _Column | None, n_rows: int
) -> InputError:
    name = path if isinstance(path, str) else "/".join(path)
    if column is None:
        return InputError(
            f"{name!r} was not there in the first step; every step has the same fields"
        )
    return InputError(
        f"{name!r} is {value.dtype} of shape {tuple(value.shape)}, where {n_rows} environments are "
        f"running and the first step had {column.dtype} of shape [B, *{column.shape}]"
    )
