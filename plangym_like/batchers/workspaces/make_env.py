"""`make_env`: one environment for a `ParallelGymAgent`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium.wrappers import Autoreset


def make_env(
    env_name: str,
    autoreset: bool = False,
    wrappers: Sequence[Callable[[Any], Any]] = (),
    **kwargs: Any,
) -> gymnasium.Env[Any, Any]:
    """Return ``gymnasium.make(env_name, **kwargs)``, wrapped in each of `wrappers` in turn.

    Parameters
    ----------
    autoreset : bool
        Whether the environment is reset when its episode ends. If not, a `ParallelGymAgent` leaves
        it in its final state until time 0 is run again.

    Examples
    --------
    >>> from gymnasium.wrappers import NormalizeReward
    >>> make_env("CartPole-v1", autoreset=True, wrappers=[NormalizeReward])
    <Autoreset<NormalizeReward<TimeLimit<...CartPoleEnv<CartPole-v1>...>>>
    """
    env = gymnasium.make(env_name, **kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return Autoreset(env) if autoreset else env
