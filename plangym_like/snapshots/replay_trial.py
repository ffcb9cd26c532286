"""Find out whether an episode can be repeated from the environment's random generator."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium

from plangym_like import random_state
from plangym_like.snapshots.differences import difference
from plangym_like.snapshots.open_libraries import close_copy
from plangym_like.snapshots.outcomes import Outcome, ends, outcome_of

_STEPS = 24

_Env = gymnasium.Env[Any, Any]


def needs_seeds(make: Callable[[], _Env] | None, first: _Env) -> bool:
    """Return whether an episode can be repeated only from a seed.

    This is the case if the environment has random generators other than ``np_random``. To find out,
    the same actions are played twice from the same ``np_random``: in two copies that `make`
    returns, or both times in `first` if `make` is ``None``.
    """
    space = copy.deepcopy(first.action_space)
    space.seed(0)
    actions = [space.sample() for _ in range(_STEPS)]
    one, other = (_play(make, first, actions) for _ in range(2))
    return difference(one, other) is not None


def _play(make: Callable[[], _Env] | None, first: _Env, actions: list[Any]) -> list[Outcome]:
    env: Any = first if make is None else make()
    try:
        env._np_random = random_state.seeded_generator(7)
        outcomes: list[Outcome] = [(copy.deepcopy(env.reset()[0]),)]
        for action in actions:
            # Infos are left out; if they differ, states are only approximate.
            outcomes.append(outcome_of(env.step, action, error_text=False)[:4])
            if ends(outcomes[-1]):
                break
    finally:
        if env is not first:
            close_copy(env)
    return outcomes
