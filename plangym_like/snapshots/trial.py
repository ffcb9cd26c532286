"""`Trial`: tests whether a newly made environment can repeat its own results.

It takes a dozen steps after a seeded reset. It repeats them in a second copy, and compares seven
more resets of both. Then it repeats the steps from restored states: from the middle in the first
copy, and from the start in the second, with different steps of the other copy in between. It does
the same after an unseeded reset, from the start. It also checks random generators that are not part
of state rows, and data that code keeps outside the environment. If steps are slow, it takes three
instead of a dozen. A few steps cannot show everything, so rows in use are audited too
(`plangym_like.audit`).

The outcome is the same for every environment that is made with the same arguments, so lanes share
it (`trials_shared`), and so do the caller and its isolated workers.
"""

from __future__ import annotations

import contextlib
import copy
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from plangym_like.batch.ownership import owned
from plangym_like.batch.simulator import Simulator
from plangym_like.errors import EnvApiError, SnapshotError, StateCapacityError, StateError
from plangym_like.snapshots.chains import chain, links
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.differences import (
    attributes,
    difference,
    differing_attributes,
    without_clock,
)
from plangym_like.snapshots.generators import (
    draws_note,
    global_generators,
    moved_generators,
    own_generators,
    stir_global_generators,
)
from plangym_like.snapshots.known_wrappers import is_known
from plangym_like.snapshots.open_libraries import libraries_left_open
from plangym_like.snapshots.outside_values import OutsideValues
from plangym_like.snapshots.step_limit import time_limit, while_quick
from plangym_like.states.rows import Row

# The observation, reward, flags and info of a step; or one string that describes an exception.
Outcome = tuple[Any, ...]
FIELDS = ("observation", "reward", "terminated", "truncated", "info")
# The number of steps of an episode, and of one without a seed.
STEPS, _UNSEEDED_STEPS = 12, 4
# An episode of steps that take longer in all is shorter.
SECONDS = 1.0
# Resets with at most this many seeds are compared between copies, for at most this many seconds.
_RESETS, _RESET_SECONDS = 8, 0.5
_NAMED = 4
REMEDY = (
    "Its state was restored in between, so some of it is outside the state row (in its "
    "class, its module, a space, a global generator): keep all of it in attributes, and draw from "
    "self.np_random"
)
REMEDY_FOR_REPLAY = (
    "So its states cannot be saved as action logs either: draw all randomness from "
    "self.np_random (or from what reset(seed=...) seeds), keep no state outside the object, and do "
    "not read the clock"
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


class Trial:
    """One trial of a simulator.

    Parameters
    ----------
    simulator : Simulator
        A new simulator of a Gymnasium environment. The trial changes its state.
    make_copy : callable
        Returns a second simulator that was made with the same arguments, or ``None`` if there can
        be only one.
    """

    def __init__(self, simulator: Simulator, make_copy: Callable[[], Simulator | None]) -> None:
        self._sim = simulator
        self._make_copy = make_copy
        # An episode is then repeated from its seed, which must therefore determine it.
        self._is_replayed = simulator.snapshot == "replay"
        self._remedy = REMEDY_FOR_REPLAY if self._is_replayed else REMEDY
        space = copy.deepcopy(simulator.env.action_space)
        space.seed(0)
        self._actions = [space.sample() for _ in range(STEPS)]
        self._others = [space.sample() for _ in range(STEPS)]
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
        self._steps(first, while_quick(self._actions, SECONDS))
        if not ends(first.outcomes[-1]):
            taken = len(first.outcomes) - 1
            self._actions, self._others = self._actions[:taken], self._others[:taken]
        return first

    def _compare_with_copy(self, other: Simulator, first: _Episode) -> None:
        """Repeat the seeded episode `first` in a second copy, and compare the outcomes.

        Then compare more resets, since infos with few possible values may be equal by chance. What
        a reset keeps of earlier episodes is equal too: both copies have played the same ones.
        """
        second = self._begin(other, 0)
        self._steps(second, self._actions)
        pairs = enumerate(zip(first.outcomes, second.outcomes, strict=False))
        if any(self._differ(step, *pair) for step, pair in pairs):
            return
        begun = time.perf_counter()
        for seed in range(1, _RESETS):
            if self._differ(0, self._reset(self._sim, seed), self._reset(other, seed)):
                return
            if time.perf_counter() - begun > _RESET_SECONDS:
                return

    def _differ(self, step: int, one: Outcome, other: Outcome) -> bool:
        """Return whether the outcomes of `step` differ; if so, note where, or raise an error."""
        found = compare_outcomes(one, other)
        if found is None:
            return False
        place, values = found
        if self._is_replayed and not place.startswith("info"):
            raise self._refusal(place, step, values)
        self._notes.append(
            "an episode with a seed is not the same in another copy: the "
            f"{place} of step {step} was {values}. {draws_note(self._drawn)}".strip()
        )
        return True

    def _compare_restored(self, first: _Episode) -> None:
        """Repeat `first` from its middle, and in the other copy from its start, and compare."""
        middle = (len(first.rows) - 1) // 2
        self._continue(first, self._sim, middle, self._copy)
        self._continue(first, self._copy or self._sim, 0, self._sim if self._copy else None)

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
            self._sim.clear_caches()
            self._sim.write(row)
            self._steps(episode, actions)
        except Exception:
            return None
        finally:
            self._sim.clear_caches()
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
        actions: Iterable[Any],
        stepped_between: Simulator | None = None,
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
            if ends(outcome):
                return

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
                f"{draws_note(self._drawn)}{self._remedy}"
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
        remedy = remedy or self._remedy
        return SnapshotError(
            f"{self._name()} does not repeat itself: the {place} of step {step} was {values} the "
            f"second time. {draws_note(self._drawn)}{self._cause(row, start)}{remedy}"
        )

    def _refusal_of_draw(self, generator: str, step: int | None) -> SnapshotError:
        at = "" if step is None else f" (first at step {step})"
        return SnapshotError(
            f"{self._name()} does not repeat itself: its steps draw from {generator}{at}, which no "
            f"state row holds. {self._remedy}"
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
            wanted = attributes(played.env)
            with libraries_left_open():
                played.close()
            # What is not restored keeps the value of another moment of another episode.
            other = self._begin(self._sim, 1)
            if not start:
                self._steps(other, self._others)
            self._sim.write(row)
            names = differing_attributes(wanted, attributes(self._sim.env))
        except Exception:
            return ""
        return f"Not restored: {', '.join(names[:_NAMED])}. " if names else ""


# Outcomes of steps


def outcome_of(step: Callable[[Any], Any], action: Any, *, error_text: bool = True) -> Outcome:
    """Call ``step(action)``; return copies of the observation, reward, flags and info.

    If the call raises an exception, return a tuple with one string that describes it, because an
    environment may reject actions that are illegal in the current state. ``error_text=False``
    leaves out the message of the exception, which may contain a process id or a time.

    Raises
    ------
    EnvApiError
        ``step`` did not return five values.
    SnapshotError, StateError
        A state could not be saved or restored.
    """
    try:
        outcome: Outcome = tuple(step(copy.deepcopy(action)))[:5]
    except (EnvApiError, SnapshotError, StateError):
        raise
    except Exception as error:
        name = type(error).__name__
        named = not error_text or " at 0x" in str(error)
        return (name if named else f"{name}: {error}",)
    return owned((*outcome[:4], without_clock(outcome[4])))  # type: ignore[no-any-return]


def ends(outcome: Outcome) -> bool:
    """Return whether the step ended the episode or raised an exception."""
    return len(outcome) == 1 or bool(outcome[2] or outcome[3])


def compare_outcomes(one: Outcome, other: Outcome) -> tuple[str, str] | None:
    """Return where two outcomes first differ and what they hold there; ``None`` if equal."""
    if len(one) == 1 or len(other) == 1:
        before, after = (each[0] if len(each) == 1 else "nothing" for each in (one, other))
        return difference(before, after, "error")
    for name, left, right in zip(FIELDS, one, other, strict=True):
        if found := difference(left, right, name):
            return found
    return None


# Outcomes of trials


class TrialOutcome(NamedTuple):
    """What a trial has found out about environments of one kind.

    Attributes
    ----------
    kind : str
        The name of the simulator's class, or ``"auto"`` for the choice of this class.
    note : str
        Why states are only approximate; empty if they are exact.
    capacity : int
        Bytes of the codec in each row, if a trial determines this number; otherwise 0.
    way : str
        How states are saved; only for the kind ``"auto"``.
    """

    kind: str
    note: str = ""
    capacity: int = 0
    way: str = ""


class KnownTrials:
    """Outcomes of trials, with the arguments that the environments were made with."""

    def __init__(self) -> None:
        self.entries: list[tuple[TrialOutcome, Any]] = []

    def find(self, kind: str, arguments: Any) -> TrialOutcome | None:
        """Return the outcome for simulators of this kind and arguments, or ``None``."""
        for outcome, others in self.entries:
            if outcome.kind == kind and _are_equal(arguments, others):
                return outcome
        return None

    def note(self, outcome: TrialOutcome, arguments: Any) -> None:
        """Record an outcome."""
        self.entries.append((outcome, arguments))

    def outcomes(self) -> list[TrialOutcome]:
        """Return all outcomes."""
        return [outcome for outcome, _ in self.entries]


class TrialsElsewhere(KnownTrials):
    """The outcomes of trials that another process runs for one environment.

    Parameters
    ----------
    ask : callable
        Returns the outcomes. It is called when the first outcome is needed.
    """

    def __init__(self, ask: Callable[[], Sequence[TrialOutcome]]) -> None:
        super().__init__()
        self._ask: Callable[[], Sequence[TrialOutcome]] | None = ask

    def find(self, kind: str, arguments: Any) -> TrialOutcome | None:
        if self._ask is not None:
            self.entries = [(outcome, None) for outcome in self._ask()]
            self._ask = None
        return super().find(kind, None)


_known: ContextVar[KnownTrials | None] = ContextVar("known_trials", default=None)


def known_trials() -> KnownTrials:
    """Return the outcomes that are shared at present, or an empty list of outcomes."""
    return _known.get() or KnownTrials()


@contextlib.contextmanager
def trials_shared(known: KnownTrials | None = None) -> Iterator[KnownTrials]:
    """During the block, try only one environment of each kind.

    By default, blocks inside each other share one list of outcomes.
    """
    shared = known or _known.get() or KnownTrials()
    token = _known.set(shared)
    try:
        yield shared
    finally:
        _known.reset(token)


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays among the arguments have no truth value
        return False
