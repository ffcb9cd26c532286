"""The trial when an environment is made: does it do the same again?

A few steps are taken, and taken again from restored states: in another order, after other steps,
in a second copy of the environment, after seeded and unseeded resets. The random generators that
no state row holds are watched, as is what code keeps outside the environment. No trial of a few
steps can find everything: use itself is audited (`plangym_like.audit`).
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plangym_like.errors import SnapshotError, StateCapacityError
from plangym_like.ownership import owned
from plangym_like.simulator import Simulator
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.differences import (
    attributes,
    difference,
    differing_attributes,
    object_difference,
    without_clock,
)
from plangym_like.snapshots.generators import (
    global_generators,
    moved_generators,
    own_generators,
    stir_global_generators,
    told_draws,
)
from plangym_like.snapshots.known_wrappers import chain, is_known
from plangym_like.snapshots.outside_memory import changed_places, outside_memory
from plangym_like.states import Row

_UNSEEDED_STEPS = 4
_NAMED = 4
_PARTS = ("observation", "reward", "terminated", "truncated", "info")
REMEDY = (
    "Its state was restored in between, so it keeps some of it where no state row finds it (in its "
    "class, its module, a space, a global generator): keep all of it in attributes, and draw from "
    "self.np_random"
)


@dataclass(slots=True)
class _Play:
    """Some steps: ``outcomes[0]`` is the reset, and ``rows[k]`` the state after k steps."""

    outcomes: list[tuple[Any, ...]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    generators: list[dict[str, bytes]] = field(default_factory=list)
    drawn: list[tuple[int, str]] = field(default_factory=list)


class Trial:
    """One trial of a simulator.

    Parameters
    ----------
    simulator : Simulator
        A new one, on a Gymnasium environment. It is left in another state.
    make_copy : callable
        Returns a second one, made with the same arguments, or ``None`` where there can be but one.
    steps : int
        How many steps to take.
    seeds_matter : bool
        Whether states cannot be saved if a seeded reset is not the same in every copy.
    remedy : str
        What errors tell the user to do.
    """

    def __init__(
        self,
        simulator: Simulator,
        make_copy: Callable[[], Simulator | None],
        *,
        steps: int,
        seeds_matter: bool,
        remedy: str = REMEDY,
    ) -> None:
        self._sim = simulator
        self._make_copy = make_copy
        self._seeds_matter = seeds_matter
        self._remedy = remedy
        space = copy.deepcopy(simulator.env.action_space)
        space.seed(0)
        self._actions = [space.sample() for _ in range(steps)]
        self._others = [space.sample() for _ in range(steps)]
        self._copy: Simulator | None = None
        self._notes: list[str] = []
        self._drawn: dict[str, None] = {}

    def run(self) -> str:
        """Return what is not exact (empty: nothing was found). Draws from the global generators.

        Raises
        ------
        SnapshotError
            The environment does not do the same again; the message says where, and what to do.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                first = self._first_play()
                stir_global_generators()
                self._copy = self._make_copy()
                if self._copy is not None:
                    self._compare_with_copy(first)
                self._compare_restored(first)
                self._compare_unseeded()
            finally:
                if self._copy is not None and getattr(self._copy, "render_mode", None) is None:
                    # Some libraries close all windows of a process with the first.
                    self._copy.close()
        return "; ".join(dict.fromkeys(self._notes[:2]))

    def _first_play(self) -> _Play:
        first = _Play()
        self._reset(self._sim, 0, first)
        before = outside_memory(self._sim.env)
        self._steps(self._sim, self._actions, first)
        changed = changed_places(before, outside_memory(self._sim.env))
        if changed:
            raise SnapshotError(
                f"{self._name()} cannot be saved: its steps change {' and '.join(changed[:_NAMED])}"
                ", which no state row holds; keep what is remembered in attributes of a wrapper or "
                "of the environment"
            )
        return first

    def _compare_with_copy(self, first: _Play) -> None:
        """Play the same seeded episode in the second copy, while the first does something else."""
        second = _Play()
        assert self._copy is not None
        self._reset(self._copy, 0, second)
        self._steps(self._copy, self._actions, second, between=self._meanwhile(self._sim))
        pairs = zip(first.outcomes, second.outcomes, strict=False)
        for step, (before, after) in enumerate(pairs):
            found = _first_difference(before, after)
            if found is not None:
                place, values = found
                if self._seeds_matter and not place.startswith("info"):
                    raise self._refusal(place, step, values)
                self._notes.append(
                    "an episode with a seed is not the same in another copy: the "
                    f"{place} of step {step} was {values}. {told_draws(self._drawn)}".strip()
                )
                return

    def _compare_restored(self, first: _Play) -> None:
        """Go on from rows of the first play: the middle one, then the first, in both copies."""
        last = len(first.rows) - 1
        places = [(self._sim, last // 2), (self._copy or self._sim, 0), (self._sim, 0)]
        for simulator, start in places[: 2 if self._copy is None else 3]:
            again = _Play(outcomes=[first.outcomes[0]])
            other = self._copy if simulator is self._sim else self._sim
            simulator.write(first.rows[start])
            again.rows.append(_row(simulator))
            if simulator is self._sim:
                self._check_generators(first, start)
            between = None if other is None else self._meanwhile(other)
            self._steps(simulator, self._actions[start:], again, between=between)
            self._compare(first, again, start)
            both = {*first.drawn} & {(step + start, name) for step, name in again.drawn}
            if both:
                step, name = min(both)
                raise self._refusal_of_draw(f"the global generator of {name}", step)

    def _check_generators(self, first: _Play, start: int) -> None:
        """Check that restoring has restored all generators that steps draw from."""
        now = own_generators(self._sim.env)
        recorded, last = first.generators[start], first.generators[-1]
        for name, state in recorded.items():
            if last.get(name) != state and now.get(name) != state:
                raise self._refusal_of_draw(f"the generator of {name}", None)

    def _compare_unseeded(self) -> None:
        first = _Play()
        self._reset(self._sim, None, first)
        actions = self._actions[:_UNSEEDED_STEPS]
        self._steps(self._sim, actions, first)
        simulator = self._copy or self._sim
        between = None if self._copy is None else self._meanwhile(self._sim)
        simulator.write(first.rows[0])
        again = _Play([first.outcomes[0]], [_row(simulator)])
        self._steps(simulator, actions, again, between=between)
        self._compare(first, again, 0)

    # Playing

    def _reset(self, simulator: Simulator, seed: int | None, play: _Play) -> None:
        before = global_generators()
        obs, info = simulator.reset(seed)
        self._drawn.update(dict.fromkeys(moved_generators(before)))
        play.outcomes.append(owned((obs, 0.0, False, False, info)))
        self._record(simulator, play)

    def _steps(
        self,
        simulator: Simulator,
        actions: Sequence[Any],
        play: _Play,
        between: Iterator[None] | None = None,
    ) -> None:
        before = global_generators()
        for step, action in enumerate(actions, 1):
            if between is not None:
                next(between)
                before = global_generators()
            try:
                outcome = simulator.step(copy.deepcopy(action), 1)
            except SnapshotError:
                raise
            except Exception as error:
                # Some environments take only actions that are legal now; to refuse is an outcome.
                play.outcomes.append((type(error).__name__, 0.0, True, False, {}))
                return
            play.outcomes.append(owned(outcome[:5]))
            moved = moved_generators(before)
            if moved:
                play.drawn += [(step, name) for name in moved]
                self._drawn.update(dict.fromkeys(moved))
                before = global_generators()
            try:
                self._record(simulator, play)
            except StateCapacityError:
                return
            if outcome[2] or outcome[3]:
                return

    def _meanwhile(self, simulator: Simulator) -> Iterator[None]:
        """Step `simulator` with other actions, one at a time, until its episode ends."""
        for action in self._others:
            with contextlib.suppress(Exception):
                outcome = simulator.step(copy.deepcopy(action), 1)
                yield
                if not (outcome[2] or outcome[3]):
                    continue
            break
        while True:
            yield

    def _record(self, simulator: Simulator, play: _Play) -> None:
        play.rows.append(_row(simulator))
        play.generators.append(own_generators(simulator.env))

    # Comparing

    def _compare(self, first: _Play, again: _Play, start: int) -> None:
        """Compare `again`, which begins at step `start`, with `first`."""
        pairs = zip(first.outcomes[start + 1 :], again.outcomes[1:], strict=False)
        for step, (before, after) in enumerate(pairs, start + 1):
            found = _first_difference(before, after)
            if found is not None:
                place, values = found
                if not place.startswith("info"):
                    raise self._refusal(place, step, values, first.rows[start], start)
                self._notes.append(f"{place} is not the same when a step is repeated: {values}")
        if len(first.outcomes) - start != len(again.outcomes):
            raise SnapshotError(
                f"{self._name()} does not repeat itself: the episode ended at another step. "
                f"{told_draws(self._drawn)}{self._remedy}"
            )
        for step, (one, other) in enumerate(
            zip(first.rows[start:], again.rows, strict=False), start
        ):
            if not np.array_equal(one, other):
                found = self._sim.state_difference(one, other)
                if found is not None:
                    self._notes.append(
                        f"the state after step {step} is not the same when it is repeated: "
                        f"{found[0]}, {found[1]}"
                    )
                    return

    def _refusal(
        self, place: str, step: int, values: str, row: Row | None = None, start: int = 0
    ) -> SnapshotError:
        return SnapshotError(
            f"{self._name()} does not repeat itself: the {place} of step {step} was {values} the "
            f"second time. {told_draws(self._drawn)}{self._cause(row, start)}{self._remedy}"
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
        name = qualified_name(type(env.unwrapped))
        return f"{name} in {', '.join(own)}" if own else name

    def _cause(self, row: Row | None, start: int) -> str:
        """Return which attributes are others in a restored copy than in one that never stopped."""
        if row is None or self._copy is None:
            return ""
        try:
            played = self._make_copy()
            assert played is not None
            played.reset(0)
            for action in self._actions[:start]:
                played.step(copy.deepcopy(action), 1)
            there = attributes(played.env)
            played.close()
            self._sim.write(row)
            names = differing_attributes(there, attributes(self._sim.env))
        except Exception:
            return ""
        return f"Not restored: {', '.join(names[:_NAMED])}. " if names else ""


def _row(simulator: Simulator) -> Row:
    payload: Row = np.zeros(simulator.payload_nbytes, np.uint8)
    simulator.read(payload)
    return payload


def _first_difference(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[str, str] | None:
    for part, before, after in zip(_PARTS, one, other, strict=True):
        if part == "info":
            found = object_difference(without_clock(before), without_clock(after), part)
        else:
            found = difference(before, after, part)
        if found:
            return found
    return None
