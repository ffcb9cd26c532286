"""What it costs to step an environment from a state, beside the environment's own step.

`plangym-like bench` and ``benchmarks/saving.py`` show these figures.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.utils.env_checker import data_equivalence
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.planners.action_sets import ActionSampler, count_actions
from plangym_like.states.rows import Row

BATCH = 64
COLUMNS = ("own step", "deepcopy + step", "step(a, state=s)", f"a row of a batch of {BATCH}")
_SLICE_SECONDS = 0.02
# So many steps must be the same in a copy for `copy.deepcopy` to be measured.
_COMPARED = 4

Calls = list[Callable[[], Any] | None]


def calls_of(env: PlanEnv, source: Any, **kwargs: Any) -> Calls:
    """Return a function to measure for each of `COLUMNS`, or ``None`` where there is none.

    The states are those of one random episode, or several if episodes are short.

    Parameters
    ----------
    env : PlanEnv
        The environment of this package.
    source : str or callable
        What `env` was made from.
    kwargs
        The arguments of the environment.
    """
    rows, actions, _ = random_states(env, 0, BATCH)
    return [
        _own_step(source, kwargs, actions),
        _copied_step(source, kwargs, actions),
        _in_turn(lambda at: env.step(actions[at], state=rows[at])),
        partial(env.step_batch, actions, rows),
    ]


def random_states(env: PlanEnv, seed: int, count: int) -> tuple[Row, Any, NDArray[np.bool_]]:
    """Return states ``(count, state_nbytes)`` of random episodes, and the actions taken in them.

    The last result ``(count, A)`` says which of all actions are legal in these states.
    """
    sample, rng = ActionSampler(env, "bench"), np.random.default_rng(seed)
    actions = sample(rng, count)
    first = env.reset(seed=seed)
    state, mask = first.state, _legal(env, first.info)
    root, states, legal = (state, mask), [], []
    for at in range(count):
        states.append(np.array(state))
        legal.append(mask)
        actions[at : at + 1] = sample.among(actions[at : at + 1], mask[None], rng)
        result = env.step(actions[at], state=state)
        over = result.terminated or result.truncated
        state, mask = root if over else (result.state, _legal(env, result.info))
    return np.stack(states), actions, np.stack(legal)


def _legal(env: PlanEnv, info: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Return which of all actions ``(A,)`` are legal: in a game, those of the mask in its info."""
    mask = info.get("action_mask") if _is_game(env, info) else None
    legal: NDArray[np.bool_] = np.ones(count_actions(env.action_space) or 0, bool)
    return legal if mask is None or not np.any(mask) else np.asarray(mask).astype(bool)


def _is_game(env: Any, info: Mapping[str, Any]) -> bool:
    return "to_play" in info and isinstance(env.action_space, Discrete)


def measure(calls: Calls, seconds: float) -> dict[str, float | None]:
    """Return the median microseconds of CPU time by column: of one step, or of one row.

    The calls are measured in turn, in slices, for about `seconds` in total, and once at least.
    """
    slices: list[list[float]] = [[] for _ in calls]
    for call in calls:
        _slice(call, min(0.1, seconds / 4))
    until = time.perf_counter() + seconds
    while not any(slices) or time.perf_counter() < until:
        for call, taken in zip(calls, slices, strict=True):
            if call is not None:
                taken.append(_slice(call, _SLICE_SECONDS))
    return {
        column: statistics.median(taken) / (BATCH if column == COLUMNS[-1] else 1)
        if taken
        else None
        for column, taken in zip(COLUMNS, slices, strict=True)
    }


def _slice(call: Callable[[], Any] | None, seconds: float) -> float:
    """Call `call` for `seconds`; return the microseconds of CPU time of one call."""
    if call is None:
        return 0.0
    begun, count = time.process_time(), 0
    while not count or time.process_time() - begun < seconds:
        call()
        count += 1
    return 1e6 * (time.process_time() - begun) / count


def _in_turn(call: Callable[[int], Any]) -> Callable[[], Any]:
    """Return a function that calls `call` with the numbers below `BATCH`, one after the other."""
    at = -1

    def next_call() -> None:
        nonlocal at
        at = (at + 1) % BATCH
        call(at)

    return next_call


def _made(source: Any, kwargs: dict[str, Any]) -> Any:
    if callable(source):
        return source(**kwargs)
    return gymnasium.make(source, disable_env_checker=True, **kwargs)


def _own_step(source: Any, kwargs: dict[str, Any], actions: Any) -> Callable[[], Any] | None:
    """Return a function that steps the environment itself; ``None`` if Gymnasium lacks it."""
    try:
        own = _made(source, kwargs)
        own.reset(seed=0)
        own.step(actions[0])
    except Exception:  # an id of this package alone, or arguments of `make`
        return None

    is_game = _is_game(own, own.reset(seed=0)[1])

    def step(at: int) -> None:
        if is_game and at == 0:  # elsewhere, the first actions may not be legal
            own.reset(seed=0)
        if any(own.step(actions[at])[2:4]):
            own.reset(seed=0 if is_game else None)

    return _in_turn(step)


def _copied_step(source: Any, kwargs: dict[str, Any], actions: Any) -> Callable[[], Any] | None:
    """Return a function that copies an environment and steps the copy.

    Return ``None`` if copies cannot be made, or do not go on as the environment does.
    """
    try:
        own = _made(source, kwargs)
        own.reset(seed=0)
        copies: list[Any] = []
        for at, action in enumerate(actions):
            copies.append(copy.deepcopy(own))
            result = own.step(action)
            if at < _COMPARED and not _are_equal(copy.deepcopy(copies[-1]).step(action), result):
                return None
            if any(result[2:4]):
                own.reset(seed=0)
    except Exception:
        return None
    return _in_turn(lambda at: copy.deepcopy(copies[at]).step(actions[at]))


def _are_equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return data_equivalence(one[0], other[0], exact=True) and tuple(one[1:4]) == tuple(other[1:4])
