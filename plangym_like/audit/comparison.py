"""The rows of a batch that are stepped a second time, and the comparison of their results.

If something is missing from a state row, such as a counter that ends the episode when it reaches
five, the results may differ only several steps later. Therefore, one row is followed for several
steps.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.audit import auditor as budget
from plangym_like.audit.auditor import Auditor
from plangym_like.batch import spaces
from plangym_like.batch.arrays import (
    Executor,
    Inputs,
    SubmitOptions,
    put_outcome,
    select_rows,
    single_steps,
)
from plangym_like.errors import ClosedError, StateCapacityError, StepTimeoutError, WorkerError
from plangym_like.results import (
    STEP_COUNTS,
    BatchInfo,
    BatchTransition,
    Future,
    Rollout,
    Transition,
)
from plangym_like.snapshots.differences import difference, without_clock
from plangym_like.snapshots.trial import watched_generators

# How many actions to try for each step of the row that is followed, since some may not be legal.
_TRIES = 4
# The fields of results, in the order in which they are compared: an episode that ends differs in
# all that follows, and a state is harder to read than what can be seen of it.
_FIELDS = ("terminateds", "truncateds", "rewards", "obs", "observations", "infos", "states")
# Errors that prevent an audit but say nothing about the environment.
_HINDRANCES = (MemoryError, OSError, WorkerError, ClosedError, StateCapacityError)
_AGAIN = "was stepped a second time"
_ALONE = "was stepped a second time, without the other rows of its batch"
_SAVED = "was continued with and without saving and restoring its state in between"
_BATCHED = (
    "Likely causes: code that steps many rows at once, such as step_states, does not do what step "
    "does; or state outside the environment."
)
_INCOMPLETE = (
    "Its state row does not hold everything that the next step depends on. A pickle keeps neither "
    "which object it is (`is`) nor memory that arrays share; snapshot='replay' keeps both."
)


class AuditedRows:
    """Rows of one call that are audited once it is done, if the budget allows it.

    Parameters
    ----------
    auditor : Auditor
        Decides whether there is an audit, and of which rows, and reports differences.
    inputs : Inputs
        The validated inputs of the whole batch, before it is stepped. The rows to audit are copied,
        since the caller may change its arrays before the batch is done.
    executor : Executor
        Steps the batch, and then these rows a second time, in other processes if it can.
    options : SubmitOptions
        The options of the batch.

    Attributes
    ----------
    processes : ``(N,) int32``
        The process that stepped each row of the batch; see `SubmitOptions`.
    """

    def __init__(
        self,
        auditor: Auditor,
        inputs: Inputs,
        executor: Executor,
        options: SubmitOptions,
    ) -> None:
        self._auditor, self._layout = auditor, auditor.layout
        self._executor, self._options = executor, options
        # Three results of each row that is followed are kept.
        self._length = auditor.length(3 * self._layout.row_nbytes(inputs.horizon))
        self._rows = auditor.choose(inputs.count, self._length)
        self.processes = np.zeros(inputs.count, np.int32)
        self._inputs = copy_rows(inputs, self._rows)
        self._steps = single_steps(inputs)
        self._needed = (len(self._rows) + 2 * self._length) * self._steps / inputs.count
        self._begun = budget.clock()

    def audited(self, result: Any) -> Any:
        """Audit `result` and return it; a `Future` is audited when its result is first read."""
        if isinstance(result, Future):
            result.check(self.compare)
        else:
            self.compare(result)
        return result

    def _again(self, inputs: Inputs, processes: NDArray[np.int32] | None = None) -> Any:
        """Step rows again; return their result, with the exceptions of failed rows in its infos.

        With `processes`, they are stepped in other processes than these, and the result has what
        that of the batch has. By default they are stepped one by one, in this process if possible,
        and the result has states and observations.
        """
        executor, options = self._executor, self._options
        if processes is None:
            executor, options = self._auditor.alone, SubmitOptions()
        options = options._replace(masked=True, audit=True, blocking=True, processes=processes)
        return executor.submit(inputs, options)

    def compare(self, result: Any) -> None:
        """Step the rows again, and compare the results.

        Parameters
        ----------
        result : BatchTransition, BatchStep, Rollout or Transition
            The batch's result, or that of a single step.

        Raises
        ------
        ImpureEnvironmentError
            A result differs, and the audit's mode is ``"raise"``.
        """
        auditor, begun = self._auditor, budget.clock()
        errors = {} if isinstance(result, Transition) else result.infos.errors
        if any(isinstance(error, StepTimeoutError) for error in errors.values()):
            auditor.may_follow = False
        places = [place for place, row in enumerate(self._rows) if row not in errors]
        if not auditor.affords(self._needed, self._steps, begun - self._begun) or not places:
            return
        compared = 0
        with contextlib.suppress(*_HINDRANCES):
            processes = self.processes[self._rows]
            places.sort(key=processes.__getitem__)  # an executor divides rows into ranges
            second = self._again(copy_rows(self._inputs, places), processes[places])
            self._check(result, self._rows[places], second, places, _AGAIN)
            compared = len(places)
            if auditor.may_follow:
                self._follow(result, int(auditor.random.choice(places)))
        auditor.spend(compared, self._needed, budget.clock() - begun)

    # Following a row

    def _follow(self, result: Any, place: int) -> None:
        """Step a row alone, and continue it with and without a restore before each step."""
        first = copy_rows(self._inputs, [place])
        current = replace(first, horizon=0)
        taken: list[Any] = []
        steps: list[BatchTransition] = []
        tries = islice(self._actions_from(place), _TRIES * self._length)
        for number, action in enumerate(tries):
            step = self._again(replace(current, actions=_batch([action])))
            if number == 0 and not first.horizon:
                self._check(result, self._rows[[place]], step, [place], _ALONE, _BATCHED)
            error = step.infos.errors.get(0)
            if isinstance(error, StepTimeoutError):
                self._auditor.may_follow = False
            if isinstance(error, WorkerError):
                break
            if error is None:
                taken.append(action)
                steps.append(step)
                if len(taken) == self._length or step.terminateds[0] or step.truncateds[0]:
                    break
                current = replace(current, states=step.states, seeds=None)
        if len(taken) > 1:
            self._check_saved(first, taken, steps, place)

    def _actions_from(self, place: int) -> Iterator[Any]:
        """Yield the actions of all audited rows in a cycle; those of the row at `place` first."""
        count = len(self._rows)
        while True:
            for number in range(place, place + count):
                actions = self._inputs.actions[number % count]
                yield from actions if self._inputs.horizon else [actions]

    def _check_saved(
        self, first: Inputs, taken: list[Any], steps: list[BatchTransition], place: int
    ) -> None:
        """Compare steps that were saved and restored with a rollout that was not."""
        plan = _batch(taken)
        plan = [plan] if isinstance(plan, list) else plan[None]
        live = self._again(replace(first, horizon=len(taken), actions=plan, last_infos=True))
        infos = [live.infos[0], steps[-1].infos[0]]
        both = set(infos[0]) & set(infos[1]) - set(STEP_COUNTS)
        infos = [{key: info[key] for key in info if key in both} for info in infos]
        space, length = self._layout.observation_space, len(steps)
        observations = spaces.empty(space, (1, length))
        for time, step in enumerate(steps):
            spaces.put(space, observations, (0, time), spaces.take(step.obs, 0))
        saved = Rollout(
            steps[-1].states,
            spaces.with_lists(space, observations),
            np.stack([step.rewards for step in steps], axis=1),
            np.stack([step.terminateds for step in steps], axis=1),
            np.stack([step.truncateds for step in steps], axis=1),
            BatchInfo(1, {}, [infos[1]]),
        )
        live = live._replace(infos=BatchInfo(1, {}, [infos[0]], live.infos.errors))
        self._check(saved, [0], live, [place], _SAVED, _INCOMPLETE)

    # Comparing

    def _check(
        self, first: Any, rows: Any, second: Any, places: list[int], how: str, cause: str = ""
    ) -> None:
        """Report the first difference between ``first[rows[i]]`` and ``second[i]``, if any.

        These are results of the audited row at ``places[i]``. `how` says how it was stepped again,
        and `cause` is the likely cause if none is found.
        """
        for index, field, values in self._differences(first, np.asarray(rows), second):
            place = places[index]
            cause = self._cause(copy_rows(self._inputs, [place])) or cause
            self._auditor.report(int(self._rows[place]), field, values, how, cause)
            break

    def _differences(
        self, first: Any, rows: NDArray[np.intp], second: Any
    ) -> Iterator[tuple[int, str, str]]:
        """Yield index, field and values wherever ``first[rows[i]]`` and ``second[i]`` differ."""
        errors = second.infos.errors
        for index, error in errors.items():
            if not isinstance(error, _HINDRANCES):
                yield index, "its result", f"no error and {error!r}"
        good = [index for index in range(len(rows)) if index not in errors]
        if isinstance(first, Transition) and good:
            first = self._as_batch(first)
        for name in _FIELDS:
            one: Any = getattr(first, name, None)
            other: Any = getattr(second, name, None)
            if one is None or not good:
                continue
            if isinstance(one, np.ndarray) and one[rows[good]].tobytes() == other[good].tobytes():
                continue  # most audits end here, at a fraction of the cost
            for index in good:
                found = self._difference(name, one, int(rows[index]), other, index)
                if found is not None:
                    yield index, *found

    def _difference(
        self, name: str, one: Any, row: int, other: Any, index: int
    ) -> tuple[str, str] | None:
        """Return where ``one[row]`` and ``other[index]`` differ, and both values.

        They are parts of the field `name` of two results.
        """
        if name == "states":
            return self._auditor.state_difference(one[row], other[index])
        if name == "infos":
            return difference(without_clock(one[row]), without_clock(other[index]), "info")
        return difference(spaces.take(one, row), spaces.take(other, index), name)

    def _as_batch(self, step: Transition) -> Any:
        """Return the result of a single step as that of a batch of one row."""
        rows = self._layout.allocate(self._inputs)
        assert rows.next_states is not None
        rows.next_states[0], info = step.state, dict(step.info)
        n_step, _ = (info.pop(name) for name in STEP_COUNTS)
        put_outcome(rows, 0, self._layout.observation_space, (*step[1:5], info, n_step))
        return self._layout.result(rows)

    def _cause(self, inputs: Inputs) -> str:
        """Return a sentence that says why the rows `inputs` do not repeat; ``""`` if unknown."""
        cause = ""
        with watched_generators() as drawn_from, contextlib.suppress(Exception):
            self._again(inputs)
            cause = drawn_from().strip()
        return cause


def copy_rows(inputs: Inputs, rows: Any) -> Inputs:
    """Return copies of the rows `rows` of a batch's inputs."""
    chosen = select_rows(inputs, rows)
    if isinstance(chosen.actions, list):
        chosen.actions = copy.deepcopy(chosen.actions)
    if chosen.states is inputs.states:
        chosen.states = inputs.states.copy()
    return chosen


def _batch(actions: list[Any]) -> Any:
    """Return actions as those of a batch are: an array, or a list of objects."""
    return np.stack(actions) if isinstance(actions[0], (np.ndarray, np.generic)) else actions
