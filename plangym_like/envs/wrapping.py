"""Functions that build and change the chain of wrappers around an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit

from plangym_like.errors import InputError, SnapshotError
from plangym_like.simulator import name_of
from plangym_like.snapshots.known_wrappers import TRANSPARENT, chain, links

WrapperLike = Callable[..., Any] | tuple[Any, ...]


def as_env(made: Any, source: Callable[..., Any]) -> gymnasium.Env[Any, Any]:
    """Return `made`, which the callable `source` returned, if it is an environment.

    Raises
    ------
    InputError
        `made` is not a `gymnasium.Env`.
    """
    if isinstance(made, gymnasium.Env):
        return made
    raise InputError(
        f"{name_of(source)} must return a gymnasium.Env, got an object of class "
        f"{type(made).__module__}.{type(made).__qualname__}"
    )


def is_plain(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether no wrapper in the chain `env` changes observations, rewards or infos."""
    return all(type(wrapper) in (*TRANSPARENT, TimeLimit) for wrapper in chain(env))


def without_time_limit(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return the chain `env` without its `TimeLimit` wrappers."""
    if isinstance(env, TimeLimit):
        return without_time_limit(env.env)
    if isinstance(env, gymnasium.Wrapper):
        env.env = without_time_limit(env.env)
    return env


def first_reset(env: gymnasium.Env[Any, Any]) -> None:
    """Reset the chain `env` with seed 0, to create the attributes that exist only after a reset.

    Raises
    ------
    SnapshotError
        A wrapper replaces its environment when it is reset.
    """
    before = links(env)
    env.reset(seed=0)
    if any(one is not other for one, other in zip(before, links(env), strict=False)):
        raise SnapshotError(
            "a wrapper replaces its environment when it is reset, so the new environment is not "
            "the one whose state is saved; keep the old environment, and change or reset it"
        )


def forget_seed(env: gymnasium.Env[Any, Any]) -> None:
    """Remove every random generator in the chain, so that the next use makes a fresh one."""
    for link in links(env):
        if isinstance(vars(link).get("_np_random"), np.random.Generator):
            link._np_random = None
            if "_np_random_seed" in vars(link):
                link._np_random_seed = None


def wrap(env: gymnasium.Env[Any, Any], item: WrapperLike) -> gymnasium.Env[Any, Any]:
    """Return `env` wrapped in `item`, a wrapper class or a tuple of a class and its arguments."""
    if not isinstance(item, tuple):
        wrapped: gymnasium.Env[Any, Any] = item(env)
        return wrapped
    wrapper, arguments = item
    if isinstance(arguments, Mapping):
        wrapped = wrapper(env, **arguments)
    elif isinstance(arguments, (list, tuple)):
        wrapped = wrapper(env, *arguments)
    else:
        wrapped = wrapper(env, arguments)
    return wrapped
