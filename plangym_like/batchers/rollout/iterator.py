"""`RolloutIterator`: an endless iterator of fragments; `FragmentAssembler` makes the fragments."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from plangym_like.batchers.rollout.fragment import (
    Columns,
    Final,
    Fragment,
    FragmentInfos,
    FragmentOptions,
    Inputs,
    State,
)
from plangym_like.batchers.workers.group import Closable
from plangym_like.errors import InputError
from plangym_like.vector.tree import take, tree_map


class FragmentAssembler:
    """Joins buffers and copies them to a device.

    For a GPU, buffers are joined in page-locked memory and copied from there asynchronously. Torch
    reuses that memory only when the copy is complete.

    Parameters
    ----------
    options : FragmentOptions
    device : torch.device or str, optional
    pinned : bool
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
    ) -> None:
        self._device = torch.device("cpu" if device is None else device)
        self._pinned = pinned or self._device.type == "cuda"
        if self._pinned and not torch.cuda.is_available():
            raise InputError(
                f"pinned={pinned} and device={device!r} need a GPU, but torch finds none"
            )
        self._options = options
        self._infos = FragmentInfos()

    def assemble(self, memories: Sequence[Any], infos: Sequence[Columns]) -> Fragment:
        """Return one fragment, in new memory, with the lanes of all buffers side by side.

        Parameters
        ----------
        memories : sequence of tree of Tensor
            The memory of each `FragmentBuffer`.
        infos : sequence of dict
            The environments' infos that belong to each memory; see `InfoColumns`.
        """
        without_finals = [{**memory, "final": None} for memory in memories]
        whole = tree_map(lambda *parts: self._join(parts), *without_finals)
        steps = whole["steps"]
        fragment = Fragment(
            state=State(whole["obs"], *(steps[name] for name in State._fields[1:])),
            actor=steps["actor"],
            env=self._infos.join(infos, *memories[0]["steps"]["fin"].shape),
            bootstrap=whole["bootstrap"],
            hx=whole["hx"],
            version=whole["version"][0],
            before=Inputs(None, *(whole["before"][name] for name in ("act", "rew", "fin"))),
            final=_join_finals(memories) if self._options.keep_final else None,
            sticky=self._options.sticky,
        )
        if self._device.type == "cpu":
            return fragment
        return fragment.to(self._device, non_blocking=self._pinned)

    def _join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join tensors along dimension 1."""
        if not self._pinned:
            return torch.cat(tuple(parts), 1)
        first = parts[0]
        shape = (len(first), sum(part.shape[1] for part in parts), *first.shape[2:])
        target = torch.empty(shape, dtype=first.dtype, pin_memory=True)
        return torch.cat(tuple(parts), 1, out=target)


def _join_finals(memories: Sequence[Any]) -> Final:
    finals, first = [], 0
    for memory in memories:
        final = memory["final"]
        rows = slice(0, int(final["count"]))
        parts = take({name: final[name] for name in Final._fields}, rows)
        finals.append({**parts, "lane": parts["lane"] + first})
        first += memory["version"].shape[1]
    whole = Final(**tree_map(lambda *parts: torch.cat(parts), *finals))
    return whole._replace(hx=tree_map(lambda state: state.transpose(0, 1), whole.hx))


@dataclass
class RolloutStats:
    """Statistics of a rollout iterator so far.

    Attributes
    ----------
    batches : int
        Fragments that were yielded.
    steps : int
        Steps of all lanes in these fragments, including those of frozen lanes.
    version : int
        The number of times that the actor's weights have changed between two fragments.
    discarded : int
        Buffers discarded because they were filled with weights that were too old. A fragment of
        `multi.rollout` consists of `n_per_batch` buffers.
    waited : float
        Seconds that the iterator spent waiting for fragments.
    """

    batches: int = 0
    steps: int = 0
    version: int = 0
    discarded: int = 0
    waited: float = 0.0


class RolloutIterator(Closable):
    """Yields fragments without end.

    An error closes the iterator. Later calls of ``next`` raise `ClosedError`; they never end the
    caller's loop silently.

    Attributes
    ----------
    stats : RolloutStats
    """

    def __init__(self) -> None:
        self.stats = RolloutStats()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Fragment:
        self._check_open()
        try:
            fragment = self._next()
        except Exception as error:
            self._end = f"failed with {type(error).__name__}: {error}"
            self._close()
            if isinstance(error, StopIteration):
                # A StopIteration would end the caller's loop without an error.
                raise RuntimeError("the actor or an environment raised StopIteration") from error
            raise
        self.stats.batches += 1
        self.stats.steps += fragment.state.fin.numel()
        return fragment

    @abc.abstractmethod
    def _next(self) -> Fragment: ...
