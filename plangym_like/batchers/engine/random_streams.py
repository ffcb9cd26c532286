"""`RandomStreams`: the random generators of one group of lanes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch


@contextmanager
def without_trace() -> Iterator[None]:
    """Restore the global random generators of torch, NumPy and Python after the block."""
    before = _get_states()
    try:
        yield
    finally:
        _set_states(before)


class RandomStreams:
    """One group's states of the global random generators of torch (CPU), NumPy and Python.

    Since a group has its own states, its results are the same in every process, even if other code
    in that process draws random numbers.

    Parameters
    ----------
    words : sequence of int, optional
        The ``words`` of a `GroupSeed`, which seed the states. With ``None``, the group draws from
        the global random generators as they are.
    own_process : bool
        Whether only groups draw from the random generators of this process. If so, a group's states
        stay installed until another group installs its own.
    """

    _in_place: ClassVar[RandomStreams | None] = None

    def __init__(self, words: Sequence[int] | None, *, own_process: bool = False) -> None:
        self._states: tuple[Any, ...] | None = None
        self._own_process = own_process
        if words is not None:
            generator = torch.Generator().manual_seed(words[0] << 31 ^ words[1])
            legacy = np.random.RandomState(words[2])
            self._states = (
                generator.get_state(),
                legacy.get_state(),
                random.Random(words[3]).getstate(),
            )

    @contextmanager
    def in_place(self, *, keep: bool = True) -> Iterator[None]:
        """Let the code in the ``with`` block draw from the group's random generators.

        With ``keep=False``, the generators are reset after the block, so that the next block draws
        the same numbers.
        """
        if self._own_process and keep and self._states is not None:
            self._take_the_place()
            yield
            return
        outside = _get_states()
        if self is RandomStreams._in_place:
            self._states = outside
        if self._states is not None:
            _set_states(self._states)
        try:
            yield
        finally:
            if self._states is None:
                if not keep:
                    _set_states(outside)
            else:
                if keep:
                    self._states = _get_states()
                _set_states(outside)

    def _take_the_place(self) -> None:
        """Install the group's states globally until another group installs its own."""
        last = RandomStreams._in_place
        if last is self:
            return
        if last is not None:
            last._states = _get_states()
        assert self._states is not None
        _set_states(self._states)
        RandomStreams._in_place = self


def _get_states() -> tuple[Any, ...]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _set_states(states: tuple[Any, ...]) -> None:
    of_torch, of_numpy, of_python = states
    torch.set_rng_state(of_torch)
    np.random.set_state(of_numpy)
    random.setstate(of_python)
