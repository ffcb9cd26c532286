"""Gymnasium's spaces as specs of torchrl, and trees of arrays as tensordicts."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded

from plangym_like.errors import InputError
from plangym_like.vector.tree import named_parts


def spec_of(space: gymnasium.Space[Any], name: str) -> Any:
    """Return torchrl's spec for the elements of `space`; their dtypes are kept.

    Discrete values are numbers, not one-hot vectors. `Dict` and `Tuple` become a `Composite`; parts
    of a `Tuple` are named ``"0"``, ``"1"``, ...

    Parameters
    ----------
    space : gymnasium.Space
    name : str
        The name of the space in the error message.

    Raises
    ------
    InputError
        torchrl has no spec for the space, or for a part of it.
    """
    parts = _parts(space)
    if parts is not None:
        return Composite({key: spec_of(part, f"{name}[{key!r}]") for key, part in parts.items()})
    shape = space.shape
    if shape is None or space.dtype is None or space.dtype.kind not in "biuf":
        raise InputError(
            f"torchrl has no spec for {name}, a space {space}: it needs arrays of numbers"
        )
    dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype
    if isinstance(space, gymnasium.spaces.MultiBinary):
        return Binary(shape[-1], shape, dtype=dtype)
    if isinstance(space, gymnasium.spaces.Discrete):
        if space.start == 0:
            return Categorical(int(space.n), dtype=dtype)
        return Bounded(int(space.start), int(space.start + space.n - 1), shape, dtype=dtype)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        if len(shape) == 1 and not np.any(space.start):
            return MultiCategorical(space.nvec.tolist(), dtype=dtype)
        return _bounded(space.start, space.start + space.nvec - 1, dtype)
    if not isinstance(space, gymnasium.spaces.Box):
        raise InputError(
            f"torchrl has no spec for {name}, a space {space}: convert it to a Box in a wrapper"
        )
    if np.isfinite(space.low).all() and np.isfinite(space.high).all():
        return _bounded(space.low, space.high, dtype)
    return Unbounded(shape, dtype=dtype)


def as_tensors(tree: Any) -> Any:
    """Convert a tree of arrays to nested dicts of tensors, which share no memory with it."""
    parts = named_parts(tree)
    if parts is None:
        return torch.from_numpy(np.array(tree))
    return {name: as_tensors(part) for name, part in parts.items()}


def as_tree(space: gymnasium.Space[Any], value: Any) -> Any:
    """Convert nested tensordicts to a tree of arrays with the structure of `space`."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: as_tree(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(as_tree(part, value[str(i)]) for i, part in enumerate(space.spaces))
    return value.detach().cpu().numpy()


def _parts(space: gymnasium.Space[Any]) -> dict[str, gymnasium.Space[Any]] | None:
    if isinstance(space, gymnasium.spaces.Dict):
        return dict(space.spaces)
    if isinstance(space, gymnasium.spaces.Tuple):
        return {str(i): part for i, part in enumerate(space.spaces)}
    return None


def _bounded(low: Any, high: Any, dtype: torch.dtype) -> Any:
    ends = [torch.as_tensor(np.array(end), dtype=dtype) for end in (low, high)]
    return Bounded(*ends, ends[0].shape, dtype=dtype)
