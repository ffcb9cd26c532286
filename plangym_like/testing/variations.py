"""More checks of `check_env`: returned results, seeds, ``dt``, unseeded resets, and wrappers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium.wrappers import RecordEpisodeStatistics, StickyAction

from plangym_like.errors import SnapshotError
from plangym_like.snapshots.differences import difference
from plangym_like.snapshots.trial import compare_outcomes
from plangym_like.testing.check_context import (
    CheckContext,
    DifferenceFound,
    as_in_batch,
    compare_batches,
    row_outcome,
)
from plangym_like.testing.reference_episodes import compare_continued, compare_states, play

_LONGEST = 3
_WRAPPERS: tuple[Any, ...] = (
    (StickyAction, {"repeat_action_probability": 0.25}),
    (RecordEpisodeStatistics, {}),
)


def handed_out(context: CheckContext) -> bool:
    """Keep the results of some steps, and check that later steps do not change them."""
    env = context.used()
    episode = context.episodes[0]
    obs, info = env.reset(seed=episode.seed, return_state=False)
    kept = [((obs, info), copy.deepcopy((obs, info)))]
    for step in episode.steps[: context.steps]:
        if len(step.outcome) == 1:
            break
        result = env.step(copy.deepcopy(step.action))
        parts = result[0], result[4]
        kept.append((parts, copy.deepcopy(parts)))
    for number, (now, then) in enumerate(kept):
        found = difference(then[0], now[0], "observation") or difference(then[1], now[1], "info")
        if found:
            raise DifferenceFound(number, found[0], f"{found[1]} (after later steps)")
    return True


def seeds(context: CheckContext) -> bool:
    """Step the chosen states with seeds, and again in another order in another copy; compare."""
    env, other = context.used(), context.fresh()
    actions, states = context.batch()
    numbers = np.arange(len(actions)) + context.seed
    order = np.arange(len(actions))[::-1]
    one = env.step_batch(actions, states, seeds=numbers)
    turned = [actions[index] for index in order]
    again = other.step_batch(turned, states[order], seeds=numbers[order])
    compare_batches(env, one, again, order, "with seeds, in another order and copy")
    return True


def dt(context: CheckContext) -> bool:
    """Hold the chosen actions for several steps, and compare with taking these steps one by one."""
    env, other = context.used(), context.fresh()
    if not isinstance(env.frameskip, int):
        # A random frameskip is drawn once per action, not once for each of its steps.
        return False
    actions, states = context.batch()
    held = 1 + np.arange(len(actions)) % _LONGEST
    try:
        batch = env.step_batch(actions, states, dt=held)
    except Exception:
        # Some environments accept an action only once.
        return False
    for row, (action, state) in enumerate(zip(actions, states, strict=True)):
        other.set_state(state)
        total, flags = 0.0, (False, False)
        for _ in range(held[row]):
            obs, reward, *flags, _ = other.step(copy.deepcopy(action))[:5]
            total += reward
            if any(flags):
                break
        got = (*row_outcome(batch, row)[:4], {})
        # Sums may be rounded differently.
        total = got[1] if np.isclose(total, got[1], rtol=1e-12, atol=0) else total
        found = compare_outcomes(as_in_batch(env, (obs, total, *flags, {})), got)
        if found := found or compare_states(env, other.get_state(), batch.states[row]):
            detail = f"{found[1]} (row {row}, dt={held[row]})"
            raise DifferenceFound(int(held[row]), found[0], detail)
    return True


def unseeded(context: CheckContext) -> bool:
    """Play episodes that begin without a seed, and continue from their states in another copy."""
    new, other = context.fresh(), context.used()
    for env in (new, new, other):
        _continue_elsewhere(env, other if env is new else new, None, context.steps)
    return True


def wrapped(context: CheckContext) -> bool:
    """Play episodes inside wrappers that draw random numbers and count steps.

    One episode begins with a seed, one without. Another copy continues from their states.
    """
    try:
        env, other = context.fresh(_WRAPPERS), context.fresh(_WRAPPERS)
    except TypeError as error:
        if isinstance(error, SnapshotError):
            raise
        # A user's own simulator need not accept wrappers.
        return False
    for seed in (context.seed, None):
        _continue_elsewhere(env, other, seed, context.steps)
    return True


VARIATIONS = {
    "handed out": handed_out,
    "seeds": seeds,
    "dt": dt,
    "unseeded": unseeded,
    "wrappers": wrapped,
}


def _continue_elsewhere(env: Any, other: Any, seed: int | None, steps: int) -> None:
    """Play an episode in `env`; continue from some of its states in `other`, latest first."""
    episode = play(env, seed, steps, save=True)
    numbers = range(len(episode.steps))
    for number in sorted({*numbers[:: max(1, len(numbers) // 3)]}, reverse=True):
        taken, found = compare_continued(other, env, episode, number, steps)
        if found:
            how = "in an episode without a seed, " if seed is None else ""
            detail = f"{found[1]} ({how}from the state after {number} steps)"
            raise DifferenceFound(number + taken, found[0], detail)
