"""Derive all seeds from one seed, so that results do not depend on the number of workers.

Lanes are divided into groups; an actor is called once for all lanes of a group. Seeds belong to
groups and lanes, never to workers. No two lanes have equal seeds. Each group has four 32-bit words
that seed the random generators of its actor.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from plangym_like.errors import InputError


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
        The seeds of all lanes are different, and below 2**31. The seeds of a group depend only on
        `seed`, on the index of the group, and on the sizes of the groups before it.

    Raises
    ------
    InputError
        `seed` is not a valid seed.

    Examples
    --------
    >>> first, second = seed_groups(3, [2, 2])
    >>> len({*first.lanes, *second.lanes})
    4
    >>> seed_groups(3, [2, 2, 5])[:2] == [first, second]
    True
    """
    try:
        root = np.random.SeedSequence(seed)
    except (TypeError, ValueError) as error:
        raise InputError(f"seed must be a whole number of at least 0, got {seed!r}") from error
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
    """Return seeds as Python integers, which Gymnasium needs; ``None`` stays ``None``.

    Raises
    ------
    InputError
        A seed is neither ``None`` nor a whole number of at least 0.

    Examples
    --------
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
            raise InputError(f"seeds must be whole numbers of at least 0, got {seed!r}")
        whole.append(number)
    return whole


def seed_after_loss(seed: int | None, num_losses: int) -> int | None:
    """Return the new seed for a lane whose environment was lost with its process.

    The new seed depends on the last seed that the lane was given, and on how often the lane has
    been lost. If the lane was never given a seed, return ``None``.

    >>> seed_after_loss(5, 1) != seed_after_loss(5, 2)
    True
    """
    if seed is None:
        return None
    return int(np.random.SeedSequence([seed, num_losses]).generate_state(1)[0])
