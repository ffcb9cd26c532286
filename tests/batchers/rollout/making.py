"""Each way to roll out environments: three lanes of a group, or two groups of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plangym_like.batchers.rollout import multi, same, single

LANES = 3


def same_lanes(factory: Callable[[], Any], actor: Any, n_steps: int = 5, **options: Any) -> Any:
    return same.rollout([factory() for _ in range(LANES)], actor, n_steps, **options)


def single_lanes(factory: Callable[[], Any], actor: Any, n_steps: int = 5, **options: Any) -> Any:
    return single.rollout(factory, actor, n_steps, LANES, **options)


def two_groups(
    factory: Callable[[], Any], actor: Any, n_steps: int = 5, n_per_batch: int = 2, **options: Any
) -> Any:
    return multi.rollout(
        factory, actor, n_steps, 2, LANES, 4, n_per_batch, ordered=True, **{"workers": 2, **options}
    )


def two_groups_here(*args: Any, **options: Any) -> Any:
    return two_groups(*args, **options, workers=0)
