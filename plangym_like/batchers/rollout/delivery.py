"""How buffers become the fragment that the caller gets, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plangym_like.batchers.rollout.env_infos import EnvInfos, Extra
from plangym_like.batchers.rollout.fragment import Fragment
from plangym_like.batchers.rollout.record import as_fragment, join_copies, join_views
from plangym_like.errors import InputError


class Delivery:
    """Joins buffers and brings them to a device.

    On the way to a GPU they are joined in page-locked memory, of which there are two sets, and
    copied from there without blocking; a set is used again when its copy is through.

    Parameters
    ----------
    device : torch.device or str, optional
    pinned, copy, sticky, keep_final : bool
        See `plangym_like.batchers.rollout.multi.rollout`.

    Raises
    ------
    InputError
        There is no GPU, but it would take one.
    """

    def __init__(
        self,
        *,
        device: torch.device | str | None,
        pinned: bool,
        copy: bool,
        sticky: bool,
        keep_final: bool,
    ) -> None:
        self._device = torch.device("cpu" if device is None else device)
        if (pinned or self._device.type == "cuda") and not torch.cuda.is_available():
            raise InputError(
                f"pinned={pinned} and device={device!r} need a GPU, and torch finds none here"
            )
        self._pinned = pinned
        self._join = join_copies if copy else join_views
        self._options: dict[str, Any] = {"sticky": sticky, "keep_final": keep_final}
        self._infos = EnvInfos()
        self._staging: list[_Staging] = []
        self._turn = 0

    def deliver(self, records: Sequence[Any], extras: Sequence[Sequence[Extra]]) -> Fragment:
        """Return the fragment made of `records`, nests of CPU tensors, and of their `extras`."""
        if self._device.type == "cuda":
            return self._by_staging(records, extras)
        join = _join_pinned if self._pinned else self._join
        fragment = as_fragment(records, extras, self._infos, join=join, **self._options)
        return fragment if self._device.type == "cpu" else fragment.to(self._device)

    def _by_staging(self, records: Sequence[Any], extras: Sequence[Sequence[Extra]]) -> Fragment:
        if not self._staging:
            self._staging = [_Staging(), _Staging()]
        staging = self._staging[self._turn]
        self._turn = 1 - self._turn
        staging.wait()
        fragment = as_fragment(records, extras, self._infos, join=staging.join, **self._options)
        moved = fragment.to(self._device, non_blocking=True)
        staging.close(self._device)
        return moved


class _Staging:
    """One set of page-locked tensors, in the order in which they are asked for."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._place = 0
        self._event: Any = None

    def wait(self) -> None:
        """Wait until the last copy from here is through."""
        if self._event is not None:
            self._event.synchronize()
        self._place = 0

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the parts side by side in the next tensor of the set."""
        if self._place == len(self._tensors):
            self._tensors.append(_join_pinned(parts))
        else:
            torch.cat(tuple(parts), 1, out=self._tensors[self._place])
        self._place += 1
        return self._tensors[self._place - 1]

    def close(self, device: torch.device) -> None:
        """Note when the copies to `device` that were begun until now are through."""
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(device))


def _join_pinned(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    first = parts[0]
    shape = list(first.shape)
    shape[1] = sum(part.shape[1] for part in parts)
    target = torch.empty(shape, dtype=first.dtype, pin_memory=True)
    return torch.cat(tuple(parts), 1, out=target)
