"""Check whether the wrappers around an environment allow its vectorised form."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.wrappers import TimeLimit

from plangym_like.envs.wrapping import is_plain
from plangym_like.snapshots.chains import chain, links
from plangym_like.vector.lanes import gym_env_of, is_plan_env


def shows_its_base(env: Any) -> bool:
    """Return whether a step of `env` is one step of the Gymnasium environment inside it.

    It is not if frames are skipped, for example.
    """
    if not is_plan_env(env):
        return True
    same_space = env.observation_space == gym_env_of(env).observation_space
    same_actions = env.layout.out_of_bounds == "pass"
    return same_space and same_actions and env.frameskip == 1 and not env.return_image


def is_bare(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether `env` renders nothing and has no wrappers except checks and one time limit.

    Return False if ``step`` or ``reset`` of any object in the chain has been replaced.
    """
    if not is_plain(env) or sum(map(_is_limit, chain(env))) > 1:
        return False
    replaced = [link for link in links(env) if not vars(link).keys().isdisjoint(("step", "reset"))]
    return not replaced and env.unwrapped.render_mode is None


def time_limit(env: gymnasium.Env[Any, Any]) -> Any:
    """Return the time limit around `env`, or ``None``."""
    return next(filter(_is_limit, chain(env)), None)


class WrapperChain:
    """The wrappers around a bare environment (see `is_bare`), and whether they have changed.

    Parameters
    ----------
    env : gymnasium.Env
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._wrapped = [(vars(wrapper), wrapper.env) for wrapper in chain(env)]

    def has_changed(self) -> bool:
        """Return whether a wrapper was inserted, or ``step`` or ``reset`` was replaced."""
        return any(
            attributes["env"] is not inner or "step" in attributes or "reset" in attributes
            for attributes, inner in self._wrapped
        )


def _is_limit(wrapper: Any) -> bool:
    return type(wrapper) is TimeLimit
