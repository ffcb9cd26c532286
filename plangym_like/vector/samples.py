"""Short episodes of environments, which batchers compare between processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from plangym_like.execution.short_episode import (
    ShortEpisode,
    check,
    first_difference,
    global_generators_seeded,
    play,
)
from plangym_like.processes.wire import dumps, loads
from plangym_like.vector.lanes import gym_env_of, is_plan_env
from plangym_like.vector.make_lanes import EnvSource, make_envs

# A function that returns a new environment, and a function that closes it.
Sample = Callable[[], tuple[Any, Callable[[], Any]]]


def sample_of(source: EnvSource) -> Sample:
    """Return the function that makes one environment from `source`."""
    return partial(_make_one, source)


def _make_one(source: EnvSource) -> tuple[Any, Callable[[], Any]]:
    (env,) = make_envs(source, 1)
    return env, env.close


def sample_episode(sample: Sample) -> ShortEpisode | None:
    """Play a short episode in a new environment, and return its results.

    Return ``None`` if there is nothing to compare: a second environment gives other results, the
    environment is approximate, or it cannot be made here.
    """
    try:
        episode = _played(sample)
        again = None if episode is None else _played(sample)
    except Exception:  # raised again when the workers make their environments
        return None
    if episode is None or again is None or len(again.outcomes) != len(episode.outcomes):
        return None
    return None if first_difference(episode, again, exact=True) else episode


def compare_sample(sample: Sample, expected: ShortEpisode) -> None:
    """In a worker, make an environment, and repeat the episode `expected` of the caller in it.

    If the results differ, compare a second environment, because the first one that a process makes
    may be different. Objects that `sample` holds, which may be environments, are not used: they are
    copied first.

    Raises
    ------
    DifferentWorkerError
        The results of both environments differ.
    """
    sample = loads(dumps(sample))
    found = _played(sample)
    if found is not None and first_difference(expected, found):
        found = _played(sample)
    if found is not None:
        check(expected, found)


def _played(sample: Sample) -> ShortEpisode | None:
    """Return a short episode of a new environment, or ``None`` if it is approximate."""
    with global_generators_seeded():
        env, close = sample()
        try:
            is_exact = not is_plan_env(env) or env.exactness == "exact"
            return play(gym_env_of(env)) if is_exact else None
        finally:
            close()
