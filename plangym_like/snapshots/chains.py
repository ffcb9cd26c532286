"""Walk through the wrappers around an environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium

from plangym_like.errors import SnapshotError
from plangym_like.snapshots.configuration import qualified_name


def chain(env: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Wrapper[Any, Any, Any, Any]]:
    """Yield the wrappers around `env`, outermost first.

    Raises
    ------
    SnapshotError
        The innermost object is not a `gymnasium.Env`.
    """
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    if not isinstance(env, gymnasium.Env):
        raise SnapshotError(
            f"an object of class {qualified_name(type(env))} is not a gymnasium.Env; an object "
            "that steps several environments, in threads or in processes, cannot be saved: give a "
            "single environment"
        )


def innermost(env: gymnasium.Env[Any, Any]) -> Any:
    """Return the `gymnasium.Env` inside all wrappers of `env`.

    Its attribute ``unwrapped`` may be an object of another library, which has other methods.
    """
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
    return env


def links(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """Return the wrappers around `env`, outermost first, and then the environment inside."""
    return [*chain(env), innermost(env)]
