"""`Trial`: tests whether a newly made environment can repeat its own results.

It takes a few steps after a seeded reset. It repeats them from restored states: from the middle,
and from the start in each of two copies, with different steps of the other copy in between. It does
the same after an unseeded reset, but only once, from the start. It also checks random generators
that are not part of state rows, and data that code keeps outside the environment. A few steps
cannot show everything, so rows in use are audited too (`plangym_like.audit`).
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plangym_like.batch.ownership import owned
from plangym_like.batch.simulator import Simulator
from plangym_like.errors import SnapshotError, StateCapacityError
from plangym_like.snapshots.chains import chain, links
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.differences import attributes, differing_attributes, without_clock
from plangym_like.snapshots.generators import (
    draws_note,
    global_generators,
    moved_generators,
    own_generators,
    stir_global_generators,
)
from plangym_like.snapshots.known_wrappers import is_known
from plangym_like.snapshots.open_libraries import libraries_left_open
from plangym_like.snapshots.outcomes import Outcome, compare_outcomes, ends, outcome_of
from plangym_like.snapshots.outside_values import OutsideValues
from plangym_like.snapshots.step_limit import time_limit
from plangym_like.states.rows import Row

_UNSEEDED_STEPS = 4
# The first episode takes no more steps after so many seconds, and no episode is longer than it.
_FIRST_SECONDS, _FEWEST_STEPS = 1.0, 3
# Resets with at most this many seeds are compared between copies, for at most this many seconds.
_RESETS, _RESET_SECONDS = 12, 0.5
_NAMED = 4
REMEDY = (
    "Its state was restored in between, so some of it is outside the state row (in its "
    "class, its module, a space, a global generator): keep all of it in attributes, and draw from "
    "self.np_random"
)


@dataclass(slots=True)
class _Episode:
    """An episode: ``outcomes[0]`` belongs to the reset; ``rows[k]`` is the state after k steps."""

    simulator: Simulator
    outcomes: list[Outcome] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    generators: list[dict[str, bytes]] = field(default_factory=list)
    draws: set[tuple[int, str]] = field(default_factory=set)

    def record(self) -> None:
        """Append the current state to `rows`, and the generators' states to `generators`."""
        payload: Row = np.zeros(self.simulator.payload_nbytes, np.uint8)
        self.simulator.read(payload)
        self.rows.append(payload)
        self.generators.append(own_generators(self.simulator.env))


@dataclass(frozen=True, kw_only=True)
class TrialRule:
    """The trial that environments of one family undergo when they are made.

    Attributes
    ----------
    always : bool
        True to test every environment. False to test only those with code from outside Gymnasium
        and this package, in the environment or in a wrapper.
    copies : bool
        Whether a second copy is made and compared with the first.
    steps : int
        The number of steps to take.
    seeds_matter : bool
        Whether it is an error if an episode with the same seed differs between two copies.
    remedy : str
        The advice to the user at the end of error messages.
    """

    always: bool = False
    copies: bool = True
    steps: int = 12
    seeds_matter: bool = False
    remedy: str = REMEDY


class Trial:
    """One trial of a simulator.

    Parameters
    ----------
    simulator : Simulator
        A new simulator of a Gymnasium environment. The trial changes its state.
    make_copy : callable
        Returns a second simulator that was made with the same arguments, or ``None`` if there can
        be only one.
    rule : TrialRule
    """

    def __init__(
        self, simulator: Simulator, make_copy: Callable[[], Simulator | None], rule: TrialRule
    ) -> None:
        self._sim = simulator
        self._make_copy = make_copy
        self._rule = rule
        space = copy.deepcopy(simulator.env.action_space)
        space.seed(0)
        self._actions = [space.sample() for _ in range(rule.steps)]
        self._others = [space.sample() for _ in range(rule.steps)]
        self._copy: Simulator | None = None
        self._notes: list[str] = []
        self._drawn: dict[str, None] = {}

    def run(self) -> str:
        """Run the trial; return a description of inexact results, or an empty string if none.

        This draws from the global random generators.

        Raises
        ------
        SnapshotError
            The environment does not repeat its results; the message says where, and what to do.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                first = self._first_episode()
                stir_global_generators()
                self._copy = self._make_copy()
                if self._copy is not None:
                    self._compare_with_copy(self._copy, first)
                self._compare_restored(first)
                self._compare_unseeded()
                self._compare_outside()
            finally:
                if self._copy is not None and getattr(self._copy, "render_mode", None) is None:
                    # Some libraries close all windows of a process when the first one is closed.
                    with libraries_left_open():
                        self._copy.close()
        return "; ".join(dict.fromkeys(self._notes[:2]))

    def _first_episode(self) -> _Episode:
        first = self._begin(self._sim, 0)
        until = time.perf_counter() + _FIRST_SECONDS
        self._steps(first, self._actions, until=until)
        if time.perf_counter() > until:
            taken = len(first.outcomes) - 1
            self._actions, self._others = self._actions[:taken], self._others[:taken]
        return first

    def _compare_with_copy(self, other: Simulator, first: _Episode) -> None:
        """Repeat the seeded episode `first` in a second copy, and compare the outcomes.

        The first copy is stepped in between.
        """
        second = self._begin(other, 0)
        self._steps(second, self._actions, stepped_between=self._sim)
        pairs = enumerate(zip(first.outcomes, second.outcomes, strict=False))
        if any(self._differ(step, *pair) for step, pair in pairs):
            return
        self._compare_resets(other, len(second.outcomes) - 1)

    def _compare_resets(self, other: Simulator, steps: int) -> None:
        """Compare more resets, since infos with few possible values may be equal by chance.

        The first copy has already taken `steps` steps with the actions in `_others`. The second
        copy now takes the same steps, so that both have played before they are reset. After the
        last reset, both take these steps again.
        """
        self._take_other_steps(other, steps)
        begun = time.perf_counter()
        for seed in range(1, _RESETS):
            if self._differ(0, self._reset(self._sim, seed), self._reset(other, seed)):
                break
            if time.perf_counter() - begun > _RESET_SECONDS:
                break
        self._take_other_steps(self._sim, steps)
        self._take_other_steps(other, steps)

    def _differ(self, step: int, one: Outcome, other: Outcome) -> bool:
        """Return whether the outcomes of `step` differ; if so, note where, or raise an error."""
        found = compare_outcomes(one, other)
        if found is None:
            return False
        place, values = found
        if self._rule.seeds_matter and not place.startswith("info"):
            raise self._refusal(place, step, values)
        self._notes.append(
            "an episode with a seed is not the same in another copy: the "
            f"{place} of step {step} was {values}. {draws_note(self._drawn)}".strip()
        )
        return True

    def _compare_restored(self, first: _Episode) -> None:
        """Repeat `first` from its middle, and in each copy from its start; compare the outcomes."""
        middle = (len(first.rows) - 1) // 2
        self._continue(first, self._sim, middle, self._copy)
        self._continue(first, self._copy or self._sim, 0, self._sim if self._copy else None)
        if self._copy is not None:
            self._continue(first, self._sim, 0, self._copy)

    def _continue(
        self, first: _Episode, simulator: Simulator, start: int, other: Simulator | None
    ) -> None:
        simulator.write(first.rows[start])
        if other is not None:
            # A reset may change the class, which both copies share.
            with contextlib.suppress(Exception), time_limit():
                other.reset(1)
        again = _Episode(simulator, [first.outcomes[0]])
        again.record()
        if simulator is self._sim:
            self._check_generators(first, start)
        self._steps(again, self._actions[start:], stepped_between=other)
        self._compare(first, again, start)
        both = first.draws & {(step + start, name) for step, name in again.draws}
        if both:
            step, name = min(both)
            raise self._refusal_of_draw(f"the global generator of {name}", step)

    def _check_generators(self, first: _Episode, start: int) -> None:
        """Check that every random generator used by a step has been restored."""
        now = own_generators(self._sim.env)
        recorded, last = first.generators[start], first.generators[-1]
        for name, state in recorded.items():
            if last.get(name) != state and now.get(name) != state:
                raise self._refusal_of_draw(f"the generator of {name}", None)

    def _compare_unseeded(self) -> None:
        first = self._begin(self._sim, None)
        actions = self._actions[:_UNSEEDED_STEPS]
        self._steps(first, actions)
        again = _Episode(self._copy or self._sim, [first.outcomes[0]])
        again.simulator.write(first.rows[0])
        again.record()
        self._steps(again, actions, stepped_between=None if self._copy is None else self._sim)
        self._compare(first, again, 0)

    def _compare_outside(self) -> None:
        """Step another episode with values of classes and modules as they were when it was made."""
        outside = self._sim.outside
        if outside is None or not outside.have_changed():
            return
        row = self._begin(self._sim, _RESETS).rows[0]
        if cause := self._outside_cause(row, self._others):
            raise SnapshotError(f"{self._name()} does not repeat itself: {cause}")
        if self._played(row, self._others) is not None:
            with outside.as_before():
                fails = self._played(row, self._others) is None
            if fails:  # some code, such as a registration, must run only once
                self._sim.outside = OutsideValues(self._sim.env)

    def _outside_cause(self, row: Row, actions: Sequence[Any]) -> str:
        """Return a sentence that names values of classes and modules that steps depend on."""
        outside = self._sim.outside
        return "" if outside is None else outside.cause(lambda: self._played(row, actions))

    def _played(self, row: Row, actions: Sequence[Any]) -> list[Outcome] | None:
        """Return the outcomes of `actions` in state `row`; ``None`` if one of the steps fails.

        Infos are left out: if only they differ, states are approximate.
        """
        episode = _Episode(self._sim)
        try:
            self._sim.forget()
            self._sim.write(row)
            self._steps(episode, actions)
        except Exception:
            return None
        finally:
            self._sim.forget()
        if any(len(outcome) == 1 for outcome in episode.outcomes):
            return None
        return [outcome[:4] for outcome in episode.outcomes]

    # Playing

    def _begin(self, simulator: Simulator, seed: int | None) -> _Episode:
        episode = _Episode(simulator, [self._reset(simulator, seed)])
        episode.record()
        return episode

    def _reset(self, simulator: Simulator, seed: int | None) -> Outcome:
        """Reset `simulator`, and return the outcome."""
        before = global_generators()
        with time_limit():
            obs, info = simulator.reset(seed)
        self._drawn.update(dict.fromkeys(moved_generators(before)))
        outcome: Outcome = owned((obs, 0.0, False, False, without_clock(info)))
        return outcome

    def _steps(
        self,
        episode: _Episode,
        actions: Sequence[Any],
        stepped_between: Simulator | None = None,
        until: float = math.inf,
    ) -> None:
        simulator = episode.simulator
        between = None if stepped_between is None else self._other_steps(stepped_between)
        for step, action in enumerate(actions, 1):
            if between is not None:
                next(between)
            before = global_generators()
            with time_limit():
                outcome = outcome_of(
                    lambda action: simulator.step(action, 1), action, error_text=False
                )
            episode.outcomes.append(outcome)
            if len(outcome) == 1:
                return
            moved = moved_generators(before)
            episode.draws |= {(step, name) for name in moved}
            self._drawn.update(dict.fromkeys(moved))
            try:
                episode.record()
            except StateCapacityError:
                return
            if ends(outcome) or (step >= _FEWEST_STEPS and time.perf_counter() > until):
                return

    def _take_other_steps(self, simulator: Simulator, steps: int) -> None:
        others = self._other_steps(simulator)
        for _ in range(steps):
            next(others)

    def _other_steps(self, simulator: Simulator) -> Iterator[None]:
        """Take one step of `simulator` at each ``next``, or none after the end of its episode."""
        for action in self._others:
            outcome = None
            with contextlib.suppress(Exception), time_limit():
                outcome = simulator.step(copy.deepcopy(action), 1)
            yield
            if outcome is None or outcome[2] or outcome[3]:
                break
        while True:
            yield

    # Comparing

    def _compare(self, first: _Episode, again: _Episode, start: int) -> None:
        """Compare `first` with the episode `again`, which begins at step `start` of `first`."""
        pairs = zip(first.outcomes[start + 1 :], again.outcomes[1:], strict=False)
        for step, (before, after) in enumerate(pairs, start + 1):
            found = compare_outcomes(before, after)
            if found is not None:
                place, values = found
                if not place.startswith("info"):
                    raise self._refusal(place, step, values, first.rows[start], start)
                self._notes.append(f"{place} is not the same when a step is repeated: {values}")
        if len(first.outcomes) - start != len(again.outcomes):
            raise SnapshotError(
                f"{self._name()} does not repeat itself: the episode ended at a different step. "
                f"{draws_note(self._drawn)}{self._rule.remedy}"
            )
        rows = zip(first.rows[start:], again.rows, strict=False)
        for step, (one, other) in enumerate(rows, start):
            found = None if np.array_equal(one, other) else self._sim.state_difference(one, other)
            if found is not None:
                self._notes.append(
                    f"the state after step {step} is not the same when the step is repeated: "
                    f"{found[0]}, {found[1]}"
                )
                return

    def _refusal(
        self, place: str, step: int, values: str, row: Row | None = None, start: int = 0
    ) -> SnapshotError:
        remedy = ""
        if row is not None:
            remedy = self._outside_cause(row, self._actions[start:])
        remedy = remedy or self._rule.remedy
        return SnapshotError(
            f"{self._name()} does not repeat itself: the {place} of step {step} was {values} the "
            f"second time. {draws_note(self._drawn)}{self._cause(row, start)}{remedy}"
        )

    def _refusal_of_draw(self, generator: str, step: int | None) -> SnapshotError:
        at = "" if step is None else f" (first at step {step})"
        return SnapshotError(
            f"{self._name()} does not repeat itself: its steps draw from {generator}{at}, which no "
            f"state row holds. {self._rule.remedy}"
        )

    def _name(self) -> str:
        env = self._sim.env
        own = [qualified_name(type(link)) for link in chain(env) if not is_known(link)]
        name = qualified_name(type(links(env)[-1]))
        return f"{name} in {', '.join(own)}" if own else name

    def _cause(self, row: Row | None, start: int) -> str:
        """Return a sentence that names the attributes that were not restored, or ``""``."""
        if row is None or self._copy is None:
            return ""
        try:
            played = self._make_copy()
            assert played is not None
            played.reset(0)
            for action in self._actions[:start]:
                played.step(copy.deepcopy(action), 1)
            there = attributes(played.env)
            with libraries_left_open():
                played.close()
            self._sim.write(row)
            names = differing_attributes(there, attributes(self._sim.env))
        except Exception:
            return ""
        return f"Not restored: {', '.join(names[:_NAMED])}. " if names else ""
