"""From environments, or what makes them, to lanes in the fastest form that they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from plangym_like.batchers.engine.gym_lanes import GymLanes
from plangym_like.batchers.engine.lanes import Lanes
from plangym_like.errors import InputError


def make_lanes(envs: Sequence[gymnasium.Env[Any, Any]], *, vectorise: bool = True) -> Lanes:
    """Return lanes of `envs`: stepped at once where they have a vectorised form, else one by one.

    The results are the same byte for byte. In the vectorised form the environments themselves
    are only reset; they do not move with the steps.
    """
    if vectorise and envs and type(envs[0].unwrapped).__module__.startswith("gymnasium."):
        from plangym_like.batchers.engine.classic_lanes import ClassicLanes, has_common_form

        if has_common_form(envs):
            return ClassicLanes(envs)
    return GymLanes(envs)


def make_envs(factory: Callable[..., Any], count: int) -> list[gymnasium.Env[Any, Any]]:
    """Return `count` environments of the user's `factory`.

    Raises
    ------
    InputError
        The factory made something else, or the same environment twice.
    """
    envs: list[Any] = []
    for number in range(count):
        try:
            env = factory()
            if not isinstance(env, gymnasium.Env):
                raise InputError(f"the factory is to return a gymnasium.Env, but returned {env!r}")
            if any(env is other for other in envs):
                raise InputError(
                    "the factory returned the same environment twice; it has to make a new one at "
                    "every call"
                )
        except StopIteration as error:
            raise RuntimeError("the factory raised StopIteration") from error
        except BaseException as error:
            error.add_note(f"raised while environment {number} of {count} was made")
            raise
        envs.append(env)
    return envs
