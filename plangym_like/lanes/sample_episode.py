"""Short episodes of new environments, with which lanes in other processes are compared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from plangym_like.execution.short_episode import (
    ShortEpisode,
    compare,
    first_difference,
    global_generators_seeded,
    play,
)
from plangym_like.lanes.lanes import gym_env_of, is_plan_env
from plangym_like.lanes.make_lanes import EnvSource, make_envs

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

    Return ``None`` if there is nothing to compare: a second environment gives other results, or the
    environment is approximate.
    """
    episode, is_exact = _played(sample)
    if is_exact is False:
        return None
    if is_exact is None:
        again, _ = _played(sample)
        if len(again.outcomes) != len(episode.outcomes) or first_difference(episode, again):
            return None
    return episode


def _played(sample: Sample) -> tuple[ShortEpisode, bool | None]:
    """Return the episode, and whether states are exact; ``None`` if there are no states."""
    with global_generators_seeded():
        env, close = sample()
        try:
            return play(gym_env_of(env)), env.exactness == "exact" if is_plan_env(env) else None
        finally:
            close()


def compare_sample(sample: Sample, expected: ShortEpisode) -> None:
    """In a worker, make an environment, and repeat the episode `expected` of the caller in it.

    Raises
    ------
    DifferentWorkerError
        The results differ.
    """
    with global_generators_seeded():
        env, close = sample()
        try:
            compare(gym_env_of(env), expected)
        finally:
            close()


def may_be_changed(source: EnvSource) -> bool:
    """Return whether this program may have changed the module of an id, which it has imported."""
    spec = gymnasium.registry.get(source) if isinstance(source, str) else None
    if spec is None or not isinstance(spec.entry_point, str):
        return True
    return spec.entry_point.partition(":")[0] in sys.modules
