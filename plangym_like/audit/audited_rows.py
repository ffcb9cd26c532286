"""`AuditedRows`: some rows of one batch, stepped again once the batch is done."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like import spaces
from plangym_like.audit.auditor import Auditor, Difference, Earlier
from plangym_like.audit.continuation import (
    continued_difference,
    planned,
    single_actions,
    uninterrupted,
)
from plangym_like.batches import Inputs
from plangym_like.errors import ClosedError, WorkerError
from plangym_like.future import Future
from plangym_like.row_errors import errors_suppressed
from plangym_like.snapshots.differences import difference, without_clock
from plangym_like.snapshots.generators import watched_generators
from plangym_like.transitions import BatchTransition, Rollout, Transition

# Errors that prevent an audit but say nothing about the environment.
_HINDRANCES = (MemoryError, OSError, WorkerError, ClosedError)
# Rows that an audit compares between two checks of the time.
_PART = 64
# The most rows that an audit steps one by one.
_MOST_ALONE = 8
_AGAIN = "was stepped a second time"
_ALONE = "was stepped a second time, without the other rows of its batch"
_LATER = "of an earlier batch was stepped again"
_SAVED = "was continued with and without saving and restoring its state in between"
_BATCHED = (
    "Likely causes: code that steps many rows at once, such as step_states, does not do what step "
    "does; or state outside the environment."
)
_INCOMPLETE = "Its state row does not hold everything that the next step depends on."


class Again(NamedTuple):
    """Functions that step rows again; failures are masked.

    The results include states and observations.

    Attributes
    ----------
    anywhere : callable
        ``anywhere(inputs)`` steps rows in any process, and returns their results.
    later : callable
        The same, but returns a `Future`.
    here : callable
        Steps rows in this process if possible, and returns their results.
    """

    anywhere: Callable[[Inputs], Any]
    later: Callable[[Inputs], Future[Any]]
    here: Callable[[Inputs], Any]


class AuditedRows:
    """Rows of one batch that are audited once the batch is done.

    Parameters
    ----------
    auditor : Auditor
        Decides how long the audit may take, and reports differences.
    inputs : Inputs
        The validated inputs of the whole batch, before it is stepped. The rows to audit are copied,
        since stepping may change the inputs.
    """

    def __init__(self, auditor: Auditor, inputs: Inputs) -> None:
        self._auditor = auditor
        self._count = inputs.count
        self._rows = auditor.choose(inputs.count)
        self._inputs = copy_rows(inputs, self._rows)
        self._begun = time.perf_counter()

    def audited(self, result: Any, again: Again) -> Any:
        """Audit `result` and return it; a `Future` is audited when its result is first read."""
        if isinstance(result, Future):
            result.check(partial(self.compare, again=again))
        else:
            self.compare(result, again)
        return result

    def compare(self, result: Any, again: Again, seconds: float | None = None) -> None:
        """Step the rows again in another order, and compare the results.

        Parameters
        ----------
        result : BatchTransition, BatchStep or Rollout
            The batch's result.
        again : Again
            Steps rows again.
        seconds : float, optional
            How long the batch took; by default the time since it began.

        Raises
        ------
        ImpureEnvironmentError
            A result differs, and the audit's mode is ``"raise"``.
        """
        begun = time.perf_counter()
        done = [place for place, row in enumerate(self._rows) if row not in result.infos.errors]
        order = np.array(done[::-1], np.intp)
        compared = 0
        with errors_suppressed(*_HINDRANCES):
            compared = self._compare_parts(result, again, order, begun)
        taken = time.perf_counter() - begun
        each = (begun - self._begun if seconds is None else seconds) / self._count
        self._auditor.note(len(self._rows), compared, each, taken)

    def _compare_parts(
        self, result: Any, again: Again, order: NDArray[np.intp], begun: float
    ) -> int:
        """Compare as many rows as there is time for; return their number."""
        compared, taken = 0, 0.0
        if not len(order):
            return 0
        continues = self._auditor.continues and not self._inputs.horizon
        # Each part has rows from all over the batch, in reverse order. An executor gives the first
        # rows to one process and the last to another, so most rows now go to another process.
        parts = -(-len(order) // _PART)
        for first in range(parts):
            if self._auditor.is_out_of_time(taken):
                return compared
            part = order[first::parts]
            inputs, rows = copy_rows(self._inputs, part), self._rows[part]
            second = again.later(inputs)
            twice = again.later(_taken_twice(inputs)) if continues and not first else None
            alone: list[Earlier] = []
            if not first:
                # Workers step the rows of `inputs` while this process steps single rows.
                self._compare_earlier(again)
                alone = self._step_alone(again, order, begun)
            self._compare_again(result, second.result(), again, inputs, rows)
            if twice is not None:
                self._compare_continued(second.result(), twice.result(), again, inputs, rows)
            self._compare_alone(result, alone)
            compared, taken = compared + len(part), time.perf_counter() - begun
        if not self._auditor.is_out_of_time(taken):
            if self._auditor.follows:
                self._follow(again, order)
        return compared

    def compare_step(self, result: Transition, again: Again, seconds: float) -> None:
        """Step the row again as a batch, and compare; then audit that batch with `compare`."""
        batch = None
        with errors_suppressed(*_HINDRANCES):
            batch = again.here(self._inputs)
        if batch is None:
            return
        if not batch.infos.errors and (found := self._step_difference(result, batch)):
            self._auditor.report(Difference(0, *found), _AGAIN, "")
        self.compare(batch, again, seconds)

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

    def _compare_earlier(self, again: Again) -> None:
        """Step a row of an earlier audit again, and compare; many rows were stepped in between."""
        earlier = self._auditor.earlier()
        if earlier is not None:
            second = again.here(earlier.inputs)
            if found := self._first_difference(earlier.result, second, np.zeros(1, np.intp)):
                self._auditor.report(found._replace(row=earlier.row), _LATER, "")

    def _step_alone(self, again: Again, order: NDArray[np.intp], begun: float) -> list[Earlier]:
        """Step some rows again, each as a separate batch; return their inputs and results.

        A single row is stepped by the environment's own ``step``, not by code for many rows.
        """
        alone = []
        for place in order[:: -(-len(order) // _MOST_ALONE)]:
            inputs = copy_rows(self._inputs, np.array([place], np.intp))
            alone.append(Earlier(int(self._rows[place]), inputs, again.here(inputs)))
            if self._auditor.is_out_of_time(time.perf_counter() - begun):
                break
        return alone

    def _compare_alone(self, result: Any, alone: list[Earlier]) -> None:
        """Compare the results of `_step_alone`; keep the first for later audits."""
        for number, each in enumerate(alone):
            if found := self._first_difference(result, each.result, np.array([each.row])):
                self._auditor.report(found, _ALONE, _BATCHED)
            if not (number or each.result.infos.errors):
                self._auditor.keep(each)

    def _follow(self, again: Again, places: NDArray[np.intp]) -> None:
        """Take many steps from some rows, with and without a restore at each step, and compare."""
        actions = single_actions(self._inputs)
        episodes = []
        for place in self._auditor.some(places):
            first = copy_rows(self._inputs, np.array([place], np.intp))
            begin = place * (self._inputs.horizon or 1)
            plan = planned(actions[begin:] + actions[:begin])
            # Workers step whole episodes while this process saves and restores.
            live = again.later(uninterrupted(first, plan))
            episodes.append((int(self._rows[place]), first, plan, live))
        for row, first, plan, live in episodes:
            found = continued_difference(
                again.here, first, plan, live, self._auditor.state_difference
            )
            if found is not None:
                self._auditor.report(Difference(row, *found), _SAVED, _INCOMPLETE)
                return

    def _compare_again(
        self, result: Any, second: Any, again: Again, inputs: Inputs, rows: NDArray[np.intp]
    ) -> None:
        """Compare the results of `rows` with `second`, the results of stepping them again."""
        if found := self._first_difference(result, second, rows):
            cause = ""
            with watched_generators() as drawn_from, errors_suppressed(Exception):
                again.here(inputs)
                cause = drawn_from().strip()
            self._auditor.report(found, _AGAIN, cause)

    def _compare_continued(
        self,
        first: BatchTransition,
        twice: Rollout,
        again: Again,
        inputs: Inputs,
        rows: NDArray[np.intp],
    ) -> None:
        """Compare two uninterrupted steps with two steps between which the state is restored.

        `first` holds the results of the first steps, and `twice` those of rollouts of two steps.
        """
        ended = first.terminateds | first.truncateds | first.infos.failed
        places = np.flatnonzero(~ended)
        if not len(places):
            return
        begin = copy_rows(inputs, places)
        restored = again.anywhere(replace(begin, states=first.states[places], seeds=None))
        whole = BatchTransition(
            twice.states[places],
            _second_step(twice.observations, places),
            twice.rewards[places, 1],
            twice.terminateds[places, 1],
            twice.truncateds[places, 1],
            restored.infos,
        )
        either = twice.infos.failed[places] | restored.infos.failed
        if found := self._first_difference(whole, restored, np.arange(len(places)), either):
            row = int(rows[places[found.row]])
            self._auditor.report(found._replace(row=row), _SAVED, _INCOMPLETE)

    def _first_difference(
        self,
        result: Any,
        second: Any,
        rows: NDArray[np.intp],
        left_out: NDArray[np.bool_] | None = None,
    ) -> Difference | None:
        """Return the first difference between ``result[rows[i]]`` and ``second[i]``, if any.

        Rows for which ``left_out[i]`` is true are not compared.
        """
        if (left_out is None or not left_out.any()) and _equal(result, second, rows):
            return None
        for place, row in enumerate(rows.tolist()):
            if left_out is not None and left_out[place]:
                continue
            if (error := second.infos.errors.get(place)) is not None:
                if not isinstance(error, _HINDRANCES):
                    return Difference(
                        row, "its result", f"none the second time, but the error {error!r}"
                    )
                continue
            if found := self._row_difference(result, second, row, place):
                return Difference(row, *found)
        return None

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


def _taken_twice(inputs: Inputs) -> Inputs:
    """Return inputs for rollouts of two steps, in which each row takes its action twice."""
    if isinstance(inputs.actions, list):
        actions: Any = [[action, copy.deepcopy(action)] for action in inputs.actions]
    else:
        actions = np.repeat(inputs.actions[:, None], 2, axis=1)
    return replace(inputs, horizon=2, actions=actions)


def _second_step(observations: Any, rows: NDArray[np.intp]) -> Any:
    """Return the observations of the second step, for `rows` of `observations` ``(N, 2, ...)``."""
    if isinstance(observations, dict):
        return {key: _second_step(part, rows) for key, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_second_step(part, rows) for part in observations)
    if isinstance(observations, list):
        return [observations[row][1] for row in rows]
    return observations[rows, 1]
