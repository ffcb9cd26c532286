"""Random play that was never interrupted: what everything restored is compared with."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plangym_like.errors import StateError
from plangym_like.snapshots.differences import attributes, difference, without_clock
from plangym_like.states import HEADER_NBYTES, Row

# So many steps are taken beyond the end of an episode, which have to be as deterministic.
_BEYOND = 3


@dataclass(slots=True)
class Moment:
    """One step of a journey: ``outcome`` is observation, reward, flags and info, or an error."""

    state: Row | None
    action: Any
    outcome: tuple[Any, ...]


@dataclass(slots=True)
class Journey:
    """An episode: the seed of its reset, what that showed, and its steps."""

    seed: int | None
    opening: tuple[Any, dict[str, Any]]
    moments: list[Moment] = field(default_factory=list)
    last: Row | None = None

    @property
    def rows(self) -> list[Row]:
        """The states before each step, and the last one."""
        states = [*(moment.state for moment in self.moments), self.last]
        return [state for state in states if state is not None]


def travel(env: Any, seed: int | None, length: int, *, save: bool) -> Journey:
    """Reset with `seed` and take `length` random steps; `save` reads the state before each."""
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    obs, info = env.reset(seed=seed, return_state=False)
    journey = Journey(seed, copy.deepcopy((obs, without_clock(info))))
    beyond = 0
    for _ in range(length):
        moment = Moment(env.get_state() if save else None, space.sample(), ())
        moment.outcome = take(env, moment.action)
        journey.moments.append(moment)
        if len(moment.outcome) == 1:
            break
        beyond += beyond > 0 or moment.outcome[2] or moment.outcome[3]
        if beyond > _BEYOND:
            break
    journey.last = env.get_state()
    return journey


def take(env: Any, action: Any) -> tuple[Any, ...]:
    """Step once and return observation, reward, flags and info, apart from the environment.

    What the environment raises is an outcome too: some take only actions that are legal now.
    """
    try:
        outcome: tuple[Any, ...] = tuple(env.step(copy.deepcopy(action)))
    except StateError:
        raise
    except Exception as error:
        return (f"{type(error).__name__}: {error}",)
    return copy.deepcopy((*outcome[:4], without_clock(outcome[4])))


_FIELDS = ("observation", "reward", "terminated", "truncated", "info")


def compare_outcomes(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[str, str] | None:
    """Return which field of two steps differs, and how."""
    if len(one) == 1 or len(other) == 1:
        before, after = (each[0] if len(each) == 1 else "nothing" for each in (one, other))
        return difference(before, after, "what was raised")
    for name, left, right in zip(_FIELDS, one, other, strict=True):
        if found := difference(left, right, name):
            return found
    return None


def compare_states(env: Any, one: Row, other: Row) -> tuple[str, str] | None:
    """Return what differs between two rows, by name where the family has names.

    Rows that differ in bytes but are the same once restored and saved again are the same state.
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
        named = difference(env.view_state(one), env.view_state(other))
        found = named or found
    return f"next state {found[0]}", found[1]


def info_difference(one: dict[str, Any], other: dict[str, Any]) -> tuple[str, str] | None:
    """Return where the info of a single step and that of a batch's row differ.

    Whether a number is Python's or NumPy's does not count.
    """
    return difference(_plain(one), _plain(other), "info")


def _plain(info: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.item() if isinstance(value, np.generic) else value for key, value in info.items()
    }


def attributes_after(env: Any, journey: Journey, count: int) -> dict[str, bytes]:
    """Return the attributes of `env` after the first `count` steps of `journey`, never restored."""
    env.reset(seed=journey.seed, return_state=False)
    for moment in journey.moments[:count]:
        take(env, moment.action)
    return attributes(env.gym_env)
