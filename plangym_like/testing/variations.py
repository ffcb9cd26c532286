"""Promises about what a row may vary: seeds, dt, resets without a seed, wrappers around it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium.wrappers import RecordEpisodeStatistics, StickyAction

from plangym_like import spaces
from plangym_like.errors import SnapshotError
from plangym_like.snapshots.differences import difference
from plangym_like.testing.journeys import (
    Moment,
    compare_outcomes,
    compare_states,
    take,
    travel,
)
from plangym_like.testing.promises import Broken, Evidence, as_in_batch, compare_batches

_LONGEST = 3
_WRAPPERS: tuple[Any, ...] = (
    (StickyAction, {"repeat_action_probability": 0.25}),
    (RecordEpisodeStatistics, {}),
)


def handed_out(evidence: Evidence) -> bool:
    """Keep what some steps return, and see whether later steps change it."""
    env = evidence.used()
    journey = evidence.journeys[0]
    obs, info = env.reset(seed=journey.seed, return_state=False)
    kept = [((obs, info), copy.deepcopy((obs, info)))]
    for moment in journey.moments[: evidence.steps]:
        if len(moment.outcome) == 1:
            break
        result = env.step(copy.deepcopy(moment.action))
        parts = result[0], result[4]
        kept.append((parts, copy.deepcopy(parts)))
    for step, (now, then) in enumerate(kept):
        found = difference(then[0], now[0], "observation") or difference(then[1], now[1], "info")
        if found:
            raise Broken(step, found[0], f"{found[1]} (after later steps)")
    return True


def seeds(evidence: Evidence) -> bool:
    """Step the chosen moments with seeds, and again in another copy and order."""
    env, other = evidence.used(), evidence.fresh()
    actions, states = evidence.batch()
    numbers = np.arange(len(actions)) + evidence.seed
    order = np.arange(len(actions))[::-1]
    one = env.step_batch(actions, states, seeds=numbers)
    turned = [actions[index] for index in order]
    again = other.step_batch(turned, states[order], seeds=numbers[order])
    compare_batches(env, one, again, order, "with seeds, in another order and copy")
    return True


def dt(evidence: Evidence) -> bool:
    """Hold the actions of the chosen moments for several steps, and take these one by one."""
    env, other = evidence.used(), evidence.fresh()
    if not isinstance(env.frameskip, int):
        # How many frames an action lasts is drawn once, not once for each of its steps.
        return False
    actions, states = evidence.batch()
    held = 1 + np.arange(len(actions)) % _LONGEST
    try:
        batch = env.step_batch(actions, states, dt=held)
    except Exception:
        # Some environments take an action only once.
        return False
    for row, (action, state) in enumerate(zip(actions, states, strict=True)):
        other.set_state(state)
        total, flags = 0.0, (False, False)
        for _ in range(held[row]):
            obs, reward, *flags, _ = other.step(copy.deepcopy(action))[:5]
            total += reward
            if any(flags):
                break
        found = (
            difference(as_in_batch(env, obs), spaces.take(batch.obs, row), "observation")
            or difference(bool(flags[0]), bool(batch.terminateds[row]), "terminated")
            or difference(bool(flags[1]), bool(batch.truncateds[row]), "truncated")
            or compare_states(env, other.get_state(), batch.states[row])
        )
        if found is None and not np.isclose(total, batch.rewards[row], rtol=1e-12, atol=0):
            found = "reward", f"{total} and {batch.rewards[row]}"
        if found:
            raise Broken(int(held[row]), found[0], f"{found[1]} (row {row}, dt={held[row]})")
    return True


def unseeded(evidence: Evidence) -> bool:
    """Play episodes that begin without a seed, and go on from their states in other copies."""
    new, other = evidence.fresh(), evidence.used()
    for env in (new, new, other):
        _continue_elsewhere(env, other if env is new else new, None, evidence.steps)
    return True


def wrapped(evidence: Evidence) -> bool:
    """Do the same as `unseeded`, with and without a seed, in wrappers that draw and count."""
    if evidence.wrap is None:
        return False
    try:
        env = evidence.fresh_from(lambda: evidence.wrap(_WRAPPERS))  # type: ignore[misc]
        other = evidence.fresh_from(lambda: evidence.wrap(_WRAPPERS))  # type: ignore[misc]
    except SnapshotError:
        raise
    except TypeError:
        # A simulator of the user's own need not take wrappers.
        return False
    for seed in (evidence.seed, None):
        _continue_elsewhere(env, other, seed, evidence.steps)
    return True


VARIATIONS = {
    "handed out": handed_out,
    "seeds": seeds,
    "dt": dt,
    "unseeded": unseeded,
    "wrappers": wrapped,
}


def _continue_elsewhere(env: Any, other: Any, seed: int | None, steps: int) -> None:
    """Play an episode in `env`, and go on from its states, the last one first, in `other`."""
    journey = travel(env, seed, steps, save=True)
    rows = [*(moment.state for moment in journey.moments), journey.last]
    places = range(len(journey.moments))
    for number in sorted({*places[:: max(1, len(places) // 3)]}, reverse=True):
        other.set_state(rows[number])
        for step, moment in enumerate(journey.moments[number:], number + 1):
            found = _compare_step(other, moment, rows[step])
            if found:
                how = "in an episode without a seed, " if seed is None else ""
                raise Broken(step, found[0], f"{found[1]} ({how}from the state after {number})")


def _compare_step(env: Any, moment: Moment, following: Any) -> tuple[str, str] | None:
    found = compare_outcomes(moment.outcome, take(env, moment.action))
    if found is None and len(moment.outcome) > 1:
        reached = env.get_state()
        found = compare_states(env, following, reached)
        env.set_state(reached)
    return found
