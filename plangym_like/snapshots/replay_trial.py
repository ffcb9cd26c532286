"""Whether an environment does the same again when an episode is played again."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

from plangym_like import random_state
from plangym_like.errors import SnapshotError
from plangym_like.snapshots.repetition import compare

_STEPS = 24
_WAY_OUT = (
    "So its states cannot be saved as histories either: draw all randomness from self.np_random "
    "(or from what reset(seed=...) seeds), keep no state outside the object, and look at no clock"
)

_Env = gymnasium.Env[Any, Any]


def try_replay(make: Callable[[], _Env] | None, first: _Env) -> tuple[bool, str]:
    """Play an episode in one copy, another one in a second, and the first again in a third.

    `make` makes copies; where it is ``None``, everything is played in `first`.

    Returns whether episodes have to be begun by a seed (because the environment has generators
    beside ``np_random``), and what differs in the infos (empty: nothing). `first` is a copy that
    was never reset, and is left as it is if there can be others.

    Raises
    ------
    SnapshotError
        An observation, a reward or a flag was another the second time; the message says which.
    """
    space = copy.deepcopy(first.action_space)
    space.seed(0)
    actions = [space.sample() for _ in range(2 * _STEPS)]
    with watched_generators() as told:
        episode = _play(make, first, actions[:_STEPS], seed=0)
        _play(make, first, actions[_STEPS:], seed=1)
        again = _play(make, first, actions[:_STEPS], seed=0)
        note = compare(first, episode, again, -1, told() + _WAY_OUT)
        unseeded = [_play(make, first, actions[:_STEPS], generator=7) for _ in range(2)]
    try:
        compare(first, unseeded[0], unseeded[1], -1, "")
    except SnapshotError:
        return True, note
    return False, note


def _play(
    make: Callable[[], _Env] | None,
    first: _Env,
    actions: list[Any],
    *,
    seed: int | None = None,
    generator: int | None = None,
) -> list[tuple[Any, ...]]:
    env = first if make is None else make()
    base: Any = env
    try:
        if generator is not None:
            base._np_random = random_state.seeded_generator(generator)
        obs, info = env.reset(seed=seed)
        outcomes = [copy.deepcopy((obs, 0.0, False, False, info))]
        for action in actions:
            try:
                outcome = env.step(copy.deepcopy(action))
            except Exception as error:
                # Some environments take only actions that are legal now; to refuse is an outcome.
                outcomes.append((type(error).__name__, 0.0, True, False, {}))
                break
            outcomes.append(copy.deepcopy(tuple(outcome)))
            if outcome[2] or outcome[3]:
                break
    finally:
        if env is not first:
            with contextlib.suppress(Exception):
                env.close()
    return outcomes


@contextlib.contextmanager
def watched_generators() -> Iterator[Callable[[], str]]:
    """Put the global generators back at the end; meanwhile, tell whether any was drawn from."""
    before = random.getstate(), np.random.get_state(legacy=False)

    def told() -> str:
        drawn = []
        if random.getstate() != before[0]:
            drawn.append("the module random")
        if repr(np.random.get_state(legacy=False)) != repr(before[1]):
            drawn.append("numpy.random")
        return f"It draws from the global generator of {' and of '.join(drawn)}. " if drawn else ""

    try:
        yield told
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
