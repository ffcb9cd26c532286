"""`Functions`: a common form for functional environments from different libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.experimental.functional import FuncEnv

from plangym_like.errors import InputError


@dataclass(frozen=True, eq=False)
class Functions:
    """A functional environment, as functions that JAX can trace.

    Attributes
    ----------
    begin : callable
        Takes a random key; returns a state and its observation.
    advance : callable
        Takes a state, an action and a random key; returns the next state, its observation, reward,
        terminated and truncated. A state that has ended may be advanced too; this does not start a
        new episode.
    action_space, observation_space : gymnasium.Space
        The spaces of single actions and observations.
    """

    begin: Callable[[Any], tuple[Any, Any]]
    advance: Callable[[Any, Any, Any], tuple[Any, Any, Any, Any, Any]]
    action_space: gymnasium.Space[Any]
    observation_space: gymnasium.Space[Any]


def functions_of(env: Any) -> Functions:
    """Return `env` as `Functions`.

    `env` may be a `Functions`, Gymnasium's `FuncEnv`, or an object like pgx's environments. In the
    last case, it has ``num_actions``, ``init(key)`` and ``step(state, action, key)``, and its
    states have ``current_player``, ``observation``, ``rewards``, ``terminated`` and ``truncated``.

    Raises
    ------
    InputError
        `env` is none of these.
    """
    if isinstance(env, Functions):
        return env
    if isinstance(env, FuncEnv):
        return _of_gymnasium(env)
    methods = getattr(env, "init", None), getattr(env, "step", None)
    if all(map(callable, methods)) and hasattr(env, "num_actions"):
        return _of_pgx(env)
    raise InputError(
        f"{type(env).__name__} is not a known kind of functional environment: it lacks pgx's init, "
        "step or num_actions, and is not a gymnasium.experimental.functional.FuncEnv; pass a "
        "plangym_like.envs.functions.Functions instead"
    )


def _of_gymnasium(env: Any) -> Functions:
    def begin(key: Any) -> tuple[Any, Any]:
        state = env.initial(rng=key)
        return state, env.observation(state, key)

    def advance(state: Any, action: Any, key: Any) -> Any:
        following = env.transition(state, action, key)
        return (
            following,
            env.observation(following, key),
            env.reward(state, action, following, key),
            env.terminal(following, key),
            jnp.asarray(False),
        )

    return Functions(begin, advance, env.action_space, env.observation_space)


def _of_pgx(env: Any) -> Functions:
    def begin(key: Any) -> tuple[Any, Any]:
        state = env.init(key)
        return state, state.observation

    def advance(state: Any, action: Any, key: Any) -> Any:
        following = env.step(state, action, key)
        # The reward is that of the player who moved; the observation is that of the next player.
        reward = following.rewards[state.current_player]
        return (
            following,
            following.observation,
            reward,
            following.terminated,
            following.truncated,
        )

    seen = jax.eval_shape(begin, jax.random.PRNGKey(0))[1]
    if seen.dtype == bool:
        space = gymnasium.spaces.Box(0, 1, seen.shape, np.uint8)
    elif np.issubdtype(seen.dtype, np.integer):
        limits = np.iinfo(seen.dtype)
        space = gymnasium.spaces.Box(limits.min, limits.max, seen.shape, seen.dtype)
    else:
        space = gymnasium.spaces.Box(-np.inf, np.inf, seen.shape, seen.dtype)
    return Functions(begin, advance, gymnasium.spaces.Discrete(env.num_actions), space)
