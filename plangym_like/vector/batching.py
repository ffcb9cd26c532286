"""Arguments and infos of n environments, in the form of Gymnasium's vector API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space, iterate
from numpy.typing import NDArray

from plangym_like.batch.spaces import as_dtype, build, fitted, flatten, leaves
from plangym_like.errors import ActionError, InputError, ObservationError
from plangym_like.vector.lanes import Finals, Flags, Which, whole_seeds
from plangym_like.vector.tree import NUMERIC_KINDS, Leaf, has_objects, tree_map

# The usual types of numbers, for a quick check; rarer types of NumPy have a common base class.
_PLAIN = frozenset((int, float, bool, np.float64, np.float32, np.int64))


def observation_spaces(
    of_each: Sequence[tuple[Space[Any], Space[Any]]],
    count: int,
    mode: str | tuple[Space[Any], Space[Any]],
) -> tuple[Space[Any], Space[Any]]:
    """Return the space of the batched observations, and the space of one observation.

    Parameters
    ----------
    of_each : sequence of (Space, Space)
        Observation and action space of each environment, or one pair for all.
    count : int
        The number of environments.
    mode
        The argument `observation_mode` of `PlanVectorEnv`.

    Raises
    ------
    RuntimeError
        The spaces do not match.
    TypeError, ValueError
        `mode` is not one of the valid modes.
    """
    spaces, action_spaces = zip(*of_each, strict=True)
    first = spaces[0]
    for space in action_spaces:
        if space != action_spaces[0]:
            raise RuntimeError(
                "all environments must have the same action space, got "
                f"{action_spaces[0]} and {space}"
            )
    if isinstance(mode, tuple) and len(mode) == 2:
        batched, single = mode
        if not isinstance(batched, Space) or not isinstance(single, Space):
            raise TypeError(f"observation_mode must be a pair of spaces, got {mode!r}")
    elif mode == "same":
        batched, single = batch_space(first, count), first
    elif mode == "different":
        many = list(spaces) if len(spaces) == count else [first] * count
        batched, single = batch_differing_spaces(many), first
    else:
        raise ValueError(
            f"observation_mode must be 'same', 'different' or a pair of spaces, got {mode!r}"
        )
    for space in spaces:
        if mode == "same" and space != single:
            raise RuntimeError(
                f"all environments must have the same observation space, got {single} and "
                f"{space}; observation_mode='different' lets bounds differ"
            )
        if mode != "same" and not is_space_dtype_shape_equiv(space, single):
            raise RuntimeError(
                "all observation spaces must have the same shapes and dtypes, got "
                f"{single} and {space}"
            )
    return batched, single


def checked_seeds(seed: Any, count: int) -> list[int | None]:
    """Return one seed for each of `count` environments: ``seed + i``, or the entries of `seed`.

    Raises
    ------
    InputError
        There are not `count` seeds, or one is not a whole number of at least 0.
    """
    if seed is None:
        return [None] * count
    if isinstance(seed, (int, np.integer)):
        return whole_seeds(int(seed) + index for index in range(count))
    seeds = None
    with suppress(TypeError):
        seeds = None if isinstance(seed, str) else list(seed)
    if seeds is None:
        raise InputError(
            f"seed must be a whole number of at least 0, or one for each environment, got {seed!r}"
        )
    if len(seeds) != count:
        raise InputError(
            f"seed must have one entry for each of {count} environments, got {len(seeds)}"
        )
    return whole_seeds(seeds)


def checked_mask(mask: Any, count: int) -> Flags:
    """Return `mask` if it is a valid reset mask; otherwise raise the same error as Gymnasium."""
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (count,):
        raise ValueError(f"`options['reset_mask']` must have shape `({count},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            "`options['reset_mask']` must contain a boolean array with at least one True value, "
            f"got reset_mask={mask}"
        )
    return mask


def checked_indices(indices: Which, count: int) -> NDArray[np.intp] | None:
    """Return the indices of some of `count` environments as an array; ``None`` means all.

    A mask ``(count,) bool`` means the indices where it is true.

    Raises
    ------
    InputError
        The indices are not distinct whole numbers from 0 to ``count - 1``.
    """
    if indices is None:
        return None
    chosen = np.asarray(indices)
    if chosen.dtype == np.bool_ and chosen.shape == (count,):
        chosen = np.flatnonzero(chosen)
    if chosen.ndim != 1 or (chosen.dtype.kind not in "iu" and len(chosen)):
        raise InputError(
            "indices must be a sequence of whole numbers, or a mask with one entry for each of "
            f"{count} environments, got {indices!r}"
        )
    if ((chosen < 0) | (chosen >= count)).any() or len(np.unique(chosen)) < len(chosen):
        raise InputError(f"indices must be distinct, from 0 to {count - 1}, got {indices!r}")
    return chosen.astype(np.intp)


def checked_flags(name: str, flags: Any, count: int) -> Flags:
    """Return `flags`, a single bool or `count` of them, as an array ``(count,) bool``.

    Raises
    ------
    InputError
        `flags` has another shape or type.
    """
    array = np.asarray(flags)
    if array.dtype != np.bool_ or array.shape not in ((), (count,)):
        raise InputError(f"{name} must be a bool or an array ({count},) of bools, got {flags!r}")
    return np.broadcast_to(array, count)


def checked_observations(observations: Any, space: Space[Any], count: int) -> Any:
    """Return `observations`, a tree of arrays ``(count, ...)``, with the dtypes of `space`.

    Raises
    ------
    InputError
        A part is missing, has another shape, or does not fit.
    """
    parts = flatten(space, with_object_arrays(observations, space))
    fitting = []
    for part, (shape, dtype) in zip(parts, leaves(space), strict=True):
        if dtype.hasobject:
            if len(part) != count:
                raise InputError(f"observations must have {count} entries, got {len(part)}")
            fitting.append(part)
            continue
        try:
            fitting.append(fitted(space, part, (count, *shape), dtype))
        except ObservationError as error:
            raise InputError(f"observations do not fit the observation space: {error}") from error
    return build(space, iter(fitting))


def with_object_arrays(observations: Any, space: Space[Any]) -> Any:
    """Return `observations` with an array of objects for each part that has no fixed size.

    Such a part, of a `Text` space for example, may be a tuple or a list, as in results.

    Raises
    ------
    InputError
        A part is missing, or is not a sequence.
    """
    found: list[Any] = []
    try:
        for part, (_, dtype) in zip(flatten(space, observations), leaves(space), strict=True):
            if dtype.hasobject:
                found.append(np.empty(len(part), object))
                for row, one in enumerate(part):
                    found[-1][row] = one
            else:
                found.append(part)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError("observations must have the parts of the observation space") from error
    return build(space, iter(found))


def batch_actions(actions: Any, space: Space[Any], layout: Any, count: int) -> Any:
    """Return the actions of `count` environments as a tree of arrays ``(count, ...)``.

    Parameters
    ----------
    actions : array ``(count, ...)``, or an element of `space`
    space : gymnasium.Space
        The space of the actions of all environments together.
    layout : tree of Leaf
        The layout of one action. If it has leaves of dtype ``object``, the result is an array
        ``(count,) object`` of actions.
    count : int

    Raises
    ------
    TypeError
        `actions` is a single action, not an array of actions.
    InputError
        There are not `count` actions, or they have another shape or are not numbers.
    """
    if isinstance(layout, Leaf) and not layout.dtype.hasobject:
        array = np.asarray(actions)
        if array.dtype == layout.dtype and array.shape == (count, *layout.shape):
            return array  # the usual case, in less time than the general one
        return _as_array(layout, array, count)
    if not has_objects(layout):
        return tree_map(lambda leaf, given: _as_array(leaf, given, count), layout, actions)
    rows = list(iterate(space, actions))
    if len(rows) != count:
        raise InputError(f"there are {count} environments, got {len(rows)} actions")
    batch = np.empty(count, object)
    batch[:] = rows
    return batch


def _as_array(leaf: Leaf, actions: Any, count: int) -> NDArray[Any]:
    array = np.asarray(actions)
    if not array.ndim:
        raise TypeError(f"expected {count} actions, got {actions!r}")
    if len(array) != count:
        raise InputError(f"there are {count} environments, got {len(array)} actions")
    if array.dtype.kind not in NUMERIC_KINDS or array.shape[1:] != leaf.shape:
        raise ActionError(
            f"actions must be numbers of shape {(count, *leaf.shape)}, got {array.dtype} of shape "
            f"{array.shape}"
        )
    if array.dtype == leaf.dtype or array.dtype.kind not in "iu" or leaf.dtype.kind not in "iu":
        return array
    fitting = as_dtype(array, leaf.dtype)
    # Numbers that the dtype cannot hold are left to the environment to check.
    return array if fitting is None else fitting


def batch_infos(
    env: VectorEnv[Any, Any, Any], infos: Sequence[dict[str, Any]], finals: Finals | None = None
) -> dict[str, Any]:
    """Return infos as `gymnasium.vector.SyncVectorEnv` batches them.

    Parameters
    ----------
    env : VectorEnv
        The environment whose `VectorEnv._add_info` batches the infos.
    infos : sequence of dict
        One dict for each environment; each may be empty. The result may hold their objects.
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
    if not finals and (columns := _alike_columns(infos)) is not None:
        return with_masks(columns)
    found: dict[str, Any] = {}
    for index, info in enumerate(infos):
        if finals and index in finals:
            final_obs, final_info = finals[index]
            final = {"final_obs": final_obs, "final_info": final_info}
            found = env._add_info(found, final, index)
        if info:
            found = env._add_info(found, info, index)
    return found


def _alike_columns(infos: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[Any]] | None:
    """Return `infos` as arrays ``(n, ...)``, or ``None`` if they cannot be stacked.

    All infos must have the same keys. The values of a key must be numbers, or arrays of the same
    shape and dtype. As in Gymnasium, numbers get the type of the first one.
    """
    names = list(infos[0])
    for info in infos:
        if list(info) != names:
            return None
    found: dict[str, NDArray[Any]] = {}
    for name in names:
        # Gymnasium treats these names specially, or may use them for a mask.
        if name == "final_obs" or str(name)[:1] == "_":
            return None
        values = list(map(itemgetter(name), infos))
        kinds = set(map(type, values))
        if _PLAIN.issuperset(kinds) or all(issubclass(kind, np.number) for kind in kinds):
            found[name] = np.fromiter(values, type(values[0]), len(values))
        elif kinds == {np.ndarray} and _are_alike(values):
            found[name] = np.array(values)
        else:
            return None
    return found


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
