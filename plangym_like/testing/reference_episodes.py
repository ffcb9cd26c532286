"""Uninterrupted episodes of random steps, with which restored episodes are compared."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plangym_like.snapshots.differences import attributes, difference, without_clock
from plangym_like.snapshots.trial import Outcome, compare_outcomes, outcome_of
from plangym_like.states.rows import HEADER_NBYTES, Row

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
