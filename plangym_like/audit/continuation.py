"""Compare an episode that is saved and restored at each step with an uninterrupted one.

If something is missing from a state row, such as a counter that ends the episode when it reaches
five, the results may differ only several steps later. Therefore, many steps are taken from a few
rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from plangym_like import spaces
from plangym_like.batches import Inputs
from plangym_like.errors import StateCapacityError, WorkerError
from plangym_like.snapshots.differences import difference, without_clock
from plangym_like.states import Row
from plangym_like.transitions import STEP_COUNTS, BatchTransition, Rollout

# How many actions to try at a step, since some may not be legal.
_TRIES = 4
# The most actions of a batch that are taken from a row that is followed.
_ACTIONS = 32
_FIELDS = (("observations", "obs"), ("rewards",) * 2, ("terminateds",) * 2, ("truncateds",) * 2)


@dataclass(slots=True)
class SavedEpisode:
    """An episode whose state was saved and restored at each step.

    Attributes
    ----------
    taken, steps : list
        The actions taken, without those that raised an error, and the results, of which only the
        first and the last have states.
    first : BatchTransition or None
        The result of the first action, even if it raised an error.
    error : Exception or None
        The error that ended the episode.
    """

    taken: list[Any] = field(default_factory=list)
    steps: list[BatchTransition] = field(default_factory=list)
    first: Any = None
    error: Exception | None = None


def single_actions(inputs: Inputs) -> list[Any]:
    """Return all actions of a batch, or of all steps of rollouts, in one list."""
    if not inputs.horizon:
        return list(inputs.actions)
    return [action for plan in inputs.actions for action in plan]


def some_actions(inputs: Inputs) -> list[Any]:
    """Return copies of some actions of a batch, from all over it."""
    rows = np.arange(0, inputs.count, -(-inputs.count // _ACTIONS))
    chosen = [inputs.actions[row] for row in rows]
    if inputs.horizon:
        chosen = [action for plan in chosen for action in plan[:_ACTIONS]]
    return copy.deepcopy(chosen[:_ACTIONS])


def planned(actions: list[Any], length: int) -> list[Any]:
    """Return `length` actions, which repeat `actions` in a cycle."""
    return [actions[number % len(actions)] for number in range(length)]


def uninterrupted(first: Inputs, plan: list[Any]) -> Inputs:
    """Return the inputs of a rollout of `plan` from row `first`, without restores in between."""
    actions = _batch(plan, plan=True)
    return replace(first, horizon=len(plan), actions=actions, last_infos=True)


def saved_each_step(again: Callable[[Inputs], Any], first: Inputs, plan: list[Any]) -> SavedEpisode:
    """Take steps from row `first`, and save and restore the state at each step.

    Parameters
    ----------
    again : callable
        Steps rows, and returns their results, states and observations. The exceptions of failed
        rows are part of the result (``infos.errors``).
    first : Inputs
        One row. The episode begins in its state; its actions are ignored.
    plan : list
        Actions to take in turn. If a step raises an error, the next action is tried instead, unless
        the error is that of a worker.
    """
    episode = SavedEpisode()
    current, number = replace(first, horizon=0), 0
    while len(episode.taken) < len(plan):
        for _ in range(_TRIES):
            action = plan[number % len(plan)]
            number += 1
            step = again(replace(current, actions=_batch([copy.deepcopy(action)])))
            episode.error = step.infos.errors.get(0)
            episode.first = episode.first or step
            if episode.error is None or isinstance(episode.error, WorkerError):
                break
        if episode.error is not None:
            break
        episode.taken.append(action)
        if len(episode.steps) > 1:
            # Large states would take much memory.
            episode.steps[-1] = episode.steps[-1]._replace(states=step.states[:0])
        episode.steps.append(step)
        if step.terminateds[0] or step.truncateds[0]:
            break
        current = replace(current, states=step.states, seeds=None)
    return episode


def continued_difference(
    episode: SavedEpisode,
    live: Rollout,
    state_difference: Callable[[Row, Row], tuple[str, str] | None],
) -> tuple[str, str] | None:
    """Compare `episode` with `live`, the rollout of the same actions without any restore.

    Return the first difference, and both values; ``None`` if the episodes are equal. An episode
    that ended early stays in its last state for the rest of the rollout.
    """
    steps = episode.steps
    if (error := live.infos.errors.get(0)) is not None:
        if isinstance(error, (WorkerError, StateCapacityError)):
            return None
        return "its result", f"{error!r} without saving, and no error with saving"
    for time, step in enumerate(steps):
        for name, of_step in _FIELDS:
            one, other = getattr(live, name), getattr(step, of_step)
            one = one[0][time] if isinstance(one, list) else spaces.take(one, (0, time))
            place = f"{name} {time + 1} steps later" if time else name
            if found := difference(one, spaces.take(other, 0), place):
                return found
    later = f"{len(steps) - 1} steps later"
    if live.infos.has_objects:
        infos = [_plain(batch.infos[0]) for batch in (live, steps[-1])]
        both = set(infos[0]) & set(infos[1])
        for key in [key for key in infos[0] if key in both]:
            found = difference(infos[0][key], infos[1][key], f"info[{key!r}] {later}")
            if found is not None:
                return found
    found = state_difference(live.states[0], steps[-1].states[0])
    return None if found is None else (f"{found[0]} {later}", found[1])


def _batch(actions: list[Any], *, plan: bool = False) -> Any:
    if isinstance(actions[0], (np.ndarray, np.generic)):
        return np.stack(actions)[None] if plan else np.stack(actions)
    return [copy.deepcopy(actions)] if plan else actions


def _plain(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in without_clock(info).items() if key not in STEP_COUNTS}
