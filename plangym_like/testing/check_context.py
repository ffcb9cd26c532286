"""`CheckContext`: the copies of an environment, and the episodes with which its checks compare."""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plangym_like.batch import spaces
from plangym_like.snapshots.differences import (
    attributes,
    difference,
    differing_attributes,
    without_clock,
)
from plangym_like.snapshots.trial import Outcome, compare_outcomes, outcome_of
from plangym_like.states.rows import HEADER_NBYTES, Row

_EPISODES = 4
_MOST_EPISODES = 100
# How many attributes a message names.
_NAMED = 6
# How long measurements take, and how many states they use at the most.
_SECONDS, _MOST_TIMES = 0.6, 200
# Steps beyond the end of an episode, which must be deterministic too.
_BEYOND = 3


@dataclass(slots=True)
class ReferenceStep:
    """One step: the state before it (if saved), the action, and the outcome."""

    state: Row | None
    action: Any
    outcome: Outcome


@dataclass(slots=True)
class ReferenceEpisode:
    """An episode: the reset's seed, observation and info, then the steps and the last state."""

    seed: int | None
    opening: tuple[Any, dict[str, Any]]
    steps: list[ReferenceStep] = field(default_factory=list)
    last: Row | None = None

    @property
    def states(self) -> list[Row | None]:
        """The state before each step, and the state after the last step."""
        return [*(step.state for step in self.steps), self.last]


def play(env: Any, seed: int | None, length: int, *, save: bool) -> ReferenceEpisode:
    """Reset with `seed`, and record up to `length` random steps, legal ones in a game of turns.

    If `save` is true, the state before each step is recorded too.
    """
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    obs, info = env.reset(seed=seed, return_state=False)
    episode = ReferenceEpisode(seed, copy.deepcopy((obs, without_clock(info))))
    beyond = 0
    for _ in range(length):
        mask = info.get("action_mask") if "to_play" in info else None
        legal = {} if mask is None or not mask.any() else {"mask": mask}
        state, action = env.get_state() if save else None, space.sample(**legal)
        outcome = outcome_of(env.step, action)
        episode.steps.append(ReferenceStep(state, action, outcome))
        if len(outcome) == 1:
            break
        info = outcome[4]
        beyond += beyond > 0 or outcome[2] or outcome[3]
        if beyond > _BEYOND:
            break
    episode.last = env.get_state()
    return episode


def compare_states(env: Any, one: Row, other: Row) -> tuple[str, str] | None:
    """Return the first field in which two rows differ, and the values; ``None`` if they agree.

    Rows with different bytes agree if they are equal after `env` has restored and saved both, or
    if its simulator finds no difference. This changes the current state of `env`.
    """
    if np.array_equal(one, other):
        return None
    again = []
    for row in (one, other):
        env.set_state(row)
        again.append(env.get_state())
    if np.array_equal(*again):
        return None
    payloads = [row[HEADER_NBYTES:] for row in (one, other)]
    found: tuple[str, str] | None = env.simulator.state_difference(*payloads)
    if found is None:
        return None
    with contextlib.suppress(Exception):
        found = difference(env.view_state(one), env.view_state(other)) or found
    return f"next state {found[0]}", found[1]


def compare_continued(
    env: Any, judge: Any, episode: ReferenceEpisode, start: int, length: int
) -> tuple[int, tuple[str, str] | None]:
    """Restore the state before step `start` of `episode` in `env`, and repeat `length` steps.

    Stop at the first step whose results differ. Return the number of steps taken, and how the last
    one differs, if it does. States are compared in `judge`, another copy of the environment.
    """
    states = episode.states
    env.set_state(states[start])
    taken = 0
    for step, following in zip(
        episode.steps[start : start + length], states[start + 1 :], strict=False
    ):
        taken += 1
        found = compare_outcomes(step.outcome, outcome_of(env.step, step.action))
        if found is None and len(step.outcome) > 1 and following is not None:
            found = compare_states(judge, following, env.get_state())
        if found:
            return taken, found
    return taken, None


def attributes_after(env: Any, episode: ReferenceEpisode, count: int) -> dict[str, bytes]:
    """Play the first `count` steps of `episode` in `env`, and return the attributes of `env`."""
    env.reset(seed=episode.seed, return_state=False)
    for step in episode.steps[:count]:
        outcome_of(env.step, step.action)
    return attributes(env.gym_env)


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
    places : list of (ReferenceEpisode, int)
        Some steps of these episodes, in random order: the episode, and the index in it.
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

    @property
    def chosen(self) -> list[ReferenceStep]:
        """The steps in `places`."""
        return [episode.steps[number] for episode, number in self.places]

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
            names = differing_attributes(there, attributes(env.gym_env))
        except Exception:
            return ""
        if not names:
            return (
                ". All attributes have their values again, so the cause lies outside of them, or "
                "in what a pickle does not keep: which object it is (`is`), and shared memory of "
                "arrays"
            )
        return f". Different from a copy that was never restored: {', '.join(names[:_NAMED])}"

    def measure(self) -> tuple[float, float, float]:
        """Return the median times in microseconds to save a state, to restore one, and to step.

        The chosen states are restored in random order, and without restore caches. A search that
        returns to recent states may be faster.
        """
        env, taken = self.used(), []
        until = time.perf_counter() + _SECONDS
        for step in itertools.islice(itertools.cycle(self.chosen), _MOST_TIMES):
            env.simulator.clear_caches()
            times = [time.perf_counter()]
            env.set_state(step.state)
            times.append(time.perf_counter())
            env.get_state()
            times.append(time.perf_counter())
            env.step(step.action)
            times.append(time.perf_counter())
            taken.append(np.diff(times))
            if len(taken) > 1 and times[-1] > until:
                break
        restore, save, step_us = (1e6 * np.median(taken, axis=0)).tolist()
        return save, restore, step_us

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
