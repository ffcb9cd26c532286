"""Gymnasium spaces as nests of arrays: how a batch of observations or actions lies in memory.

``Box``, ``Discrete``, ``MultiDiscrete`` and ``MultiBinary`` are leaves: N of them are one array
``(N, *shape)``. ``Dict`` and ``Tuple`` are nests of leaves, batched as Gymnasium batches them: the
same nest of arrays. Anything else (``Text``, ``Graph``, ``Sequence``, ``OneOf``) is not of one
size, so N of them are a list of N Python objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from plangym_like.errors import ActionError

_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def is_leaf(space: spaces.Space[Any]) -> bool:
    """Return whether N elements of `space` are one array ``(N, *shape)``."""
    return isinstance(space, _LEAVES)


def leaves(space: spaces.Space[Any]) -> list[tuple[tuple[int, ...], np.dtype[Any]]] | None:
    """Return shape and dtype of every array leaf in order, or ``None`` if some part has none.

    >>> leaves(spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(0, 1, (2,))))
    [((), dtype('int64')), ((2,), dtype('float32'))]
    """
    if isinstance(space, _LEAVES):
        assert space.dtype is not None and space.shape is not None
        return [(tuple(space.shape), np.dtype(space.dtype))]
    found = []
    for part in _parts(space) or ():
        inner = leaves(part)
        if inner is None:
            return None
        found += inner
    return found if _parts(space) is not None else None


def build(space: spaces.Space[Any], arrays: Iterator[Any]) -> Any:
    """Return the nest of `space` with its leaves taken from `arrays`, in the order of `leaves`."""
    if isinstance(space, spaces.Dict):
        return {key: build(part, arrays) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(build(part, arrays) for part in space.spaces)
    return next(arrays)


def flatten(space: spaces.Space[Any], nest: Any) -> list[Any]:
    """Return the leaves of `nest`, the inverse of :func:`build`."""
    if isinstance(space, spaces.Dict):
        return [x for key, part in space.spaces.items() for x in flatten(part, nest[key])]
    if isinstance(space, spaces.Tuple):
        parts = zip(space.spaces, nest, strict=True)
        return [x for part, value in parts for x in flatten(part, value)]
    return [nest]


def empty(space: spaces.Space[Any], lead: tuple[int, ...]) -> Any:
    """Return an uninitialised batch of `space` with the leading shape `lead`."""
    found = leaves(space)
    if found is None:
        return [None] * int(np.prod(lead))
    return build(space, iter([np.empty((*lead, *shape), dtype) for shape, dtype in found]))


def put(space: spaces.Space[Any], batch: Any, index: int | tuple[int, ...], value: Any) -> None:
    """Write `value`, an element of `space`, as row `index` of `batch`."""
    if isinstance(batch, dict):
        for key, part in space.spaces.items():  # type: ignore[attr-defined]
            put(part, batch[key], index, value[key])
    elif isinstance(batch, tuple):
        for part, inner, leaf in zip(space.spaces, batch, value, strict=True):  # type: ignore[attr-defined]
            put(part, inner, index, leaf)
    else:
        batch[index] = value


def blank(batch: Any, indices: Sequence[int]) -> None:
    """Write zeros over rows `indices` of `batch`; ``None`` where rows are objects."""
    if isinstance(batch, dict):
        for inner in batch.values():
            blank(inner, indices)
    elif isinstance(batch, tuple):
        for inner in batch:
            blank(inner, indices)
    elif isinstance(batch, list):
        for index in indices:
            batch[index] = None
    else:
        batch[indices] = 0


def take(batch: Any, index: int | tuple[int, ...]) -> Any:
    """Return row `index` of `batch`, a nest of arrays or a list."""
    if isinstance(batch, dict):
        return {key: take(inner, index) for key, inner in batch.items()}
    if isinstance(batch, tuple):
        return tuple(take(inner, index) for inner in batch)
    return batch[index]


def as_actions(space: spaces.Space[Any], actions: Any, lead: int = 1) -> Any:
    """Return `actions` as one batch of `space`, each of them checked.

    Parameters
    ----------
    space : gymnasium.Space
        The action space.
    actions : array or sequence
        Either a batch (`lead` leading axes) or a single action, which becomes a batch of one.
    lead : int
        Leading axes of a batch: 1 ``(N, ...)``, 2 ``(N, T, ...)`` for rollouts, or 0 for a single
        action, which stays one.

    Raises
    ------
    ActionError
        An action is not in the space; the message names the first such row.
    """
    if isinstance(space, _LEAVES):
        return _leaf_actions(space, actions, lead)
    return _object_actions(space, actions, lead)


def _leaf_actions(space: spaces.Space[Any], actions: Any, lead: int) -> NDArray[Any]:
    assert space.dtype is not None and space.shape is not None
    shape, dtype = tuple(space.shape), np.dtype(space.dtype)
    try:
        batch = np.asarray(actions)
    except ValueError as error:
        raise ActionError(f"actions of unequal shapes; the space is {space}") from error
    if lead and batch.size == 0 and batch.shape[:1] == (0,):
        horizon = () if lead == 1 else (batch.shape[1] if batch.ndim > 1 else 0,)
        return np.empty((0, *horizon, *shape), dtype)
    if batch.ndim == len(shape) and lead == 1:
        batch = batch[None]
    if batch.ndim != len(shape) + lead or batch.shape[lead:] != shape:
        raise ActionError(
            f"actions of shape {np.shape(actions)} are no batch of the action space {space}: "
            f"expected {('N', 'T')[:lead]} + {shape}"
        )
    whole = dtype.kind in "iu"
    if batch.dtype.kind not in ("iu" if whole else "iuf"):
        raise ActionError(f"actions of dtype {batch.dtype} do not fit the action space {space}")
    good: Any
    if isinstance(space, spaces.Discrete):
        low = int(space.start)
        good = (batch >= low) & (batch < low + int(space.n))
    elif isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(space.start)
        good = (batch >= start) & (batch - start < space.nvec)
    elif isinstance(space, spaces.MultiBinary):
        good = (batch == 0) | (batch == 1)
    else:
        assert isinstance(space, spaces.Box)
        if not whole and batch.dtype != dtype:
            with np.errstate(over="ignore"):
                batch = batch.astype(dtype)
        good = (batch >= space.low) & (batch <= space.high)
    if np.count_nonzero(good) != good.size:
        wrong = np.argwhere(~good)[0]
        row = tuple(int(x) for x in wrong[:lead])
        place = f" (row {row if lead > 1 else row[0]})" if lead else ""
        raise ActionError(f"action {batch[row].tolist()}{place} is not in the action space {space}")
    checked: NDArray[Any] = np.asarray(batch, dtype, order="C")[()]
    return checked


def _object_actions(space: spaces.Space[Any], actions: Any, lead: int) -> Any:
    if lead == 0:
        if not space.contains(actions):
            raise ActionError(f"action {actions!r} is not in the action space {space}")
        return actions
    if isinstance(actions, np.ndarray):
        rows: list[Any] = list(actions)
    elif isinstance(actions, list):
        rows = actions
    elif space.contains(actions) and lead == 1:
        rows = [actions]
    elif isinstance(actions, (dict, tuple)):
        try:
            count = len(flatten(space, actions)[0])
            rows = [take(actions, index) for index in range(count)]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ActionError(f"actions are no batch of the action space {space}") from error
    else:
        raise ActionError(f"expected a list of actions of {space}, got {type(actions).__name__}")
    for index, row in enumerate(rows):
        if lead > 1 and not isinstance(row, (list, tuple, np.ndarray)):
            raise ActionError(f"row {index} is no sequence of actions of {space}, but {row!r}")
        steps: Sequence[Any] = row if lead > 1 else (row,)
        for step in steps:
            if not space.contains(step):
                raise ActionError(f"action {step!r} (row {index}) is not in {space}")
    return rows


def _parts(space: spaces.Space[Any]) -> list[spaces.Space[Any]] | None:
    if isinstance(space, spaces.Dict):
        return list(space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return list(space.spaces)
    return None
