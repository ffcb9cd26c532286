"""The states that a batch starts from: taken from one random game, the same for all contenders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 0
# The first frames of an Atari game are a title tune in which nothing moves.
FIRST_ATARI_FRAME = 200
ATARI_STRIDE = 4
# Falls are rare within so few steps, so hardly a row starts at the end of its episode.
CART_POLE_STEPS = 8


def walk_actions(num_actions: int, length: int) -> NDArray[np.int64]:
    """Return the actions of the game that the states are taken from, ``(length,)``."""
    return np.random.default_rng(SEED).integers(0, num_actions, length)


def batch_actions(num_actions: int, count: int) -> NDArray[np.int64]:
    """Return one action for each row of a batch, ``(count,)``."""
    return np.random.default_rng(SEED + 1).integers(0, num_actions, count)


def atari_states(
    num_actions: int, count: int, save: Callable[[], Any], step: Callable[[int], object]
) -> list[Any]:
    """Play a game with ``step(action)``, and return ``count`` states that ``save()`` returned."""
    states = []
    frames = walk_actions(num_actions, FIRST_ATARI_FRAME + ATARI_STRIDE * count).tolist()
    for frame, action in enumerate(frames):
        if frame >= FIRST_ATARI_FRAME and (frame - FIRST_ATARI_FRAME) % ATARI_STRIDE == 0:
            states.append(save())
        step(action)
    return states


def classic_states(
    num_actions: int,
    count: int,
    reset: Callable[[int], object],
    save: Callable[[], Any],
    step: Callable[[int], object],
) -> list[Any]:
    """Return what ``save()`` returned after a few steps of `count` seeded episodes."""
    states = []
    actions = walk_actions(num_actions, CART_POLE_STEPS).tolist()
    for seed in range(count):
        reset(seed)
        for action in actions:
            step(action)
        states.append(save())
    return states


def single_steps(env: Any, actions: Sequence[Any], states: Sequence[Any]) -> Callable[[int], int]:
    """Return what takes one step from the next of these states."""
    pairs = cycle(zip(actions, states, strict=True))

    def step(count: int) -> int:
        action, state = next(pairs)
        env.step(action, state=state)
        return 1

    return step
