"""The audit: step a sample of rows a second time, and compare every byte of the results.

No finite trial can prove that an environment is pure and exact, so the audit tests this while the
environment is used. The result of a row depends only on its inputs, so stepping it again has no
side effect.

If something is missing from a state row, such as a counter that ends the episode when it reaches
five, the results may differ only several steps later. Therefore, one row is followed for several
steps.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from time import perf_counter as clock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.batch.arrays import (
    Executor,
    Inputs,
    SubmitOptions,
    select_rows,
    single_steps,
)
from plangym_like.batch.layout import Layout
from plangym_like.batch.simulator import Simulator
from plangym_like.errors import (
    ClosedError,
    ImpureEnvironmentError,
    SnapshotError,
    StateCapacityError,
    WorkerError,
)
from plangym_like.results import (
    STEP_COUNTS,
    BatchInfo,
    BatchTransition,
    Future,
    Rollout,
)
from plangym_like.snapshots.differences import difference, without_clock
from plangym_like.states.rows import HEADER_NBYTES, Row

MODES = ("raise", "warn", "off")
EVERY = 500
# The share of stepping time that audits may take at first. It falls once the environment has taken
# `_EARLY_STEPS` steps and been stepped for `_EARLY_SECONDS`, down to ``1 / every``, because most
# faults show up early.
_EARLY_SHARE, _EARLY_STEPS, _EARLY_SECONDS = 0.05, 2000, 1.0
# The length of the first audit, and of the longest.
_SHORT, _LONG = 2, 16
# Seconds that a step of the first audit is expected to take. A step of a later one is expected to
# take as long as in the audit before; one that takes `_INTERRUPTED` times as long was interrupted.
_FIRST_SECONDS, _INTERRUPTED = 2e-4, 5
# How many actions to try for each step of the row that is followed, since some may not be legal.
_TRIES = 4
# The fields of results, in the order in which they are compared. Ends come first, because after one
# all other fields differ too; states come last, because their differences are hard to read.
_FIELDS = ("terminateds", "truncateds", "rewards", "obs", "observations", "infos", "states")
# The options of a batch whose result has states and observations.
_ALL = SubmitOptions()
# Errors that prevent an audit but say nothing about the environment.
_HINDRANCES = (MemoryError, OSError, WorkerError, ClosedError, StateCapacityError)
_AGAIN = "was stepped a second time"
_ALONE = "was stepped a second time, without the other rows of its batch"
_IN_STEPS = "was stepped a second time, alone and in single steps"
_SAVED = "was continued with and without saving and restoring its state in between"
_BATCHED = (
    "Likely causes: code for many rows at once, such as step_states or turns_of_states, does not "
    "do what step does; or state outside the environment."
)
_INCOMPLETE = (
    "Its state row does not hold everything that the next step depends on. A pickle keeps neither "
    "which object it is (`is`) nor memory that arrays share; snapshot='replay' keeps both."
)


class Auditor:
    """Decides which calls to audit, and which of their rows, and reports rows that differ.

    An audit of length L steps up to L rows again, and follows one of them for L steps, with and
    without restores. Each audit is longer by 1 than the one before, up to a limit. It costs as many
    steps as it takes or, if that is more, as could be taken in the same time. Every step earns a
    share of a step, and a call is audited if the expected cost has been earned since the last
    audit. If an audit costs more than expected, the next one has to wait longer.

    Parameters
    ----------
    simulator : Simulator
        The simulator of this process.
    layout : Layout
        The layout of the environment's batches.
    name : str
        The name of the environment in messages.
    executor : Executor
        Steps rows again: in this process, unless batches are isolated.
    mode : {"raise", "warn", "off"}
        What happens when results differ.
    every : int
        In the long run, audits take one step and one second in `every`; 1 audits all rows, without
        a limit on time.

    Attributes
    ----------
    length : int
        The length of the next audit.
    off : bool
        Whether no call is audited, now and later.
    random : numpy.random.Generator
        The generator that chooses rows.
    """

    def __init__(
        self,
        simulator: Simulator,
        layout: Layout,
        name: str,
        executor: Executor,
        *,
        mode: str,
        every: int,
    ) -> None:
        self._simulator, self._name = simulator, name
        self.layout, self.executor = layout, executor
        self.stats = executor.stats
        self._mode, self._every = mode, every
        self.random = np.random.default_rng(0)
        self.off = mode == "off" or simulator.exactness != "exact"
        # The steps taken so far, those that pay for the audits so far, and those at which the next
        # call is due.
        self._steps = self._paid = self._due = 0.0
        # Seconds of a step that the environment takes, and of one in an audit.
        self._step_seconds, self._audit_seconds = np.inf, _FIRST_SECONDS
        self.length = _SHORT

    # The budget

    def is_due(self, steps: float) -> bool:
        """Count `steps` steps that are about to be taken; return whether to prepare an audit."""
        self._steps += steps
        return self._steps >= self._due

    def choose(self, count: int) -> NDArray[np.intp]:
        """Choose rows of a batch of `count` rows for an audit; return their sorted indices.

        The rows are evenly spread, beginning with a random one.
        """
        if self._every == 1:
            return np.arange(count)
        wanted = min(count, self.length)
        first = self.random.integers(count)
        return np.sort((first + np.arange(wanted) * (count // wanted)) % count)

    def affords(self, needed: float, steps: float, seconds: float) -> bool:
        """Return whether to audit a call of `steps` steps that took `seconds`.

        The audit needs `needed` steps. If it would be too expensive, a later call is due.
        """
        # The first calls, and those that are interrupted, are slower than most.
        self._step_seconds = max(1e-9, min(seconds / steps, 1.25 * self._step_seconds))
        self._due = self._paid + self._price(needed) / self._share()
        return self._steps >= self._due

    def spend(self, rows: int, needed: float, seconds: float) -> None:
        """Record an audit that compared `rows` rows, and took `needed` steps and `seconds`."""
        self.stats.rows_audited += rows
        expected = max(self._audit_seconds, self._step_seconds)
        self._audit_seconds = min(seconds / needed, _INTERRUPTED * expected)
        price = self._price(needed) / self._share()
        self._paid = self._due = max(self._steps, self._paid + price)
        self.length = min(self.length + 1, _LONG)

    def _price(self, steps: float) -> float:
        """Return what an audit costs that takes `steps` steps."""
        return steps * max(1.0, self._audit_seconds / self._step_seconds)

    def _share(self) -> float:
        """Return the share of stepping time that audits may take now."""
        if self._every == 1:
            return np.inf
        seconds = self._steps * self._step_seconds
        age = min(self._steps / _EARLY_STEPS, seconds / _EARLY_SECONDS)
        return max(1 / self._every, _EARLY_SHARE / max(1.0, age))

    # Differences

    def state_difference(self, one: Row, other: Row) -> tuple[str, str] | None:
        """Return a field that differs between two rows, and both values.

        Return ``None`` if the rows hold the same state, even if their bytes differ.
        """
        if np.array_equal(one, other):
            return None
        found = self.executor.state_difference(one[HEADER_NBYTES:], other[HEADER_NBYTES:])
        return None if found is None else (f"next state {found[0]}", found[1])

    def report(self, row: int, field: str, values: str, how: str, cause: str) -> None:
        """Raise an error for a difference or, in mode ``"warn"``, warn and stop auditing.

        `row` is the index of the row in its batch, `how` says how the row was stepped again, and
        `cause` is the likely cause; "" means that it is unknown. After a warning, later differences
        are ignored.

        Raises
        ------
        ImpureEnvironmentError
            The mode is ``"raise"``.
        """
        if self.off:
            return
        message = (
            f"row {row} of {self._name} {how}, and {field} differed: {values}. "
            f"{cause or self._likely_cause()} Results of this environment cannot be relied on; "
            "audit='warn' turns this error into a warning"
        )
        if self._mode == "raise":
            raise ImpureEnvironmentError(message, row, field, values)
        self.off = True
        self._simulator.exactness = "approximate"
        self._simulator.exactness_note = message
        warnings.warn(message, RuntimeWarning, stacklevel=3)

    def _likely_cause(self) -> str:
        outside = "state outside the environment (a class, a module, a file, the clock)"
        generator = "a random generator that is not saved, such as the global one of numpy.random"
        names = " or ".join(self._simulator.suspect_wrappers())
        if not names:
            return f"Likely causes: {outside}, or {generator}."
        return (
            f"Likely causes: {outside}, {generator}, or a wrapper, such as {names}, with a memory "
            "that is not saved."
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
    options : SubmitOptions
        The options of the batch.
    """

    def __init__(self, auditor: Auditor, inputs: Inputs, options: SubmitOptions) -> None:
        self._auditor, self._layout = auditor, auditor.layout
        self._options = options
        self._length = auditor.length
        self._rows = auditor.choose(inputs.count)
        self._inputs = copy_rows(inputs, self._rows)
        self._steps = single_steps(inputs)
        self._needed = (len(self._rows) + 2 * self._length) * self._steps / inputs.count
        self._begun = clock()

    def audited(self, result: Any) -> Any:
        """Audit `result` and return it; a `Future` is audited when its result is first read."""
        if isinstance(result, Future):
            result.check(self.compare)
        else:
            self.compare(result)
        return result

    def _again(self, inputs: Inputs, options: SubmitOptions = _ALL) -> Any:
        """Step rows again; return their result, with the exceptions of failed rows in its infos."""
        options = options._replace(masked=True, audit=True, blocking=True)
        return self._auditor.executor.submit(inputs, options)

    def compare(self, result: Any) -> None:
        """Step the rows again, and compare the results.

        Parameters
        ----------
        result : BatchTransition, BatchStep or Rollout
            The batch's result.

        Raises
        ------
        ImpureEnvironmentError
            A result differs, and the audit's mode is ``"raise"``.
        """
        if self._is_affordable():
            self._compare(result)

    def audit_step(self) -> None:
        """Audit a single step, which has just been taken: take it again as a batch of one row."""
        if self._is_affordable():
            with contextlib.suppress(*_HINDRANCES):
                options = _ALL._replace(masked=True)
                self._compare(self._auditor.executor.submit(self._inputs, options))

    def _is_affordable(self) -> bool:
        return self._auditor.affords(self._needed, self._steps, clock() - self._begun)

    def _compare(self, result: Any) -> None:
        auditor, begun = self._auditor, clock()
        errors = result.infos.errors
        places = [place for place, row in enumerate(self._rows) if row not in errors]
        if not places:
            return
        compared = 0
        with contextlib.suppress(*_HINDRANCES):
            second = self._again(copy_rows(self._inputs, places), self._options)
            self._check(result, self._rows[places], second, places, _AGAIN)
            compared = len(places)
            self._follow(result, int(auditor.random.choice(places)))
        auditor.spend(compared, self._needed, clock() - begun)

    # Following a row

    def _follow(self, result: Any, place: int) -> None:
        """Step a row alone, and continue it with and without a restore before each step."""
        first = copy_rows(self._inputs, [place])
        current = replace(first, horizon=0, legal=False)
        taken: list[Any] = []
        steps: list[BatchTransition] = []
        planned, refusal = first.horizon, None
        tries = islice(self._actions_from(result, place), _TRIES * self._length)
        for number, action in enumerate(tries):
            step = self._again(replace(current, actions=_batch([action])))
            if number == 0 and not first.horizon:
                self._check(result, self._rows[[place]], step, [place], _ALONE, _BATCHED)
            error = step.infos.errors.get(0)
            if isinstance(error, WorkerError):
                break
            if error is None:
                taken.append(action)
                steps.append(step)
                if len(taken) == self._length or step.terminateds[0] or step.truncateds[0]:
                    break
                current = replace(current, states=step.states, seeds=None)
            elif number < planned:
                planned, refusal = number, error
        if len(taken) > 1:
            self._check_saved(first, taken, steps, place)
        if first.horizon:
            planned = min(planned, len(steps))
            self._check_rollout(result, place, taken[:planned], steps[:planned], refusal)

    def _actions_from(self, result: Any, place: int) -> Iterator[Any]:
        """Yield the actions of all audited rows in a cycle; those of the row at `place` first.

        If `result` has replaced actions that are not legal, those that the row took come first.
        """
        inputs, count = self._inputs, len(self._rows)
        if inputs.legal:
            yield from result.infos["actions"][self._rows[place]].astype(inputs.actions.dtype)
            place += 1
        while True:
            for number in range(place, place + count):
                actions = inputs.actions[number % count]
                yield from actions if inputs.horizon else [actions]

    def _check_rollout(
        self,
        result: Any,
        place: int,
        taken: list[Any],
        steps: list[BatchTransition],
        refusal: Exception | None,
    ) -> None:
        """Compare a row of a rollout with single `steps` of its first actions `taken`.

        `refusal` is the error of the single step that follows these, if it raised one.
        """
        row, length = int(self._rows[place]), len(steps)
        begun: Any = slice(length)
        found: list[tuple[str, str] | None] = []
        for name in ("terminateds", "truncateds", "rewards") if steps else ():
            again = np.concatenate([getattr(step, name) for step in steps])
            found.append(difference(getattr(result, name)[row, begun], again, name))
        if steps and result.observations is not None:
            first = spaces.take(spaces.take(result.observations, row), begun)
            shown = spaces.take(self._observations(steps), 0)
            found.append(difference(first, shown, "observations"))
        if steps and self._inputs.legal:
            found += self._move_differences(result, place, taken, steps)
        if refusal is not None and not isinstance(refusal, (*_HINDRANCES, SnapshotError)):
            found.append(("its result", f"no error and {refusal!r}"))
        if steps and result.states is not None:
            last = steps[-1]
            if length == self._inputs.horizon or last.terminateds[0] or last.truncateds[0]:
                found.append(self._auditor.state_difference(result.states[row], last.states[0]))
        for each in found:
            if each is not None:
                self._auditor.report(row, *each, _IN_STEPS, _BATCHED)
                break

    def _observations(self, steps: list[BatchTransition]) -> Any:
        """Return the observations of single `steps` of one row, ``(1, T, ...)``."""
        space = self._layout.observation_space
        observations = spaces.empty(space, (1, len(steps)))
        for time, step in enumerate(steps):
            spaces.put(space, observations, (0, time), spaces.take(step.obs, 0))
        return spaces.with_lists(space, observations)

    def _move_differences(
        self, result: Any, place: int, taken: list[Any], steps: list[BatchTransition]
    ) -> list[tuple[str, str] | None]:
        """Compare the moves of a rollout, and its rewards of all players, with infos of `steps`.

        The info of each step tells who moves next, and which moves are legal then.
        """
        row, length = self._rows[place], len(steps)
        gains, infos = result.infos["rewards"][row, :length], [step.infos[0] for step in steps]
        found = []
        if "rewards" in infos[0]:
            paid = np.stack([info["rewards"] for info in infos])
            found.append(difference(gains, paid, "info['rewards']"))
        if length > 1 and {"action_mask", "to_play"} <= infos[0].keys():
            moves, given = np.stack(taken), self._inputs.actions[place][:length]
            rewards, is_legal, is_kept = result.rewards[row, :length], moves >= 0, moves == given
            told = rewards.copy(), is_legal.copy(), is_kept.copy()
            for time, info in enumerate(infos[:-1], 1):
                told[0][time] = gains[time, info["to_play"]]
                told[1][time] = info["action_mask"][moves[time]]
                told[2][time] = info["action_mask"][given[time]]
            found += [
                difference(told[0], rewards, "the reward of the player to move"),
                difference(is_legal, told[1], "whether the move is legal"),
                difference(is_kept, told[2], "whether the given move is legal"),
            ]
        return found

    def _check_saved(
        self, first: Inputs, taken: list[Any], steps: list[BatchTransition], place: int
    ) -> None:
        """Compare steps that were saved and restored with a rollout that was not."""
        plan = _batch(taken)
        plan = [plan] if isinstance(plan, list) else plan[None]
        inputs = replace(first, horizon=len(taken), actions=plan, last_infos=True, legal=False)
        live = self._again(inputs)
        infos = [live.infos[0], steps[-1].infos[0]]
        both = set(infos[0]) & set(infos[1]) - set(STEP_COUNTS)
        infos = [{key: info[key] for key in info if key in both} for info in infos]
        saved = Rollout(
            steps[-1].states,
            self._observations(steps),
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

        These are results of the audited row at ``places[i]``. `how` and `cause` are those of
        `Auditor.report`.
        """
        for index, field, values in self._differences(first, np.asarray(rows), second):
            self._auditor.report(int(self._rows[places[index]]), field, values, how, cause)
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
