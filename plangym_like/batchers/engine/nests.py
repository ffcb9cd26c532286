"""Nests: dicts, tuples, named tuples and lists of leaves, in any depth.

Observations, actions, recurrent states and infos are nests. A leaf is a tensor, an array, a number
or, in the description of a nest, a `Leaf`. ``None`` and empty containers are nests without leaves.

>>> import numpy as np
>>> layout = layout_of({"image": np.zeros((2, 2), np.uint8), "speed": 0.5})
>>> layout["image"]
Leaf(shape=(2, 2), dtype=torch.uint8)
>>> rows = empty(layout, (3,))
>>> put(rows, 1, {"image": [[1, 2], [3, 4]], "speed": 2.0})
>>> take(rows, 1)["image"].tolist()
[[1, 2], [3, 4]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from plangym_like.errors import InputError


class Leaf(NamedTuple):
    """One tensor of a nest, without its leading axes."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def map_nest(fn: Callable[..., Any], nest: Any, *others: Any) -> Any:
    """Return the nest of ``fn(leaf, *leaves of the others in the same place)``.

    The result has the containers of `nest`; mappings become plain dicts. The others need the keys
    and lengths of `nest`, and may hold leaves where it does.
    """
    if isinstance(nest, Leaf):
        return fn(nest, *others)
    if isinstance(nest, Mapping):
        return {key: map_nest(fn, nest[key], *(other[key] for other in others)) for key in nest}
    if isinstance(nest, (tuple, list)):
        inner = [map_nest(fn, *parts) for parts in zip(nest, *others, strict=True)]
        if hasattr(nest, "_fields"):
            return type(nest)(*inner)
        return tuple(inner) if isinstance(nest, tuple) else inner
    return None if nest is None else fn(nest, *others)


def leaves(nest: Any) -> list[Any]:
    """Return the leaves of `nest` in order.

    >>> leaves({"a": (1, 2), "b": [3, {"c": 4}], "d": None})
    [1, 2, 3, 4]
    """
    found: list[Any] = []
    map_nest(found.append, nest)
    return found


def rebuild(nest: Any, values: Iterator[Any]) -> Any:
    """Return a nest like `nest`, with its leaves taken from `values`."""
    return map_nest(lambda _: next(values), nest)


def is_leaf(nest: Any) -> bool:
    """Return whether `nest` is one leaf, and no container."""
    return nest is not None and (
        isinstance(nest, Leaf) or not isinstance(nest, (Mapping, tuple, list))
    )


def layout_of(example: Any, space: gymnasium.Space[Any] | None = None) -> Any:
    """Return the nest of `Leaf` that describes `example`.

    Parameters
    ----------
    example : nest
        Of tensors, arrays, numbers.
    space : gymnasium.Space, optional
        Where `example` comes from. Where the space has arrays of one shape, shape and dtype are the
        space's; `plangym_like.batchers.engine.fitting` tells whether a value has them.

    Raises
    ------
    InputError
        A leaf is not a number or array of numbers, or the containers are not those of the space;
        the message says where in the nest it is.
    """
    return _layout(example, space, "the value")


def _layout(example: Any, space: Any, place: str) -> Any:
    if space is not None and space.shape is not None and space.dtype is not None:
        return Leaf(tuple(space.shape), as_torch_dtype(np.dtype(space.dtype), place))
    parts = _parts_of(example, space, place)
    if isinstance(example, Mapping):
        return {
            key: _layout(value, parts.get(key), f"{place}[{key!r}]")
            for key, value in example.items()
        }
    nested = isinstance(space, (gymnasium.spaces.Tuple, gymnasium.spaces.Dict))
    if isinstance(example, tuple) or (isinstance(example, list) and (space is None or nested)):
        inner = [
            _layout(value, parts.get(index), f"{place}[{index}]")
            for index, value in enumerate(example)
        ]
        if hasattr(example, "_fields"):
            return type(example)(*inner)
        return tuple(inner) if isinstance(example, tuple) else inner
    if example is None:
        return None
    if isinstance(example, torch.Tensor):
        return Leaf(tuple(example.shape), example.dtype)
    try:
        array = np.asarray(example)
    except ValueError as error:
        raise InputError(f"{place} is made of parts of unequal shapes: {example!r}") from error
    return Leaf(array.shape, as_torch_dtype(array.dtype, place))


def _parts_of(example: Any, space: Any, place: str) -> Mapping[Any, Any]:
    """Return the spaces of the parts of `example`, which must be the parts that `space` has."""
    if isinstance(space, gymnasium.spaces.Dict):
        if not isinstance(example, Mapping) or example.keys() != space.spaces.keys():
            raise InputError(f"{place} must have the keys {list(space.spaces)}, got {example!r}")
        return space.spaces
    if isinstance(space, gymnasium.spaces.Tuple):
        if not isinstance(example, (tuple, list)) or len(example) != len(space.spaces):
            raise InputError(f"{place} must have {len(space.spaces)} parts, got {example!r}")
        return dict(enumerate(space.spaces))
    return {}


def layout_of_space(space: gymnasium.Space[Any]) -> Any:
    """Return the nest of `Leaf` that describes the elements of `space`.

    Raises
    ------
    InputError
        The space has elements without a fixed shape, or of no numeric dtype.

    >>> layout_of_space(gymnasium.spaces.Discrete(3))
    Leaf(shape=(), dtype=torch.int64)
    """
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: layout_of_space(part) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(layout_of_space(part) for part in space.spaces)
    if space.shape is None or space.dtype is None:
        raise InputError(f"elements of {space} are no arrays of one shape, so no tensors")
    return Leaf(tuple(space.shape), as_torch_dtype(np.dtype(space.dtype), str(space)))


def as_torch_dtype(dtype: np.dtype[Any], place: str = "the value") -> torch.dtype:
    """Return the torch dtype of the same numbers.

    Raises
    ------
    InputError
        There is none: text, objects, long doubles.
    """
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{place} is of dtype {dtype}, which no tensor can hold; numbers and arrays of numbers "
            "can be batched"
        ) from error


def empty(layout: Any, lead: Sequence[int], *, pinned: bool = False) -> Any:
    """Return a nest of tensors ``(*lead, *leaf.shape)`` filled with zeros."""
    return map_nest(
        lambda leaf: torch.zeros((*lead, *leaf.shape), dtype=leaf.dtype, pin_memory=pinned), layout
    )


def as_arrays(nest: Any) -> Any:
    """Return a nest of arrays over the memory of a nest of CPU tensors.

    Tensors of dtypes that NumPy does not have (``bfloat16``) stay tensors.
    """
    return map_nest(_as_array, nest)


def _as_array(tensor: torch.Tensor) -> Any:
    try:
        return tensor.numpy()
    except TypeError:
        return tensor


def as_tensors(nest: Any) -> Any:
    """Return a nest of tensors over the memory of a nest of arrays; numbers become tensors."""
    return map_nest(torch.as_tensor, nest)


def put(rows: Any, index: Any, value: Any) -> None:
    """Write `value`, a nest of the same containers, as row `index` of a nest of arrays or tensors.

    Leaves of `rows` take what NumPy assignment would: lists of numbers as well. Keys that `value`
    has beyond those of `rows` are ignored.
    """
    if isinstance(rows, dict):
        for key, row in rows.items():
            put(row, index, value[key])
    elif isinstance(rows, (tuple, list)):
        for row, part in zip(rows, value, strict=True):
            put(row, index, part)
    elif isinstance(rows, np.ndarray):
        rows[index] = value
    elif rows is not None:
        rows[index] = torch.as_tensor(value)


def take(rows: Any, index: Any) -> Any:
    """Return row or rows `index` of every leaf."""
    return map_nest(lambda leaf: leaf[index], rows)


def copy_to(target: Any, source: Any) -> None:
    """Copy the tensors of `source` into those of `target`, whatever device they are on."""
    map_nest(lambda leaf, value: leaf.copy_(value), target, source)


def stack(nests: Sequence[Any], dim: int = 0) -> Any:
    """Return one nest of what `nests` hold, stacked along a new axis `dim`."""
    return map_nest(lambda *parts: torch.stack(parts, dim), *nests)


def concatenate(nests: Sequence[Any], dim: int = 0) -> Any:
    """Return one nest of what `nests` hold, joined along their axis `dim`."""
    return map_nest(lambda *parts: torch.cat(parts, dim), *nests)


def to_device(nest: Any, device: Any, *, non_blocking: bool = False) -> Any:
    """Return the nest with its tensors on `device`."""
    return map_nest(lambda tensor: tensor.to(device, non_blocking=non_blocking), nest)
