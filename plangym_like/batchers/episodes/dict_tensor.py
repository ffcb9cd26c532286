"""`DictTensor`: named tensors with one row for each environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict

from plangym_like.errors import InputError


class DictTensor(TensorDict):  # type: ignore[no-untyped-call]
    """A tensordict that takes its batch size from its tensors.

    The length of the first dimension of every tensor is the number of rows, ``B``. All methods of a
    `tensordict.TensorDict` are available. Without tensors, the batch size is ``[]``.

    Parameters
    ----------
    source : mapping of str to tensor, array or mapping, optional
        Tensors ``[B, ...]``; a mapping becomes another `DictTensor`.
    batch_size : sequence of int, optional
        The default is ``[B]``.

    Raises
    ------
    InputError
        A tensor has no dimensions, or tensors differ in their number of rows.

    Examples
    --------
    >>> observation = DictTensor({"frame": torch.zeros(4, 3), "reward": torch.zeros(4)})
    >>> observation.n_elems(), observation[1:3]["frame"].shape
    (4, torch.Size([2, 3]))
    """

    def __init__(
        self,
        source: Mapping[str, Any] | None = None,
        batch_size: Any = None,
        **options: Any,
    ) -> None:
        fields = {} if source is None else source
        if batch_size is None:
            fields = {key: _field(value) for key, value in fields.items()}
            batch_size = _rows(fields)
        super().__init__(fields, batch_size=batch_size, **options)

    def n_elems(self) -> int:
        """Return the number of rows, or 0 without tensors."""
        return int(self.batch_size[0]) if self.batch_size else 0


def masked_tensor(tensor0: torch.Tensor, tensor1: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the rows of `tensor1` where `mask` is true, and the rows of `tensor0` elsewhere.

    Parameters
    ----------
    tensor0, tensor1 : tensor
        ``[B, ...]``, of the same shape. The result has the dtype of `tensor0`.
    mask : tensor
        ``[B]``, bool or with the values 0 and 1.

    Raises
    ------
    InputError
        The shapes do not fit together.

    Examples
    --------
    >>> masked_tensor(torch.zeros(2, 3), torch.ones(2, 3), torch.tensor([False, True]))
    tensor([[0., 0., 0.],
            [1., 1., 1.]])
    """
    if tensor0.shape != tensor1.shape or mask.shape != tensor0.shape[:1]:
        raise InputError(
            "tensors [B, ...] and a mask [B] are needed, got the shapes "
            f"{tuple(tensor0.shape)}, {tuple(tensor1.shape)} and {tuple(mask.shape)}"
        )
    rows = mask.bool().reshape(-1, *(1,) * (tensor0.ndim - 1))
    return torch.where(rows, tensor1.to(tensor0.dtype), tensor0)


def masked_dicttensor(
    dicttensor0: DictTensor, dicttensor1: DictTensor, mask: torch.Tensor
) -> DictTensor:
    """Apply `masked_tensor` to each field of two DictTensors with the same fields.

    Raises
    ------
    InputError
        The fields or shapes differ.

    Examples
    --------
    >>> old, new = DictTensor({"x": torch.zeros(3)}), DictTensor({"x": torch.ones(3)})
    >>> masked_dicttensor(old, new, torch.tensor([False, True, False]))["x"]
    tensor([0., 1., 0.])
    """
    names = list(dicttensor0.keys(include_nested=True, leaves_only=True))
    others = list(dicttensor1.keys(include_nested=True, leaves_only=True))
    if set(names) != set(others):
        raise InputError(f"the fields differ: {names} and {others}")
    result = dicttensor0.clone()
    for name in names:
        result[name] = masked_tensor(dicttensor0[name], dicttensor1[name], mask)
    return result


def has_tensors(fields: TensorDict) -> bool:
    """Return whether `fields` contains any tensors; tensors with 0 rows count too."""
    return not fields.is_empty()  # type: ignore[no-untyped-call]


def _field(value: Any) -> Any:
    if isinstance(value, torch.Tensor | TensorDict):
        return value
    return DictTensor(value) if isinstance(value, Mapping) else torch.as_tensor(value)


def _rows(fields: Mapping[str, Any]) -> list[int]:
    """Return the batch size of `fields`: ``[B]``, or ``[]`` if they hold no tensors."""
    counts = {key: field.shape[0] if field.ndim else None for key, field in fields.items()}
    # A part without tensors has no number of rows.
    for key, field in fields.items():
        if isinstance(field, TensorDict) and not has_tensors(field):
            del counts[key]
    for key, count in counts.items():
        if count is None:
            raise InputError(
                f"{key!r} has no dimensions, so it has no rows; the first dimension of every "
                "tensor is the number of environments"
            )
    if len(set(counts.values())) > 1:
        raise InputError(f"the tensors have different numbers of rows: {counts}")
    return list(set(counts.values()))  # type: ignore[arg-type]
