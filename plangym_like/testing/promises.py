"""The promises that `check_env` puts to the test, one function each."""

from __future__ import annotations

import contextlib
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from plangym_like import spaces
from plangym_like.snapshots.differences import (
    attributes,
    difference,
    differing_attributes,
    without_clock,
)
from plangym_like.snapshots.generators import watched_generators
from plangym_like.states import Row
from plangym_like.testing.journeys import (
    Journey,
    Moment,
    attributes_after,
    compare_outcomes,
    compare_states,
    info_difference,
    take,
    travel,
)

_EPISODES = 4
_MOST_EPISODES = 100
_NAMED = 6
_PARTS = (
    ("obs", "observation"),
    ("rewards", "reward"),
    ("terminateds", "terminated"),
    ("truncateds", "truncated"),
)


class Broken(Exception):
    """A promise does not hold: step, field, detail."""


@dataclass(slots=True)
class Evidence:
    """What is known of an environment so far.

    ``journeys`` were never interrupted; ``chosen`` are moments of them, in random order, and
    ``places`` where these are: journey and number of the moment in it.
    """

    make: Callable[[], Any]
    spread: Callable[[int], Any]
    states: int
    steps: int
    seed: int
    workers: tuple[int, ...]
    # Makes an environment with further wrappers around it.
    wrap: Callable[[tuple[Any, ...]], Any] | None = None
    journeys: list[Journey] = field(default_factory=list)
    chosen: list[Moment] = field(default_factory=list)
    places: list[tuple[Journey, int]] = field(default_factory=list)
    continued: int = 0
    _made: list[Any] = field(default_factory=list)

    def fresh(self) -> Any:
        """Return a new copy of the environment."""
        return self.fresh_from(self.make)

    def fresh_from(self, make: Callable[[], Any]) -> Any:
        """Return a new environment made by `make`, to be closed at the end."""
        self._made.append(make())
        return self._made[-1]

    def used(self) -> Any:
        """Return the copy that has been about most: making one may take long."""
        return self._made[0] if self._made else self.fresh()

    def travel(self, *, save: bool) -> list[Journey]:
        """Play episodes in a new copy: four of the full length, or more that end earlier."""
        env = self.fresh()
        length = 4 * self.steps
        found: list[Journey] = []
        left = _EPISODES * length
        while left > 0 and len(found) < _MOST_EPISODES:
            found.append(travel(env, self.seed + len(found), length, save=save))
            left -= max(1, len(found[-1].moments))
        return found

    def choose(self) -> None:
        """Choose the moments to go on from."""
        all_places = [
            (journey, number)
            for journey in self.journeys
            for number, moment in enumerate(journey.moments)
            if len(moment.outcome) > 1
        ]
        if not all_places:
            raise Broken(1, "what was raised", str(self.journeys[0].moments[0].outcome[0]))
        random = np.random.default_rng(self.seed)
        order = random.permutation(len(all_places))[: self.states]
        self.places = [all_places[int(index)] for index in order]
        self.chosen = [journey.moments[number] for journey, number in self.places]

    def batch(self) -> tuple[list[Any], Row]:
        """Return actions and states of the chosen moments."""
        states = [moment.state for moment in self.chosen if moment.state is not None]
        return [moment.action for moment in self.chosen], np.stack(states)

    def close(self) -> None:
        """Close every copy."""
        for env in self._made:
            with contextlib.suppress(Exception):
                env.close()


def repeat(evidence: Evidence) -> bool:
    """Play the same episodes in two copies."""
    with watched_generators() as told:
        one, other = evidence.travel(save=False), evidence.travel(save=False)
        _compare_journeys(one, other, f". {drawn.strip()}" if (drawn := told()) else "")
    evidence.journeys = one
    return True


def saving(evidence: Evidence) -> bool:
    """Play them again, and read the state before each step."""
    saved = evidence.travel(save=True)
    _compare_journeys(evidence.journeys, saved, "")
    env = evidence.used()
    for one, other in zip(evidence.journeys, saved, strict=True):
        if one.last is not None and other.last is not None:
            if found := compare_states(env, one.last, other.last):
                raise Broken(len(one.moments), *found)
    evidence.journeys = saved
    evidence.choose()
    return True


def restore(evidence: Evidence) -> bool:
    """Go on from the chosen moments, each after something else."""
    env = evidence.used()
    for journey, number in evidence.places:
        _continue(evidence, env, journey, number)
    return True


def past(evidence: Evidence) -> bool:
    """Restore in a copy that has never stepped, and in one that has just ended an episode."""
    moments = evidence.chosen[:2]
    for before in (None, evidence.journeys[-1].last):
        env = evidence.fresh()
        for moment in moments:
            if before is not None:
                env.set_state(before)
            env.set_state(moment.state)
            if found := compare_outcomes(moment.outcome, take(env, moment.action)):
                raise Broken(1, found[0], f"{found[1]} (in a copy that has just been made)")
    return True


def purity(evidence: Evidence) -> bool:
    """Step the chosen moments as batches: in one, in another order, one by one, from one state."""
    env = evidence.used()
    actions, states = evidence.batch()
    env.reset(seed=evidence.seed)
    given = states.copy()

    def stepped(some_actions: Any, some_states: Any) -> Any:
        current = env.get_state()
        result = env.step_batch(some_actions, some_states)
        if found := compare_states(env, current, env.get_state()):
            raise Broken(
                None, "the current state", f"a batch has changed it: {found[0]}, {found[1]}"
            )
        return result

    whole = stepped(actions, states)
    _compare_with_moments(env, whole, evidence.chosen)
    order = np.arange(len(actions))[::-1]
    turned = stepped([actions[index] for index in order], states[order])
    compare_batches(env, whole, turned, order, "in another order")
    for index in range(min(3, len(actions))):
        alone = stepped([actions[index]], states[index])
        compare_batches(env, _rows(whole, [index]), alone, np.arange(1), "on its own")
    one = stepped(actions[:1] * 3, states[0])
    compare_batches(env, _rows(whole, [0, 0, 0]), one, np.arange(3), "three times over")
    if not np.array_equal(states, given):
        raise Broken(None, "the rows that were given", "they have been written into")
    return True


def rollout(evidence: Evidence) -> bool:
    """Run the moments that follow the chosen ones in one call."""
    env = evidence.used()
    plans, moments = [], []
    for journey, number in evidence.places:
        part = journey.moments[number : number + evidence.steps]
        if all(len(moment.outcome) > 1 for moment in part):
            # A row that is shorter goes on beyond what is known of it.
            actions = [moment.action for moment in part]
            plans.append(actions + actions[-1:] * (evidence.steps - len(part)))
            moments.append(part)
    if not plans:
        return False
    states = np.stack([part[0].state for part in moments if part[0].state is not None])
    result = env.rollout_batch(plans, states, return_observations=True)
    for row, part in enumerate(moments):
        for time, moment in enumerate(part):
            obs, reward, terminated, truncated, _ = moment.outcome
            seen = spaces.take(spaces.take(result.observations, row), time)
            if found := difference(as_in_batch(env, obs), seen, "observation"):
                raise Broken(time + 1, *found)
            for name, expected, got in (
                ("reward", reward, result.rewards[row, time]),
                ("terminated", terminated, result.terminateds[row, time]),
                ("truncated", truncated, result.truncateds[row, time]),
            ):
                if found := difference(float(expected), float(got), name):
                    raise Broken(time + 1, *found)
            if terminated or truncated:
                break
    return True


def travelling(evidence: Evidence) -> bool:
    """Pickle rows, write them to files in both ways that there are, and go on from them."""
    actions, states = evidence.batch()
    env = evidence.used()
    expected = env.step_batch(actions, states)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        np.save(path.with_suffix(".npy"), states)
        env.save_states(path, states)
        other = evidence.fresh()
        for how, rows in {
            "pickled": pickle.loads(pickle.dumps(states)),
            "in a file of numpy's": np.load(path.with_suffix(".npy")),
            "in a file of save_states": other.load_states(path),
        }.items():
            if not np.array_equal(rows, states):
                raise Broken(None, "the rows", f"they are others once they were {how}")
            order = np.arange(len(actions))
            compare_batches(other, expected, other.step_batch(actions, rows), order, how)
    return True


def workers(evidence: Evidence) -> bool:
    """Step the chosen moments in child processes, and go on there."""
    if not evidence.workers:
        return False
    actions, states = evidence.batch()
    env = evidence.used()
    order = np.arange(len(actions))
    for count in evidence.workers:
        with evidence.spread(count) as lanes:
            here, there = states, states
            for step in (1, 2):
                one, other = env.step_batch(actions, here), lanes.step_batch(actions, there)
                compare_batches(env, one, other, order, f"with {count} of them", step)
                here, there = one.states, other.states
    return True


def picture(evidence: Evidence) -> bool:
    """Compare pictures before and after a state was left."""
    env = evidence.used()
    if env.simulator.__dict__.get("render_mode") != "rgb_array":
        return False
    pictures = []
    for moment in evidence.chosen[:3]:
        env.set_state(moment.state)
        pictures.append(np.array(env.get_image(), copy=True))
    other = evidence.fresh()
    for moment, shown in reversed(list(zip(evidence.chosen, pictures, strict=False))):
        other.set_state(moment.state)
        if found := difference(shown, np.array(other.get_image()), "picture"):
            raise Broken(None, *found)
    return True


CHECKS: dict[str, Callable[[Evidence], bool]] = {
    "repeat": repeat,
    "saving": saving,
    "restore": restore,
    "past": past,
    "purity": purity,
    "rollout": rollout,
    "travel": travelling,
    "workers": workers,
    "picture": picture,
}


def _compare_journeys(ones: list[Journey], others: list[Journey], why: str) -> None:
    for one, other in zip(ones, others, strict=True):
        found = difference(one.opening[0], other.opening[0], "observation")
        if found := found or difference(one.opening[1], other.opening[1], "info"):
            raise Broken(0, found[0], found[1] + why)
        for step, (left, right) in enumerate(zip(one.moments, other.moments, strict=False), 1):
            if found := compare_outcomes(left.outcome, right.outcome):
                raise Broken(step, found[0], found[1] + why)


def _continue(evidence: Evidence, env: Any, journey: Journey, number: int) -> None:
    """Restore one moment and go on; what follows has to be what followed."""
    following = journey.moments[number : number + evidence.steps]
    start = following[0].state
    assert start is not None
    rows = [*(moment.state for moment in journey.moments), journey.last]
    given = start.copy()
    env.set_state(start)
    if not np.array_equal(start, given):
        raise Broken(None, "the row that was given", "set_state has written into it")
    for step, moment in enumerate(following, 1):
        found = compare_outcomes(moment.outcome, take(env, moment.action))
        if found is None and len(moment.outcome) > 1:
            reached, expected = env.get_state(), rows[number + step]
            evidence.continued += 1
            if expected is not None and not np.array_equal(reached, expected):
                found = compare_states(evidence.fresh(), expected, reached)
        if found:
            raise Broken(step, found[0], found[1] + _causes(evidence, env, journey, number))


def _causes(evidence: Evidence, env: Any, journey: Journey, number: int) -> str:
    """Return which attributes a restored copy does not have as one has that never stopped."""
    try:
        before = evidence.fresh()
        for earlier in evidence.journeys[: evidence.journeys.index(journey)]:
            attributes_after(before, earlier, len(earlier.moments))
        there = attributes_after(before, journey, number)
        env.set_state(journey.moments[number].state)
        names = differing_attributes(there, attributes(env.gym_env))
    except Exception:
        return ""
    if not names:
        return ". All attributes are as they were, so the cause lies outside of them"
    return f". Other than in a copy that never stopped: {', '.join(names[:_NAMED])}"


def as_in_batch(env: Any, obs: Any) -> Any:
    """Return an observation in the form that it has as a row of a batch."""
    batch = spaces.empty(env.observation_space, (1,))
    spaces.put(env.observation_space, batch, 0, obs)
    return spaces.take(batch, 0)


def _compare_with_moments(env: Any, batch: Any, moments: list[Moment]) -> None:
    for index, moment in enumerate(moments):
        obs, reward, terminated, truncated, info = moment.outcome
        got = (batch.rewards[index], batch.terminateds[index], batch.truncateds[index])
        seen = spaces.take(batch.obs, index)
        found = difference(as_in_batch(env, obs), seen, "observation")
        for name, left, right in zip(
            ("reward", "terminated", "truncated"), (reward, terminated, truncated), got, strict=True
        ):
            found = found or difference(float(left), float(right), name)
        found = found or info_difference(info, without_clock(batch.infos[index]))
        if found:
            raise Broken(1, found[0], f"{found[1]} (in row {index} of a batch)")


def compare_batches(env: Any, one: Any, other: Any, order: Any, how: str, step: int = 1) -> None:
    """Compare row ``order[i]`` of `one` with row i of `other`."""
    for row, index in enumerate(order):
        for name, singular in _PARTS:
            left = spaces.take(getattr(one, name), int(index))
            if found := difference(left, spaces.take(getattr(other, name), row), singular):
                raise Broken(step, found[0], f"{found[1]} (row {index}, {how})")
        infos = without_clock(one.infos[int(index)]), without_clock(other.infos[row])
        if found := difference(infos[0], infos[1], "info"):
            raise Broken(step, found[0], f"{found[1]} (row {index}, {how})")
        if found := compare_states(env, one.states[int(index)], other.states[row]):
            raise Broken(step, found[0], f"{found[1]} (row {index}, {how})")


def _rows(batch: Any, indices: list[int]) -> Any:
    """Return some rows of a batch's result as another one."""
    parts = {
        name: [spaces.take(getattr(batch, name), index) for index in indices]
        for name in ("states", "obs", "rewards", "terminateds", "truncateds", "infos")
    }
    return SimpleNamespace(**parts)
