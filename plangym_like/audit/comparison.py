"""The rows of a batch that are stepped a second time, and the comparison of their results.

If something is missing from a state row, such as a counter that ends the episode when it reaches
five, the results may differ only several steps later. Therefore, many steps are taken from a few
rows.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.audit import auditor as budget
from plangym_like.audit.auditor import Auditor, Difference, Earlier
from plangym_like.batch import spaces
from plangym_like.batch.arrays import Inputs, single_steps
from plangym_like.batch.layout import Layout
from plangym_like.errors import ClosedError, StateCapacityError, StepTimeoutError, WorkerError
from plangym_like.results import STEP_COUNTS, BatchTransition, Future, Rollout, Transition
from plangym_like.snapshots.differences import difference, without_clock
from plangym_like.snapshots.generators import watched_generators
from plangym_like.states.rows import Row
from plangym_like.support.memory_limits import refuse_too_much

# How many actions to try at a step, since some may not be legal.
_TRIES = 4
# The most actions of a batch that are taken from a row that is followed.
_ACTIONS = 32
_FIELDS = (("observations", "obs"), ("rewards",) * 2, ("terminateds",) * 2, ("truncateds",) * 2)
# Errors that prevent an audit but say nothing about the environment.
_HINDRANCES = (MemoryError, OSError, WorkerError, ClosedError)
_AGAIN = "was stepped a second time"
_ALONE = "was stepped a second time, without the other rows of its batch"
_LATER = "of an earlier batch was stepped again"
_SAVED = "was continued with and without saving and restoring its state in between"
_BATCHED = (
    "Likely causes: code that steps many rows at once, such as step_states, does not do what step "
    "does; or state outside the environment."
)
_INCOMPLETE = "Its state row does not hold everything that the next step depends on."
# Rows that are compared at a time if all rows of a batch are audited.
_PART = 64


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


class Again(NamedTuple):
    """Functions that step rows again; failures are masked.

    Attributes
    ----------
    anywhere : callable
        ``anywhere(inputs)`` steps rows in any process. The results include what those of the
        audited batch include.
    whole : callable
        The same, but the results include states and observations.
    here : callable
        Steps rows in this process if possible. The results include states and observations.
    outside_cause : callable
        ``outside_cause(inputs)`` returns a sentence that names the class attributes and globals on
        which the rows depend, or ``""``.
    """

    anywhere: Callable[[Inputs], Any]
    whole: Callable[[Inputs], Any]
    here: Callable[[Inputs], Any]
    outside_cause: Callable[[Inputs], str]


class AuditedRows:
    """Rows of one batch that are audited once the batch is done, if the budget allows it.

    Parameters
    ----------
    auditor : Auditor
        Decides whether there is an audit, and of which rows, and reports differences.
    layout : Layout
        The layout of the batch.
    inputs : Inputs
        The validated inputs of the whole batch, before it is stepped. The rows to audit are copied,
        since the caller may change its arrays before the batch is done.
    """

    def __init__(self, auditor: Auditor, layout: Layout, inputs: Inputs) -> None:
        self._auditor, self._layout = auditor, layout
        self._steps = single_steps(inputs, 0, inputs.count)
        self._size = self._steps / inputs.count
        self._follows = auditor.follows
        # A row and its two results.
        nbytes = 2 * layout.row_nbytes(inputs.horizon) + layout.format.state_nbytes
        self._rows = auditor.choose(inputs.count, self._size, nbytes)
        if len(self._rows):
            try:
                refuse_too_much(len(self._rows) * nbytes)
            except MemoryError:
                self._rows = self._rows[:0]
            self._inputs = copy_rows(inputs, self._rows)
            self._plan = some_actions(inputs) if self._follows else []
        self._begun = budget.clock()

    def audited(self, result: Any, again: Callable[[], Again]) -> Any:
        """Audit `result` and return it; a `Future` is audited when its result is first read.

        ``again()`` returns functions that step rows.
        """
        if isinstance(result, Future):
            result.check(partial(self.compare, again=again))
        else:
            self.compare(result, again)
        return result

    def compare(self, result: Any, again: Callable[[], Again]) -> None:
        """Step the rows again in another order, and compare the results.

        Parameters
        ----------
        result : BatchTransition, BatchStep, Rollout or Transition
            The batch's result, or that of a single step.
        again : callable
            Returns functions that step rows.

        Raises
        ------
        ImpureEnvironmentError
            A result differs, and the audit's mode is ``"raise"``.
        """
        auditor = self._auditor
        if not len(self._rows):  # the call is only timed
            auditor.earns(self._begun, self._steps, self._size)
            return
        errors = {} if isinstance(result, Transition) else result.infos.errors
        if any(isinstance(error, StepTimeoutError) for error in errors.values()):
            auditor.stop_following()
        places = np.array([i for i, row in enumerate(self._rows) if row not in errors], np.intp)
        if not auditor.earns(self._begun, self._steps, self._size) or not len(places):
            return
        begun = budget.clock()
        compared, steps = 0, 0.0
        # Another batch may have followed a row meanwhile, or an action may have hung.
        follows = self._follows and auditor.follows
        with contextlib.suppress(*_HINDRANCES):
            functions = again()  # may make a copy of the environment, as `make` does
            begun = budget.clock()
            if auditor.all_rows or not follows:
                compared = self._compare_again(result, functions, places)
                steps += compared * self._size
            if follows:
                place = auditor.one_of(places)
                steps += self._follow(result, functions, place)
                compared = max(compared, 1)
        auditor.spend(compared, steps, begun, self._size, followed=follows)

    def _compare_again(self, result: Any, again: Again, places: NDArray[np.intp]) -> int:
        """Step the rows at `places` once more, and compare; return their number."""
        # Each part has rows from all over the batch, in reverse order. An executor gives the first
        # rows to one process and the last to another, so most rows now go to another process.
        order = places[::-1]
        parts = -(-len(order) // _PART)
        for first in range(parts):
            part = order[first::parts]
            inputs, rows = copy_rows(self._inputs, part), self._rows[part]
            second = again.anywhere(inputs)
            if found := self._first_difference(result, second, rows):
                at = int(np.flatnonzero(self._rows == found.row)[0])
                cause = _cause(again, copy_rows(self._inputs, np.array([at], np.intp)))
                self._auditor.report(found, _AGAIN, cause)
        return len(order)

    def _follow(self, result: Any, again: Again, place: int) -> float:
        """Step a row alone, then take more steps from it, with and without a restore at each.

        Compare the results, and return the number of steps that were taken.
        """
        auditor, row = self._auditor, int(self._rows[place])
        first = copy_rows(self._inputs, np.array([place], np.intp))
        length = auditor.length(self._layout.row_nbytes(0))
        plan = planned(single_actions(first) + self._plan, length)
        episode = saved_each_step(again.here, first, plan)
        if isinstance(episode.error, StepTimeoutError):
            auditor.stop_following()
        taken = len(episode.steps) * self._size
        if not first.horizon:
            self._compare_alone(result, again, row, first, episode)
        if len(episode.steps) < 2:
            return taken
        live = again.whole(uninterrupted(first, episode.taken))
        if found := continued_difference(episode, live, auditor.state_difference):
            auditor.report(Difference(row, *found), _SAVED, _cause(again, first) or _INCOMPLETE)
        return 2 * taken

    def _compare_alone(
        self, result: Any, again: Again, row: int, first: Inputs, episode: SavedEpisode
    ) -> None:
        """Compare the first step of `episode` with `result`, and an earlier row with its own."""
        if found := self._first_difference(result, episode.first, np.array([row])):
            self._auditor.report(found, _ALONE, _cause(again, first) or _BATCHED)
        earlier = self._auditor.earlier()
        if earlier is not None:
            second = again.here(earlier.inputs)
            if found := self._first_difference(earlier.result, second, np.zeros(1, np.intp)):
                cause = _cause(again, earlier.inputs)
                self._auditor.report(found._replace(row=earlier.row), _LATER, cause)
        if not episode.first.infos.errors:
            self._auditor.keep(Earlier(row, first, episode.first), self._layout.row_nbytes(0))

    def _first_difference(
        self, result: Any, second: Any, rows: NDArray[np.intp]
    ) -> Difference | None:
        """Return the first difference between ``result[rows[i]]`` and ``second[i]``, if any."""
        if not isinstance(result, Transition) and _equal(result, second, rows):
            return None
        for place, row in enumerate(rows.tolist()):
            if (error := second.infos.errors.get(place)) is not None:
                if not isinstance(error, _HINDRANCES):
                    return Difference(
                        row, "its result", f"none the second time, but the error {error!r}"
                    )
                continue
            if isinstance(result, Transition):
                found = self._step_difference(result, second)
            else:
                found = self._row_difference(result, second, row, place)
            if found:
                return Difference(row, *found)
        return None

    def _step_difference(
        self, result: Transition, batch: BatchTransition
    ) -> tuple[str, str] | None:
        """Return the first difference between a single step and a batch of one row, if any."""
        infos = [_as_numbers(without_clock(info)) for info in (result.info, batch.infos[0])]
        for name, one, other in (
            ("obs", self._auditor.as_row(result.obs), spaces.take(batch.obs, 0)),
            ("reward", result.reward, batch.rewards[0].item()),
            ("terminated", result.terminated, bool(batch.terminateds[0])),
            ("truncated", result.truncated, bool(batch.truncateds[0])),
            ("info", *infos),
        ):
            if found := difference(one, other, name):
                return found
        return self._auditor.state_difference(result.state, batch.states[0])

    def _row_difference(
        self, result: Any, second: Any, row: int, place: int
    ) -> tuple[str, str] | None:
        for name in result._fields:
            one, other = getattr(result, name), getattr(second, name)
            if one is None:
                continue
            if name == "infos":
                infos = without_clock(one[row]), without_clock(other[place])
                found = difference(*infos, "info")
            elif name == "states":
                found = self._auditor.state_difference(one[row], other[place])
            elif isinstance(one, list):
                found = difference(one[row], other[place], name)
            else:
                found = difference(spaces.take(one, row), spaces.take(other, place), name)
            if found is not None:
                return found
        return None


def _cause(again: Again, inputs: Inputs) -> str:
    """Return a sentence that says why the rows `inputs` do not repeat, or ``""`` if unknown."""
    cause = ""
    with watched_generators() as drawn_from, contextlib.suppress(Exception):
        again.here(inputs)
        cause = drawn_from().strip() or again.outside_cause(inputs)
    return cause


def copy_rows(inputs: Inputs, rows: NDArray[np.intp]) -> Inputs:
    """Return copies of the rows `rows` of a batch's inputs."""
    if isinstance(inputs.actions, list):
        actions: Any = copy.deepcopy([inputs.actions[row] for row in rows])
    else:
        actions = inputs.actions[rows]
    return replace(
        inputs,
        count=len(rows),
        actions=actions,
        states=inputs.states.copy() if len(inputs.states) == 1 else inputs.states[rows],
        dt=inputs.dt if isinstance(inputs.dt, int) else inputs.dt[rows],
        seeds=None if inputs.seeds is None else inputs.seeds[rows],
    )


def _equal(result: Any, second: Any, rows: NDArray[np.intp]) -> bool:
    """Return whether all results are known to be equal to the last bit.

    If not, rows must be compared one by one. Most audits end here, at a fraction of that cost.
    """
    infos, others = result.infos, second.infos
    if others.errors or infos.has_objects or others.has_objects:
        return False
    names = [name for name in result._fields if name != "infos"]
    pairs = [(getattr(result, name), getattr(second, name)) for name in names]
    pairs += [(infos.column(key), others.column(key)) for key in sorted(infos.keys())]
    while pairs:
        one, other = pairs.pop()
        if isinstance(one, dict):
            pairs += [(one[key], other[key]) for key in one]
        elif isinstance(one, tuple):
            pairs += zip(one, other, strict=True)
        elif isinstance(one, list) or (one is not None and one[rows].tobytes() != other.tobytes()):
            return False
    return True


def _as_numbers(value: Any) -> Any:
    """Convert all numbers in `value` to float64, since a batch may have changed their dtypes."""
    if isinstance(value, dict):
        return {key: _as_numbers(inner) for key, inner in value.items()}
    if isinstance(value, bool | int | float | np.ndarray | np.generic):
        array = np.asarray(value)
        return array.astype(np.float64) if array.dtype.kind in "biuf" else array
    return value
