"""The checks of `check_env`, one function for each check.

Each function raises `DifferenceFound` if the check fails, and returns whether the check applies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.wrappers import RecordEpisodeStatistics, StickyAction

from plangym_like.errors import ObservationError, RewardError, SnapshotError
from plangym_like.processes.child import platform_has_workers
from plangym_like.snapshots.differences import difference, watched_generators
from plangym_like.snapshots.trial import compare_outcomes
from plangym_like.testing.check_context import (
    CheckContext,
    DifferenceFound,
    ReferenceEpisode,
    as_in_batch,
    compare_batches,
    compare_continued,
    compare_states,
    play,
    python_numbers,
    row_outcome,
)

# The largest ``dt`` that is checked.
_LONGEST = 3
_WRAPPERS: tuple[Any, ...] = (
    (StickyAction, {"repeat_action_probability": 0.25}),
    (RecordEpisodeStatistics, {}),
)


def repeat(context: CheckContext) -> bool:
    """Play the same episodes in two copies, and compare the results."""
    with watched_generators() as told:
        one, other = context.play(save=False), context.play(save=False)
        _compare_episodes(one, other, f". {drawn.strip()}" if (drawn := told()) else "")
    context.episodes = one
    return True


def results(context: CheckContext) -> bool:
    """Check that the observations, rewards and flags of the episodes can be put into batches."""
    env = context.used()
    for episode in context.episodes:
        opening: Any = (episode.opening[0], 0.0, False, False, {})
        for number, outcome in enumerate([opening, *(step.outcome for step in episode.steps)]):
            if len(outcome) == 1:
                if outcome[0].startswith(RewardError.__name__):
                    raise DifferenceFound(number, "reward", outcome[0])
                continue
            try:
                as_in_batch(env, outcome)
            except ObservationError as error:
                raise DifferenceFound(number, "observation", str(error)) from error
    return True


def saving(context: CheckContext) -> bool:
    """Play the same episodes again while saving the state before each step; compare the results."""
    saved = context.play(save=True)
    _compare_episodes(context.episodes, saved, "")
    env = context.used()
    for one, other in zip(context.episodes, saved, strict=True):
        if one.last is not None and other.last is not None:
            if found := compare_states(env, one.last, other.last):
                raise DifferenceFound(len(one.steps), *found)
    context.episodes = saved
    context.choose()
    return True


def restore(context: CheckContext) -> bool:
    """Restore the chosen states in random order, and repeat some steps from each."""
    env, judge = context.used(), context.fresh()
    for (episode, number), step in zip(context.places, context.chosen, strict=True):
        assert step.state is not None
        given = step.state.copy()
        taken, found = compare_continued(env, judge, episode, number, context.steps)
        if not np.array_equal(step.state, given):
            raise DifferenceFound(None, "the row that was given", "set_state has written into it")
        if found:
            cause = context.cause(env, episode, number)
            raise DifferenceFound(taken, found[0], found[1] + cause)
        context.continued += taken
    return True


def purity(context: CheckContext) -> bool:
    """Step the chosen states in one batch, and compare with other batches of the same rows.

    The other batches hold the rows in another order, a single row, or one row several times.
    """
    env = context.used()
    actions, states = context.batch()
    env.reset(seed=context.seed)
    given = states.copy()

    def stepped(some_actions: Any, some_states: Any) -> Any:
        current = env.get_state()
        result = env.step_batch(some_actions, some_states)
        if found := compare_states(env, current, env.get_state()):
            detail = f"a batch has changed it: {found[0]}, {found[1]}"
            raise DifferenceFound(None, "the current state", detail)
        return result

    whole = stepped(actions, states)
    for row, step in enumerate(context.chosen):
        *parts, info = row_outcome(whole, row)
        got = (*parts, python_numbers(info))
        if found := compare_outcomes(as_in_batch(env, step.outcome), got):
            raise DifferenceFound(1, found[0], f"{found[1]} (in row {row} of a batch)")
    last_first = list(range(len(actions)))[::-1]
    orders = {"in another order": last_first, "on its own": [0], "three times over": [0, 0, 0]}
    for how, order in orders.items():
        again = stepped([actions[index] for index in order], states[order])
        compare_batches(env, whole, again, order, how)
    if not np.array_equal(states, given):
        raise DifferenceFound(None, "the rows that were given", "they have been written into")
    return True


def rollout(context: CheckContext) -> bool:
    """Repeat the steps that followed each chosen state, all in one call of `rollout_batch`."""
    env = context.used()
    turns = has_turns(context)
    plans, parts = [], []
    for episode, number in context.places:
        part = episode.steps[number : number + context.steps]
        if turns:  # after the end, no move is legal
            ends = (index for index, step in enumerate(part, 1) if any(step.outcome[2:4]))
            part = part[: next(ends, len(part))]
        is_whole = len(part) == context.steps or any(part[-1].outcome[2:4])
        if all(len(step.outcome) > 1 for step in part) and (is_whole or not turns):
            # A row with fewer steps repeats its last action; the repetitions are not compared.
            actions = [step.action for step in part]
            plans.append(actions + actions[-1:] * (context.steps - len(part)))
            parts.append(part)
    if not plans:
        return False
    states = np.stack([part[0].state for part in parts if part[0].state is not None])
    result = env.rollout_batch(plans, states, return_observations=True)
    for row, part in enumerate(parts):
        for time, step in enumerate(part):
            expected = (*as_in_batch(env, step.outcome)[:4], {})
            if found := compare_outcomes(expected, row_outcome(result, row, time)):
                raise DifferenceFound(time + 1, *found)
            if expected[2] or expected[3]:
                break
    return True


def workers(context: CheckContext) -> bool:
    """Take two steps from the chosen states in worker processes; compare with this process."""
    if not context.workers or not platform_has_workers():
        return False
    actions, states = context.batch()
    env = context.used()
    order = np.arange(len(actions))
    for count in context.workers:
        with context.make_parallel(count) as parallel:
            here, there = states, states
            for step in (1,) if has_turns(context) else (1, 2):
                one, other = env.step_batch(actions, here), parallel.step_batch(actions, there)
                compare_batches(env, one, other, order, f"with {count} workers", step)
                here, there = one.states, other.states
    return True


def image(context: CheckContext) -> bool:
    """Compare the images that two copies render of the same restored states."""
    env = context.used()
    if env.simulator.__dict__.get("render_mode") != "rgb_array":
        return False
    images = []
    for step in context.chosen[:3]:
        env.set_state(step.state)
        images.append(np.array(env.get_image(), copy=True))
    other = context.fresh()
    for step, shown in reversed(list(zip(context.chosen, images, strict=False))):
        other.set_state(step.state)
        if found := difference(shown, np.array(other.get_image()), "image"):
            raise DifferenceFound(None, *found)
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


CHECKS: dict[str, Callable[[CheckContext], bool]] = {
    "repeat": repeat,
    "results": results,
    "saving": saving,
    "restore": restore,
    "purity": purity,
    "rollout": rollout,
    "workers": workers,
    "image": image,
    "seeds": seeds,
    "dt": dt,
    "unseeded": unseeded,
    "wrappers": wrapped,
}


def has_turns(context: CheckContext) -> bool:
    """Return whether the infos are those of a game, where a move may be illegal a second time."""
    return any("to_play" in episode.opening[1] for episode in context.episodes)


def _compare_episodes(
    ones: list[ReferenceEpisode], others: list[ReferenceEpisode], cause: str
) -> None:
    for one, other in zip(ones, others, strict=True):
        found = difference(one.opening[0], other.opening[0], "observation")
        if found := found or difference(one.opening[1], other.opening[1], "info"):
            raise DifferenceFound(0, found[0], found[1] + cause)
        for number, (left, right) in enumerate(zip(one.steps, other.steps, strict=False), 1):
            if found := compare_outcomes(left.outcome, right.outcome):
                raise DifferenceFound(number, found[0], found[1] + cause)


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
