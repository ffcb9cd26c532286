"""What the suites over every backend and family share."""

from __future__ import annotations

from typing import Any

import numpy as np
from comparing import reached, sampler


def batch_of(env: Any, count: int, seed: int = 0) -> tuple[list[Any], np.ndarray]:
    """Return actions and reached states; some of the states have ended."""
    space = sampler(env, seed)
    return [space.sample() for _ in range(count)], reached(env, count, seed)


def spaces_agree(env: Any, obs: Any, count: int) -> None:
    from gymnasium.vector.utils import batch_space

    space = batch_space(env.observation_space, count) if count else None
    assert space is None or space.contains(obs)


def np_leaves(nest: Any) -> Any:
    if isinstance(nest, dict):
        return {key: np_leaves(value) for key, value in nest.items()}
    return tuple(map(np_leaves, nest)) if isinstance(nest, tuple) else np.asarray(nest)


def plain(info: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.item() if isinstance(value, np.generic) else value for key, value in info.items()
    }
