"""Whether episodes of an environment can be begun again by its generator, or by a seed only."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import gymnasium

from plangym_like import random_state
from plangym_like.snapshots.differences import difference

_STEPS = 24

_Env = gymnasium.Env[Any, Any]


def needs_seeds(make: Callable[[], _Env] | None, first: _Env) -> bool:
    """Tell whether an episode can be begun again by a seed only.

    That is so where the environment has other generators than ``np_random``. Two copies that
    `make` returns begin with the same generator; where it is ``None``, `first` does twice.
    """
    space = copy.deepcopy(first.action_space)
    space.seed(0)
    actions = [space.sample() for _ in range(_STEPS)]
    one, other = (_play(make, first, actions) for _ in range(2))
    return len(one) != len(other) or difference(one, other) is not None


def _play(
    make: Callable[[], _Env] | None, first: _Env, actions: list[Any]
) -> list[tuple[Any, ...]]:
    env = first if make is None else make()
    base: Any = env
    try:
        base._np_random = random_state.seeded_generator(7)
        outcomes: list[tuple[Any, ...]] = [(copy.deepcopy(env.reset()[0]),)]
        for action in actions:
            try:
                outcome = env.step(copy.deepcopy(action))
            except Exception as error:
                # Some environments take only actions that are legal now; to refuse is an outcome.
                outcomes.append((type(error).__name__,))
                break
            # Infos have no part in it: what differs there makes states approximate.
            outcomes.append(copy.deepcopy(tuple(outcome[:4])))
            if outcome[2] or outcome[3]:
                break
    finally:
        if env is not first:
            with contextlib.suppress(Exception):
                env.close()
    return outcomes
