"""Random numbers: the seeds and generators of groups of lanes, and `multinomial`.

Lanes are divided into groups; an actor is called once for all lanes of a group. Seeds belong to
groups and lanes, never to workers, so that results do not depend on the number of workers. No two
lanes have equal seeds. Each group has four 32-bit words that seed the random generators of its
actor.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from plangym_like.errors import InputError


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
    def in_place(self) -> Iterator[None]:
        """Let the code in the ``with`` block draw from the group's random generators."""
        if self._states is None:
            yield
            return
        if self._own_process:
            self._take_the_place()
            yield
            return
        outside = get_states()
        set_states(self._states)
        try:
            yield
        finally:
            self._states = get_states()
            set_states(outside)

    def _take_the_place(self) -> None:
        """Install the group's states globally until another group installs its own."""
        last = RandomStreams._in_place
        if last is self:
            return
        if last is not None:
            last._states = get_states()
        assert self._states is not None
        set_states(self._states)
        RandomStreams._in_place = self


def get_states() -> tuple[Any, ...]:
    """Return the states of the global random generators of torch (CPU), NumPy and Python."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def set_states(states: tuple[Any, ...]) -> None:
    of_torch, of_numpy, of_python = states
    torch.set_rng_state(of_torch)
    np.random.set_state(of_numpy)
    random.setstate(of_python)


class GroupSeed(NamedTuple):
    """The seeds of one group: four words for its random generators, and one seed for each lane."""

    words: tuple[int, ...]
    lanes: tuple[int, ...]


def seed_groups(seed: int | Sequence[int] | None, num_lanes: Sequence[int]) -> list[GroupSeed]:
    """Return the seeds of groups; group i has ``num_lanes[i]`` lanes.

    Parameters
    ----------
    seed : int or sequence of int or None
        Anything that `numpy.random.SeedSequence` accepts; ``None`` for fresh entropy.

    Returns
    -------
    list of GroupSeed
        The seeds of all lanes are different, and below 2**31.

    Raises
    ------
    InputError
        `seed` is not a valid seed.

    Examples
    --------
    >>> first, second = seed_groups(3, [2, 2])
    >>> len({*first.lanes, *second.lanes})
    4
    """
    try:
        root = np.random.SeedSequence(seed)
    except (TypeError, ValueError) as error:
        raise InputError(f"seed must be a whole number of at least 0, got {seed!r}") from error
    lanes = np.random.default_rng(root).choice(2**31, sum(num_lanes), replace=False).tolist()
    groups = []
    for group, count in zip(root.spawn(len(num_lanes)), num_lanes, strict=True):
        words = tuple(int(word) for word in group.generate_state(4))
        groups.append(GroupSeed(words, tuple(lanes[:count])))
        del lanes[:count]
    return groups


def multinomial(
    probs: torch.Tensor,
    num_samples: int = 1,
    replacement: bool = False,
    *,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Draw from the K categories of the last dimension, for every index of the other dimensions.

    A single draw uses the exponential-race method and skips the checks of `torch.multinomial`,
    which take longer than the draw.

    Parameters
    ----------
    probs : Tensor ``(..., K)``
        Weights, at least 0; they need not sum to 1.
    num_samples, replacement, generator
        See `torch.multinomial`.

    Returns
    -------
    Tensor int64
        ``(...)``, or ``(..., num_samples)`` for more than one sample.

    Raises
    ------
    InputError
        For a single draw on the CPU: a weight is NaN or less than 0, or all K weights of one draw
        are 0.

    Examples
    --------
    >>> multinomial(torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]))
    tensor([[1, 0]])
    """
    if num_samples == 1:
        return _draw_one(probs.detach(), generator)
    lead = probs.shape[:-1]
    drawn = torch.multinomial(
        probs.reshape(-1, probs.shape[-1]), num_samples, replacement, generator=generator
    )
    return drawn.reshape(*lead, num_samples)


def _draw_one(probs: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    # race / probs are exponential variables with the rates `probs`. The probability that variable k
    # is the smallest of them is proportional to probs[k].
    race = torch.empty_like(probs).exponential_(generator=generator)
    values, places = torch.div(probs, race, out=race).max(-1)
    if probs.device.type == "cpu":
        # Both comparisons are False for NaN. `values` has the largest quotient of each row.
        if not (_smallest(probs) >= 0 and _smallest(values) > 0):
            raise InputError(f"probs hold NaN, a negative weight, or no positive weight: {probs}")
    return places


def _smallest(numbers: torch.Tensor) -> float:
    """Return the minimum of 1 and all `numbers`; NaN if any of them is NaN."""
    # NumPy takes less time than torch, but has no bfloat16.
    array = (numbers.float() if numbers.dtype is torch.bfloat16 else numbers).numpy()
    return float(array.min(initial=1.0))
