"""`make_vec`: an id or a factory as a vectorised environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode

from plangym_like.errors import InputError
from plangym_like.lanes.lanes import Lanes
from plangym_like.lanes.make_lanes import EnvSource, env_factory, lanes_from, make_lanes
from plangym_like.lanes.vector_env import PlanVectorEnv

# Fewer environments are stepped faster one after the other (`benchmarks/vector.py`).
_FEWEST_AT_ONCE = 4


def make_vec(
    source: EnvSource | Sequence[EnvSource],
    num_envs: int | None = None,
    *,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    observation_mode: str | tuple[Space[Any], Space[Any]] = "same",
    vectorise: bool = True,
    **kwargs: Any,
) -> PlanVectorEnv:
    """Make n environments that are stepped together, as one `gymnasium.vector.VectorEnv`.

    They give what `gymnasium.vector.SyncVectorEnv` gives, in the fastest form that the environment
    has. States of environments that are made of an id, or by `plangym_like.make`, can be saved and
    restored at any time.

    Parameters
    ----------
    source : str or callable, or a sequence of them
        An id, or a callable that returns a new `gymnasium.Env` or `PlanEnv`; or one for each
        environment. Environments of ids have the time limit and the sticky actions that the id is
        registered with.
    num_envs : int, optional
        n; by default the length of `source`, or 1.
    autoreset_mode, copy, observation_mode
        See `PlanVectorEnv`.
    vectorise : bool
        Whether environments that have a vectorised form are stepped in it.
    kwargs
        For `plangym_like.make`, or for the callable.

    Raises
    ------
    InputError
        `num_envs` is not at least 1, or not the length of `source`.

    Examples
    --------
    >>> import plangym_like
    >>> envs = plangym_like.make_vec("CartPole-v1", 3)
    >>> observations, infos = envs.reset(seed=1)
    >>> observations.shape
    (3, 4)
    >>> states = envs.get_states()
    >>> first = envs.step([0, 1, 1])
    >>> envs.set_states(states)
    >>> second = envs.step([0, 1, 1])
    >>> bool((first[0] == second[0]).all())
    True
    >>> envs.close()
    """
    if isinstance(source, str) or callable(source):
        sources, count = [source], 1 if num_envs is None else num_envs
    else:
        sources, count = list(source), len(source) if num_envs is None else num_envs
        if len(sources) != count:
            raise InputError(f"num_envs is {count}, but there are {len(sources)} factories")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(f"num_envs must be a whole number of at least 1, got {num_envs!r}")
    factories = [env_factory(each, **{**_registered(each), **kwargs}) for each in sources]
    vectorise = vectorise and count >= _FEWEST_AT_ONCE
    lanes: Lanes
    if all(each is sources[0] for each in sources):
        lanes = lanes_from(factories[0], count, vectorise=vectorise)
    else:
        lanes = make_lanes([factory() for factory in factories], vectorise=vectorise)
    envs = PlanVectorEnv(
        lanes, autoreset_mode=autoreset_mode, copy=copy, observation_mode=observation_mode
    )
    if isinstance(source, str):
        envs.spec = gymnasium.spec(source)
    return envs


def _registered(source: EnvSource) -> dict[str, Any]:
    """Return what an id is registered with, and `plangym_like.make` would leave out."""
    if not isinstance(source, str):
        return {}
    spec = gymnasium.registry.get(source)
    stickiness = None if spec is None else spec.kwargs.get("repeat_action_probability")
    return {} if stickiness is None else {"repeat_action_probability": stickiness}
