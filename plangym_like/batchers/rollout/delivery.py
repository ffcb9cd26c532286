"""`Delivery`: turns filled buffers into the fragment that the caller gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plangym_like.batchers.rollout.env_infos import EnvInfos, Extra
from plangym_like.batchers.rollout.fragment import Fragment
from plangym_like.batchers.rollout.fragment_buffer import FragmentOptions, as_fragment
from plangym_like.errors import InputError


class Delivery:
    """Joins buffers and copies them to a device.

    For a GPU, buffers are joined in page-locked memory and copied from there asynchronously. Torch
    reuses that memory only when the copy is complete.

    Parameters
    ----------
    options : FragmentOptions
    device : torch.device or str, optional
    pinned, copy : bool
        See `plangym_like.batchers.rollout.multi.rollout`.

    Raises
    ------
    InputError
        A GPU is needed, but torch finds none.
    """

    def __init__(
        self,
        options: FragmentOptions,
        *,
        device: torch.device | str | None,
        pinned: bool = False,
        copy: bool,
    ) -> None:
        self._device = torch.device("cpu" if device is None else device)
        self._pinned = pinned or self._device.type == "cuda"
        if self._pinned and not torch.cuda.is_available():
            raise InputError(
                f"pinned={pinned} and device={device!r} need a GPU, but torch finds none"
            )
        self._copy = copy
        self._options = options
        self._infos = EnvInfos()

    def deliver(self, memories: Sequence[Any], extras: Sequence[Sequence[Extra]]) -> Fragment:
        """Join the `memories` of buffers into a fragment; `extras` has one item for each buffer."""
        fragment = as_fragment(memories, extras, self._infos, self._options, self._join)
        if self._device.type == "cpu":
            return fragment
        return fragment.to(self._device, non_blocking=self._pinned)

    def _join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join tensors along dimension 1."""
        if len(parts) == 1 and not self._copy and not self._pinned:
            return parts[0]
        if not self._pinned:
            return torch.cat(tuple(parts), 1)
        first = parts[0]
        shape = (len(first), sum(part.shape[1] for part in parts), *first.shape[2:])
        target = torch.empty(shape, dtype=first.dtype, pin_memory=True)
        return torch.cat(tuple(parts), 1, out=target)
