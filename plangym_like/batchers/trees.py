"""Trees of tensors: make, convert and move them; `TimeBuffer`, the steps of lanes in time order.

>>> from plangym_like.vector.tree import layout_of, take
>>> layout = tensor_layout(layout_of({"image": np.zeros((2, 2), np.uint8), "speed": 0.5}))
>>> layout["image"]
Leaf(shape=(2, 2), dtype=torch.uint8)
>>> rows = empty(layout, (3,))
>>> take(rows, 1)["image"].tolist()
[[0, 0], [0, 0]]

The last functions convert steps to tensordicts in the layout that torchrl's losses and replay
buffers take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.errors import ActionError, InputError
from plangym_like.vector.tree import Leaf, named_parts, tree_leaves, tree_map

if TYPE_CHECKING:
    from tensordict import TensorDict


def tensor_layout(layout: Any) -> Any:
    """Convert a layout of arrays to a layout of tensors with the same shapes and number types.

    Raises
    ------
    InputError
        Torch has no dtype for the numbers in one of the arrays.
    """
    return tree_map(lambda leaf: leaf._replace(dtype=as_torch_dtype(leaf.dtype)), layout)


def as_torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the torch dtype that corresponds to a NumPy dtype.

    Raises
    ------
    InputError
        Torch has no corresponding dtype; it has none for text, objects and long doubles.
    """
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError) as error:
        raise InputError(
            f"torch has no dtype for NumPy's {dtype}: convert such values, or leave them out"
        ) from error


def tensor_over(content: NDArray[np.uint8], leaf: Leaf) -> torch.Tensor:
    """Return a tensor, as described by `leaf`, that shares memory with the bytes in `content`."""
    if not len(content):
        return torch.empty(leaf.shape, dtype=leaf.dtype)
    return torch.from_numpy(content).view(leaf.dtype).view(leaf.shape)


def empty(layout: Any, lead: Sequence[int]) -> Any:
    """Return a tree of tensors ``(*lead, *leaf.shape)`` filled with zeros."""
    return tree_map(lambda leaf: torch.zeros((*lead, *leaf.shape), dtype=leaf.dtype), layout)


def as_arrays(tree: Any) -> Any:
    """Return a tree of arrays that share memory with a tree of CPU tensors.

    A tensor whose dtype NumPy does not have, such as ``bfloat16``, stays a tensor.
    """
    return tree_map(_as_array, tree)


def _as_array(tensor: torch.Tensor) -> Any:
    try:
        return tensor.numpy()
    except TypeError:
        return tensor


def as_tensors(tree: Any) -> Any:
    """Return a tree of tensors that share memory with a tree of arrays; numbers become tensors."""
    return tree_map(torch.as_tensor, tree)


def layout_of_tensors(tree: Any) -> Any:
    """Return the layout of a tree of tensors, with all their axes."""
    return tree_map(lambda tensor: Leaf(tuple(tensor.shape), tensor.dtype), tree)


def clone_tree(tree: Any) -> Any:
    """Return the tree with a copy of each tensor."""
    return tree_map(torch.clone, tree)


def copy_to(target: Any, source: Any) -> None:
    """Copy the tensors of `source` into `target`; both may be on any device."""
    tree_map(lambda leaf, value: leaf.copy_(value), target, source)


def to_device(tree: Any, device: Any, *, non_blocking: bool = False) -> Any:
    """Return the tree with its tensors on `device`."""
    return tree_map(lambda tensor: tensor.to(device, non_blocking=non_blocking), tree)


# Outputs of actors are copied only if they fit; they are never broadcast, and no value overflows.


def copy_fitting(target: torch.Tensor, value: Any, place: str) -> None:
    """Copy `value` into `target`, which must have the same shape and a dtype that is wide enough.

    `place` is the name of `value` in error messages.

    Raises
    ------
    InputError
        `value` is not a tensor, its shape differs, or its dtype has values that the dtype of
        `target` cannot hold.
    """
    if (
        not isinstance(value, torch.Tensor)
        or value.shape != target.shape
        or not _widens(value.dtype, target.dtype)
    ):
        got = type(value).__name__
        if isinstance(value, torch.Tensor):
            got = f"{tuple(value.shape)} {value.dtype}"
        raise InputError(
            f"{place} must be a tensor {tuple(target.shape)} {target.dtype}, as in the first step, "
            f"got {got}"
        )
    target.copy_(value)


def as_actions(value: Any, shape: tuple[int, ...], dtype: torch.dtype, place: str) -> torch.Tensor:
    """Convert actions ``(n, ...)`` to the dtype of the action space, on the CPU, without gradients.

    If `dtype` is floating-point, values are rounded to its precision. Otherwise, no value changes.

    Raises
    ------
    ActionError
        `value` is not a tensor, its shape differs, `dtype` cannot hold its values, or `value` is
        floating-point and `dtype` is not.
    """
    if not isinstance(value, torch.Tensor):
        raise ActionError(
            f"{place} must be a tensor {tuple(shape)} {dtype}, got {type(value).__name__}"
        )
    if value.dtype is dtype and value.shape == shape:
        return value.detach().cpu()
    if value.shape != shape or not torch.can_cast(value.dtype, dtype):
        raise ActionError(
            f"{place} must be a tensor {tuple(shape)} {dtype}, got {tuple(value.shape)} "
            f"{value.dtype}"
        )
    value = value.detach().cpu()
    cast: torch.Tensor = value.to(dtype)
    # NumPy compares the two dtypes by value. Casting back could hide a change of sign.
    if not dtype.is_floating_point and not np.array_equal(cast.numpy(), value.numpy()):
        raise ActionError(
            f"{place} must be {dtype}, got {value.dtype} with values from {value.min()} to "
            f"{value.max()}, which {dtype} cannot hold"
        )
    return cast


def copy_actions(rows: Any, value: Any) -> None:
    """Convert an actor's actions as `as_actions` does, and copy them into the tree `rows`."""
    if type(rows) is not torch.Tensor:
        tree_map(copy_actions, rows, value)
    elif type(value) is torch.Tensor and value.dtype is rows.dtype and value.shape == rows.shape:
        rows.copy_(value)
    else:
        rows.copy_(as_actions(value, rows.shape, rows.dtype, "the actor's actions"))


def _widens(dtype: torch.dtype, target: torch.dtype) -> bool:
    return dtype is target or torch.promote_types(dtype, target) is target


# A growing buffer starts with at most this much memory; its users double it when it is full.
_FIRST_NBYTES = 2**20
_FEWEST_STEPS = 32
# Integers of the same size, for dtypes that NumPy does not have.
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Column(NamedTuple):
    """One tensor ``(T, B, ...)`` as an array that NumPy can write to."""

    array: NDArray[Any]
    dtype: torch.dtype
    shape: tuple[int, ...]
    written_as: torch.dtype


class TimeBuffer:
    """The steps of B lanes: a tree of tensors ``(T, B, ...)`` that is written one step at a time.

    All steps have the same fields, shapes and dtypes as the first step.

    Parameters
    ----------
    tensors : tree of CPU Tensor ``(T, B, ...)``
        The memory. It may be shared with other processes.

    Attributes
    ----------
    tensors : tree of Tensor
    arrays : tree of array
        NumPy arrays that share memory with `tensors`; see `as_arrays`.
    capacity : int
        The number of steps that the memory can hold, T.
    num_steps : int
        The number of steps written so far. The code that writes to the buffer sets it.
    """

    def __init__(self, tensors: Any) -> None:
        self.num_steps = 0
        self._use(tensors)

    @classmethod
    def growing(cls, layout: Any, num_lanes: int, num_steps: int = 0) -> TimeBuffer:
        """Return an empty buffer that `make_room` can enlarge.

        Parameters
        ----------
        layout : tree of Leaf
            The layout of one step of one lane.
        num_steps : int
            The expected number of steps. If they need more than 1 MiB, the buffer begins smaller.
        """
        step_nbytes = num_lanes * sum(
            math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in tree_leaves(layout)
        )
        fitting = _FIRST_NBYTES // max(step_nbytes, 1)
        capacity = max(1, min(max(num_steps, _FEWEST_STEPS), fitting))
        return cls(empty(layout, (capacity, num_lanes)))

    def _use(self, tensors: Any) -> None:
        self.tensors = tensors
        self.arrays = as_arrays(tensors)
        self._columns = {path: _column(tensor) for path, tensor in named_leaves(tensors)}
        self._arrays = [column.array for column in self._columns.values()]
        self.capacity = len(self._arrays[0]) if self._arrays else 0

    def make_room(self, num_steps: int) -> None:
        """Make the buffer large enough for `num_steps` steps, and keep the steps already written.

        Tensors that were returned earlier keep their content and do not grow.
        """
        if num_steps <= self.capacity:
            return
        kept = self.num_steps

        def grown(tensor: torch.Tensor) -> torch.Tensor:
            new = tensor.new_zeros((num_steps, *tensor.shape[1:]))
            new[:kept] = tensor[:kept]
            return new

        self._use(tree_map(grown, self.tensors))

    def row(self, t: int) -> list[NDArray[Any]]:
        """Return the arrays ``(B, ...)`` of step `t`, in the order of the leaves."""
        return [array[t] for array in self._arrays]

    def write(self, t: int, lanes: NDArray[np.integer[Any]], step: Any) -> None:
        """Write `step` as step `t` of `lanes`.

        Parameters
        ----------
        lanes : array of int ``(n,)``
        step : tree of Tensor ``(n, ...)``

        Raises
        ------
        InputError
            A field is missing or new, or its shape or dtype differs from the first step's.
        """
        num_written = 0
        for path, value in named_leaves(step):
            column = self._columns.get(path)
            if (
                column is None
                or value.dtype is not column.dtype
                or value.shape[1:] != column.shape
                or value.shape[0] != len(lanes)
            ):
                raise _changed(path, value, column, len(lanes))
            value = value.detach()
            if column.written_as is not column.dtype:
                value = value.contiguous().view(column.written_as)
            column.array[t, lanes] = value.cpu().numpy()
            num_written += 1
        if num_written != len(self._columns):
            written = {path for path, _ in named_leaves(step)}
            missing = sorted("/".join(path) for path in self._columns.keys() - written)
            raise InputError(f"fields of the first step are missing: {missing}")


def named_leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the leaves of a tree in order, each with its path; parts of a tuple are numbered.

    >>> list(named_leaves({"a": 1, "b": (2, 3)}))
    [(('a',), 1), (('b', '0'), 2), (('b', '1'), 3)]
    """
    if tree is None:
        return
    parts = named_parts(tree)
    if parts is None:
        yield path, tree
        return
    for key, part in parts.items():
        if isinstance(part, torch.Tensor):
            yield (*path, key), part
        else:
            yield from named_leaves(part, (*path, key))


def _column(tensor: torch.Tensor) -> _Column:
    shape = tuple(tensor.shape[2:])
    try:
        return _Column(tensor.numpy(), tensor.dtype, shape, tensor.dtype)
    except TypeError:
        same_size = _SAME_SIZE[tensor.dtype.itemsize]
        return _Column(tensor.view(same_size).numpy(), tensor.dtype, shape, same_size)


def _changed(
    path: tuple[str, ...], value: torch.Tensor, column: _Column | None, num_lanes: int
) -> InputError:
    name = "/".join(path)
    if column is None:
        return InputError(
            f"{name!r} was not in the first step; all steps must have the same fields"
        )
    return InputError(
        f"{name!r} is {value.dtype} of shape {tuple(value.shape)}; as in the first step it must "
        f"be {column.dtype} of shape {(num_lanes, *column.shape)}: a row per running environment"
    )


# Tensordicts

# Single numbers, which have a last axis of length 1 in torchrl.
_NUMBERS = {"reward", "done", "terminated", "truncated"}
_RESERVED = {"next", "mask"}


def as_transitions(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    batch_size: Sequence[int],
    mask: torch.Tensor | None = None,
) -> TensorDict:
    """Return a tensordict of steps, with the results of each step under ``"next"``.

    Parameters
    ----------
    before : mapping of str to tree of Tensor ``(*batch_size, ...)``
        The observation before each step, the step's action, and what the actor returned with it.
    after : mapping of str to tree of Tensor ``(*batch_size, ...)``
        The results of each step: the entries of ``"next"``.
    batch_size : sequence of int
        The numbers of environments and of steps, ``[B, T]``.
    mask : Tensor bool ``(*batch_size)``, optional
        Which steps took place. It becomes the entry ``"mask"``.
    """

    def entries(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: tree[..., None] if name in _NUMBERS and tree.ndim == 2 else _named(tree)
            for name, tree in fields.items()
        }

    # Imported here: the import takes more than a second, and rollout workers do not need it.
    from tensordict import TensorDict

    fields = {**entries(before), "next": entries(after)}
    if mask is not None:
        fields["mask"] = mask
    return TensorDict(fields, batch_size=batch_size)


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of all `parts` in one dict.

    Raises
    ------
    InputError
        Two entries have the same name, or one is called ``"next"`` or ``"mask"``.
    """
    entries: dict[str, Any] = {}
    for part in parts:
        if taken := part.keys() & (entries.keys() | _RESERVED):
            raise InputError(
                f"several entries of a tensordict would be called {sorted(taken)}, or these names "
                "are reserved: rename parts of the observation, the infos or the actor's output"
            )
        entries |= part
    return entries


def as_observation(tree: Any) -> dict[str, Any]:
    """Return an observation as a dict; any other `tree` becomes ``{"observation": tree}``."""
    return dict(tree) if isinstance(tree, Mapping) else {"observation": tree}


def _named(tree: Any) -> Any:
    parts = named_parts(tree)
    return tree if parts is None else {name: _named(part) for name, part in parts.items()}
