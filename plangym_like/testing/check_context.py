"""`CheckContext`: the copies and episodes that the checks of one environment share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plangym_like.batch import spaces
from plangym_like.snapshots.differences import attributes as attributes_of
from plangym_like.snapshots.differences import differing_attributes, without_clock
from plangym_like.snapshots.trial import Outcome, compare_outcomes
from plangym_like.states.rows import Row
from plangym_like.testing.reference_episodes import (
    ReferenceEpisode,
    ReferenceStep,
    attributes_after,
    compare_states,
    play,
)

_EPISODES = 4
_MOST_EPISODES = 100
_NAMED = 6


class DifferenceFound(Exception):
    """A check found a difference; the arguments are its step, field and detail."""


@dataclass(slots=True)
class CheckContext:
    """The copies of one environment, and its reference episodes.

    Attributes
    ----------
    make : callable
        ``make(wrappers)`` returns a new copy; `wrappers` holds ``(class, kwargs)`` pairs.
    make_parallel : callable
        ``make_parallel(n)`` returns a copy with n workers.
    states, steps, seed, workers
        As in `plangym_like.check_env`.
    episodes : list of ReferenceEpisode
        Uninterrupted episodes.
    chosen : list of ReferenceStep
        Some steps of these episodes, in random order.
    places : list of (ReferenceEpisode, int)
        For each chosen step, its episode and its index in that episode.
    continued : int
        The number of steps that were taken from restored states.
    """

    make: Callable[..., Any]
    make_parallel: Callable[[int], Any]
    states: int
    steps: int
    seed: int
    workers: tuple[int, ...]
    episodes: list[ReferenceEpisode] = field(default_factory=list)
    chosen: list[ReferenceStep] = field(default_factory=list)
    places: list[tuple[ReferenceEpisode, int]] = field(default_factory=list)
    continued: int = 0
    _made: list[Any] = field(default_factory=list)

    def fresh(self, wrappers: tuple[Any, ...] = ()) -> Any:
        """Return a new copy of the environment, with further wrappers around it."""
        self._made.append(self.make(wrappers))
        return self._made[-1]

    def used(self) -> Any:
        """Return an existing copy of the environment if there is one; otherwise, make a copy."""
        return self._made[0] if self._made else self.fresh()

    def play(self, *, save: bool) -> list[ReferenceEpisode]:
        """Play episodes in a new copy: four of full length, or more if they end earlier."""
        env = self.fresh()
        length = 4 * self.steps
        found: list[ReferenceEpisode] = []
        left = _EPISODES * length
        while left > 0 and len(found) < _MOST_EPISODES:
            found.append(play(env, self.seed + len(found), length, save=save))
            left -= max(1, len(found[-1].steps))
        return found

    def choose(self) -> None:
        """Choose the steps whose states are restored."""
        all_places = [
            (episode, number)
            for episode in self.episodes
            for number, step in enumerate(episode.steps)
            if len(step.outcome) > 1
        ]
        if not all_places:
            raise DifferenceFound(1, "error", str(self.episodes[0].steps[0].outcome[0]))
        random = np.random.default_rng(self.seed)
        order = random.permutation(len(all_places))[: self.states]
        self.places = [all_places[int(index)] for index in order]
        self.chosen = [episode.steps[number] for episode, number in self.places]

    def batch(self) -> tuple[list[Any], Row]:
        """Return the actions and states of the chosen steps."""
        states = [step.state for step in self.chosen if step.state is not None]
        return [step.action for step in self.chosen], np.stack(states)

    def cause(self, env: Any, episode: ReferenceEpisode, number: int) -> str:
        """Return a text that names the attributes in which `env` differs from another copy.

        `env` is restored to step `number` of `episode`; the other copy plays up to this step.
        """
        try:
            before = self.fresh()
            for earlier in self.episodes[: self.episodes.index(episode)]:
                attributes_after(before, earlier, len(earlier.steps))
            there = attributes_after(before, episode, number)
            env.set_state(episode.steps[number].state)
            names = differing_attributes(there, attributes_of(env.gym_env))
        except Exception:
            return ""
        if not names:
            return ". All attributes were restored, so the cause lies outside of them"
        return f". Different from a copy that was never restored: {', '.join(names[:_NAMED])}"

    def outside_cause(self, *, failed: bool = False) -> str:
        """Return a sentence that names the class attributes and globals that the steps depend on.

        The sentence is empty if there are none. After a check has `failed`, caches that were full
        when the environment was made are found too.
        """
        env = self.used()
        outside = env.simulator.outside
        if outside is None:
            return ""

        def run() -> Any:
            played = play(env, self.seed + _EPISODES, 4 * self.steps, save=False)
            return [played.opening, [step.outcome for step in played.steps]]

        try:
            return str(outside.cause(run) or (outside.caches(run) if failed else ""))
        except Exception:
            return ""

    def close(self) -> None:
        """Close every copy."""
        for env in self._made:
            with contextlib.suppress(Exception):
                env.close()


def row_outcome(batch: Any, row: int, time: int | None = None) -> Outcome:
    """Return the outcome of one row of a batch, or of step `time` in a row of a rollout."""
    parts = [batch.rewards[row], batch.terminateds[row], batch.truncateds[row]]
    if time is None:
        return (spaces.take(batch.obs, row), *parts, without_clock(batch.infos[row]))
    obs = spaces.take(spaces.take(batch.observations, row), time)
    return (obs, *(part[time] for part in parts), {})


def as_in_batch(env: Any, outcome: Outcome) -> Outcome:
    """Convert the outcome of a single step to the types that it has in a row of a batch."""
    obs, reward, terminated, truncated, info = outcome
    flags = np.bool_(terminated), np.bool_(truncated)
    return (
        spaces.as_row(env.observation_space, obs),
        np.float64(reward),
        *flags,
        python_numbers(info),
    )


def python_numbers(info: dict[str, Any]) -> dict[str, Any]:
    """Convert NumPy scalars in `info` to Python numbers, because batches may change their types."""
    return {
        key: value.item() if isinstance(value, np.generic) else value for key, value in info.items()
    }


def compare_batches(env: Any, one: Any, other: Any, order: Any, how: str, step: int = 1) -> None:
    """Compare row ``order[i]`` of the batch `one` with row i of the batch `other`, for all i.

    If two of these rows differ, `DifferenceFound` is raised.
    """
    for row, index in enumerate(map(int, order)):
        found = compare_outcomes(row_outcome(one, index), row_outcome(other, row))
        if found := found or compare_states(env, one.states[index], other.states[row]):
            raise DifferenceFound(step, found[0], f"{found[1]} (row {index}, {how})")
