"""One seed for everything: environments and the noise of actors, whatever the number of workers.

Lanes come in groups; a group is what one actor call answers. All randomness belongs to a group or
to a lane in it, never to a worker, so who hosts a group does not matter: the lanes' environments
have seeds of their own, all different, and the group has its own states of the generators of
torch, NumPy and Python, which are put in place while it runs (`RandomStreams`). Rows of one actor
call draw one after the other from their group's generator, so no two lanes share noise.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from plangym_like.errors import InputError


class GroupSeed(NamedTuple):
    """The seeds of one group: of its generators (four words), and of each lane's environment."""

    words: tuple[int, ...]
    lanes: tuple[int, ...]


def seed_groups(seed: int | Sequence[int] | None, num_lanes: Sequence[int]) -> list[GroupSeed]:
    """Return the seeds of groups of `num_lanes` lanes each.

    Parameters
    ----------
    seed : int or sequence of int or None
        Anything that `numpy.random.SeedSequence` takes; ``None`` for fresh entropy.

    Returns
    -------
    list of GroupSeed
        Lanes' seeds are below 2**31, and no two of all the lanes are equal. A group's seeds depend
        on `seed`, on its number and on the sizes of the groups before it, and on nothing else.

    Raises
    ------
    InputError
        `seed` is no seed.

    >>> first, second = seed_groups(3, [2, 2])
    >>> len({*first.lanes, *second.lanes})
    4
    >>> seed_groups(3, [2, 2, 5])[:2] == [first, second]
    True
    """
    try:
        root = np.random.SeedSequence(seed)
    except (TypeError, ValueError) as error:
        raise InputError(f"a seed is a whole number of at least 0, got {seed!r}") from error
    taken: set[int] = set()
    groups = []
    for group, count in zip(root.spawn(len(num_lanes)), num_lanes, strict=True):
        noise, environments = group.spawn(2)
        words = tuple(int(word) for word in noise.generate_state(4))
        groups.append(GroupSeed(words, _distinct_seeds(environments, count, taken)))
    return groups


def _distinct_seeds(source: np.random.SeedSequence, count: int, taken: set[int]) -> tuple[int, ...]:
    seeds: list[int] = []
    generator = np.random.Generator(np.random.PCG64(source))
    while len(seeds) < count:
        seed = int(generator.integers(2**31))
        if seed not in taken:
            taken.add(seed)
            seeds.append(seed)
    return tuple(seeds)


def whole_seeds(seeds: Iterable[Any]) -> list[int | None]:
    """Return seeds of environments as Python's own numbers, which is what Gymnasium takes.

    Raises
    ------
    InputError
        One of them is neither ``None`` nor a whole number of at least 0.

    >>> whole_seeds(np.arange(3))
    [0, 1, 2]
    """
    whole: list[int | None] = []
    for seed in seeds:
        try:
            number = None if seed is None else operator.index(seed)
        except TypeError:
            number = -1
        if number is not None and number < 0:
            raise InputError(f"seeds are whole numbers of at least 0, got {seed!r}")
        whole.append(number)
    return whole


@contextmanager
def without_trace() -> Iterator[None]:
    """Undo what the block draws from the global generators: torch's, NumPy's and Python's."""
    before = _get_states()
    try:
        yield
    finally:
        _set_states(before)


class RandomStreams:
    """The global generators' states of one group: torch's, NumPy's and Python's on the CPU.

    Parameters
    ----------
    words : sequence of int, optional
        A `GroupSeed`'s; ``None`` leaves the process's own generators in place.
    alone : bool
        Whether nobody but groups draws in this process, so that nothing else has to be kept.
    """

    _in_place: ClassVar[RandomStreams | None] = None

    def __init__(self, words: Sequence[int] | None, *, alone: bool = False) -> None:
        self._states: tuple[Any, ...] | None = None
        self._alone = alone
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
        """Draw from the group's generators inside the block.

        With ``keep=False`` the draws leave no trace: the next block begins where this one did.
        """
        if self._alone and keep and self._states is not None:
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
        """Put the group's generators in place, where they stay until another group comes."""
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
