"""The checks of `check_env` that use plain episodes, one function for each check.

Each function raises `DifferenceFound` if the check fails, and returns whether the check applies.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from plangym_like.batch import spaces
from plangym_like.errors import ObservationError, RewardError
from plangym_like.processes.child import platform_has_workers
from plangym_like.snapshots.differences import difference
from plangym_like.snapshots.trial import compare_outcomes, outcome_of, watched_generators
from plangym_like.testing.check_context import (
    CheckContext,
    DifferenceFound,
    as_in_batch,
    compare_batches,
    python_numbers,
    row_outcome,
)
from plangym_like.testing.reference_episodes import (
    ReferenceEpisode,
    compare_continued,
    compare_states,
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
        try:
            spaces.as_row(env.observation_space, episode.opening[0])
        except ObservationError as error:
            raise DifferenceFound(0, "observation", str(error)) from error
        for number, step in enumerate(episode.steps, 1):
            if len(step.outcome) == 1:
                if step.outcome[0].startswith(RewardError.__name__):
                    raise DifferenceFound(number, "reward", step.outcome[0])
                continue
            try:
                as_in_batch(env, step.outcome)
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


def past(context: CheckContext) -> bool:
    """Restore and step states in a new copy, and in one that is at the end of an episode."""
    for before in (None, context.episodes[-1].last):
        env = context.fresh()
        for step in context.chosen[:2]:
            if before is not None:
                env.set_state(before)
            env.set_state(step.state)
            if found := compare_outcomes(step.outcome, outcome_of(env.step, step.action)):
                raise DifferenceFound(
                    1, found[0], f"{found[1]} (in a copy that has just been made)"
                )
    if context.outside_cause():
        how = "with classes and modules as they were when the environment was made"
        raise DifferenceFound(None, "an episode", f"it gives other results {how}")
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
    order = np.arange(len(actions))[::-1]
    turned = stepped([actions[index] for index in order], states[order])
    compare_batches(env, whole, turned, order, "in another order")
    for index in range(min(3, len(actions))):
        alone = stepped([actions[index]], states[index])
        compare_batches(env, _rows(whole, [index]), alone, np.arange(1), "on its own")
    one = stepped(actions[:1] * 3, states[0])
    compare_batches(env, _rows(whole, [0, 0, 0]), one, np.arange(3), "three times over")
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


def travelling(context: CheckContext) -> bool:
    """Step the chosen states after pickling them, and after saving them in both file formats."""
    actions, states = context.batch()
    env = context.used()
    expected = env.step_batch(actions, states)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        np.save(path.with_suffix(".npy"), states)
        env.save_states(path, states)
        other = context.fresh()
        for how, rows in {
            "pickled": pickle.loads(pickle.dumps(states)),
            "in a NumPy file": np.load(path.with_suffix(".npy")),
            "in a file of save_states": other.load_states(path),
        }.items():
            if not np.array_equal(rows, states):
                raise DifferenceFound(None, "the rows", f"they differ after they were {how}")
            order = np.arange(len(actions))
            compare_batches(other, expected, other.step_batch(actions, rows), order, how)
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


CHECKS: dict[str, Callable[[CheckContext], bool]] = {
    "repeat": repeat,
    "results": results,
    "saving": saving,
    "restore": restore,
    "past": past,
    "purity": purity,
    "rollout": rollout,
    "travel": travelling,
    "workers": workers,
    "image": image,
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


def _rows(batch: Any, indices: list[int]) -> Any:
    """Return the rows `indices` of a batch's result."""
    parts = {
        name: [spaces.take(getattr(batch, name), index) for index in indices]
        for name in ("states", "obs", "rewards", "terminateds", "truncateds", "infos")
    }
    return SimpleNamespace(**parts)
