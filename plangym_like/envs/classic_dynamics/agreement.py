"""Whether an array form and an environment agree to the last bit, on this machine.

The forms rest on what NumPy and libm do for single numbers and for arrays, and both are free to
do otherwise on another processor or in another version. So a form is tried out before it is used.
"""

from __future__ import annotations

import copy
import math
from functools import cache
from typing import Any

import numpy as np

from plangym_like.envs.classic_dynamics.columns import Columns
from plangym_like.envs.classic_dynamics.dynamics import Dynamics, NotVectorisableError

_TRIALS = 32


def agrees(form: Dynamics, env: Any, dtype: Any = np.float32) -> bool:
    """Tell whether `form` steps as `env` does, tried on a copy; `env` itself is left alone.

    Actions of a box are tried in `dtype`, some of them out of bounds.
    """
    if not elementary_functions_agree():
        return False
    twin = copy.copy(env)
    twin.render_mode = None
    rng = np.random.Generator(np.random.PCG64(4))
    size = len(form.order)
    states = rng.uniform(-1, 1, (_TRIALS, size)) * form.reach
    if form.num_actions:
        actions: Any = rng.integers(form.num_actions, size=_TRIALS)
    else:
        space, kind = env.action_space, np.dtype(dtype)
        drawn = rng.uniform(1.4 * space.low, 1.4 * space.high, (_TRIALS, 1))
        actions = (np.abs(drawn.round()) if kind.kind == "u" else drawn).astype(kind)
    for single in (False, True) if form.takes_single else (False,):
        starts = states.astype(np.float32 if single else np.float64)
        columns = Columns(
            np.empty((size, _TRIALS)),
            np.full(_TRIALS, form.no_hidden),
            np.full(_TRIALS, single),
            None,
        )
        form.load(starts.astype(np.float64), columns.x)
        rewards, terminated = np.empty(_TRIALS), np.empty(_TRIALS, bool)
        observed = np.empty((_TRIALS, *env.observation_space.shape), np.float32)
        with np.errstate(all="ignore"):
            try:
                form.advance(columns, actions, rewards, terminated)
            except NotVectorisableError:
                return False
            reached = np.empty((_TRIALS, size))
            form.store(columns.x, reached)
            form.observe(columns.x, reached, observed)
            for row in range(_TRIALS):
                twin.state = starts[row]
                if form.hidden:
                    setattr(twin, form.hidden, None)
                obs, reward, ended, _, _ = twin.step(actions[row])
                same = (
                    np.asarray(twin.state, np.float64).tobytes() == reached[row].tobytes()
                    and np.asarray(obs).tobytes() == observed[row].tobytes()
                    and float(reward) == rewards[row]
                    and ended == terminated[row]
                )
                if not same:
                    return False
    return True


@cache
def elementary_functions_agree() -> bool:
    """Tell whether sine, cosine and square are the same for an array as for each of its numbers."""
    numbers = np.random.Generator(np.random.PCG64(5)).normal(0, 3, 4096)
    pairs = (
        (np.cos(numbers), [math.cos(x) for x in numbers.tolist()]),
        (np.cos(numbers), [np.cos(x) for x in numbers]),
        (np.sin(numbers), [np.sin(x) for x in numbers]),
        (np.float_power(numbers, 2.0), [x**2 for x in numbers]),
    )
    return all(array.tolist() == singles for array, singles in pairs)
