"""Infos of several environments as one dict of arrays, in the form of Gymnasium's vector API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from plangym_like.batch.ownership import owned_info

# The usual types of numbers, for a quick check; rarer types of NumPy have a common base class.
_PLAIN = frozenset((int, float, bool, np.float64, np.float32, np.int64))

Finals = Mapping[int, tuple[Any, dict[str, Any]]]


def batch_infos(
    env: VectorEnv[Any, Any, Any], infos: Sequence[Mapping[str, Any]], finals: Finals | None = None
) -> dict[str, Any]:
    """Return infos as `gymnasium.vector.SyncVectorEnv` batches them.

    Parameters
    ----------
    env : VectorEnv
        The environment whose `VectorEnv._add_info` batches the infos.
    infos : sequence of mapping
        One mapping for each environment; each may be empty.
    finals : mapping of int to (observation, info), optional
        The last observation and info of each episode that ended in this step, by environment.

    Returns
    -------
    dict of str to array
        An array ``(n, ...)`` for each entry. The same name with a leading underscore holds a mask
        ``(n,) bool`` of the environments that have the entry.
    """
    if not finals and not any(infos):
        return {}
    if not finals and (columns := alike_columns(infos)) is not None:
        return with_masks(columns)
    found: dict[str, Any] = {}
    for index, info in enumerate(infos):
        if finals and index in finals:
            final_obs, final_info = finals[index]
            final = {"final_obs": final_obs, "final_info": owned_info(final_info)}
            found = env._add_info(found, final, index)
        if info:
            found = env._add_info(found, owned_info(info), index)
    return found


def alike_columns(
    infos: Sequence[Mapping[str, Any]], *, only: frozenset[type] | None = None
) -> dict[str, NDArray[Any]] | None:
    """Return `infos` as arrays ``(n, ...)``, or ``None`` if they cannot be stacked.

    All infos must have the same keys. The values of a key must be numbers of the same type, or
    arrays of the same shape and dtype. If `only` is given, it must contain the types of all values.
    """
    first, *others = infos
    if only is not None and not only.issuperset(map(type, first.values())):
        return None
    names = list(first)
    for info in others:
        if list(info) != names:
            return None
    found: dict[str, NDArray[Any]] = {}
    for name, value in first.items():
        if _is_special(name):
            return None
        kind, values = type(value), [value]
        if others:
            values = [info[name] for info in infos]
            if len(set(map(type, values))) > 1:
                return None
        if kind in _PLAIN or issubclass(kind, np.number):
            found[name] = np.array(values, kind)
        elif kind is np.ndarray and _are_alike(values):
            found[name] = np.stack(values)
        else:
            return None
    return found


def _is_special(name: Any) -> bool:
    """Return whether Gymnasium treats the name specially, or may use it for a mask."""
    return name == "final_obs" or str(name)[:1] == "_"


def with_masks(columns: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return `columns`, arrays ``(n, ...)``, each followed by a mask that is all true."""
    found: dict[str, Any] = {}
    for name, column in columns.items():
        found[name], found[f"_{name}"] = column, _mask(len(column)).copy()
    return found


@lru_cache(16)
def _mask(count: int) -> NDArray[np.bool_]:
    """Return a mask that is all true. It is cached, so copy it before changing it."""
    return np.ones(count, bool)


def _are_alike(arrays: Sequence[Any]) -> bool:
    first = arrays[0]
    if first.dtype.hasobject:
        return False
    return all(array.shape == first.shape and array.dtype == first.dtype for array in arrays)
