"""A set may be iterated in another order after it was restored; trials and audits notice it."""

from __future__ import annotations

import enum
from typing import Any

import gymnasium
import numpy as np
import pytest
from usual import first_of

import plangym_like
from plangym_like.errors import ImpureEnvironmentError, SnapshotError
from plangym_like.snapshots.chains import has_addresses, scatter_sets, sets_in


class Field(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def step(self, action: Any) -> Any:
        self.seen = float(self.pick(int(action)))
        return np.array([self.seen]), self.seen, False, False, {}


class Animal:
    def __init__(self, weight: int) -> None:
        self.weight = weight


class Flock(Field):
    """Draws from a set of objects that hash by their address, as crafter does."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.animals = {Animal(weight) for weight in range(40)}
        return np.zeros(1), {}

    def pick(self, action: int) -> int:
        return list(self.animals)[int(self.np_random.integers(40))].weight


class Cells(Field):
    """Takes cells out of a set of numbers, whose order depends on what it held before."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.free = set(range(90))
        return np.zeros(1), {}

    def pick(self, action: int) -> int:
        free = list(self.free)
        cell = free[int(self.np_random.integers(len(free)))] if len(free) > 3 else free[action]
        if len(free) > 3:
            self.free.remove(cell)
        return cell


class Visits(Field):
    """Only asks whether a set of cells holds one; adds to it and takes from it."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.cell, self.visited = (0, 0), set()
        return np.zeros(1), {}

    def pick(self, action: int) -> int:
        x, y = self.cell
        self.cell = (x + action) % 9, (y + 1) % 7
        new = self.cell not in self.visited
        self.visited.add(self.cell)
        self.visited.discard((y, x))
        return int(new)


def test_what_hashes_by_its_address_is_never_exact_whatever_a_trial_shows() -> None:
    for _ in range(3):
        with plangym_like.make(Flock) as env:
            assert (env.snapshot, env.exactness) == ("pickle", "approximate")
            assert "Flock.animals is a set of objects that hash by" in env.exactness_note
        with pytest.raises(SnapshotError, match="animals is a set of objects that hash by"):
            plangym_like.make(Flock, snapshot="replay")


def test_a_set_that_shrinks_goes_on_as_gymnasium_plays_it() -> None:
    plain = Cells()
    plain.reset(seed=5)
    space = gymnasium.spaces.Discrete(3, seed=5)
    actions = [int(space.sample()) for _ in range(100)]
    truth = [plain.step(action)[1] for action in actions]
    with plangym_like.make(Cells) as env:
        assert (env.snapshot, env.exactness) == ("replay", "exact")
        assert "by pickle: " in env.snapshot_note
        state, *_ = env.reset(seed=5)
        for action, reward in zip(actions, truth, strict=True):
            env.reset(seed=6)
            state, _, found, *_ = env.step_batch([action], state, return_state=True)
            assert found.tolist() == [reward]


def test_a_set_that_is_only_asked_for_its_items_is_pickled() -> None:
    plain = Visits()
    plain.reset(seed=0)
    with plangym_like.make(Visits, audit_every=1) as env:
        assert (env.snapshot, env.exactness) == ("pickle", "exact")
        state, *_ = env.reset(seed=0)
        for step in range(80):
            state, _, reward, *_ = env.step(step % 3, state=state)
            assert reward == plain.step(step % 3)[1]


class FirstSeen(gymnasium.Wrapper):
    """Adds 8 and then 0, which collide in a table of eight places, and pays the first item."""

    def reset(self, **kwargs: Any) -> Any:
        self.steps, self.seen = 0, set()
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        if self.steps in (30, 31):
            self.seen = {*self.seen, 8 if self.steps == 30 else 0}
        return obs, float(next(iter(self.seen or [-1]))), terminated, truncated, info


class LateSet(FirstSeen):
    def reset(self, **kwargs: Any) -> Any:
        result = super().reset(**kwargs)
        self.seen = []
        return result


@pytest.mark.parametrize("wrapper", [FirstSeen, LateSet])
@pytest.mark.parametrize("name", first_of(["Pendulum-v1", Visits, "ALE/Pong-v5"], 2))
def test_an_audit_notices_that_the_order_of_a_set_matters_late(name: Any, wrapper: Any) -> None:
    way = {"snapshot": "pickle"} if name is Visits else {}
    with plangym_like.make(name, wrappers=[wrapper], audit_every=1, **way) as env:
        assert env.exactness == "exact"
        state, *_ = env.reset(seed=0)
        with pytest.raises(ImpureEnvironmentError, match="reward"):
            for _ in range(40):
                state, *_ = env.step(env.sample_action(), state=state)


class Marked(Field):
    """Saves a set with methods of its own."""

    first: Any = frozenset

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.marked = self.first()
        return np.zeros(1), {}

    def pick(self, action: int) -> int:
        self.marked = {*self.marked, action}
        return action

    def save_state(self) -> Any:
        return {"marked": self.marked}

    def load_state(self, saved: Any) -> None:
        self.marked = saved["marked"]


class ListsMarks(Marked):
    first = staticmethod(lambda: set(range(40)))

    def pick(self, action: int) -> int:
        return int(list(self.marked)[action])


def test_a_set_in_a_state_that_save_state_returned() -> None:
    with plangym_like.make(Marked, snapshot="native") as env:
        assert env.exactness == "exact"
    with pytest.raises(SnapshotError, match="does not repeat itself"):
        plangym_like.make(ListsMarks, snapshot="native")


class Herd(set):
    """A class of sets."""


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@pytest.mark.parametrize("size", [2, 9, 500])
def test_scattered_sets_hold_the_same_items_in_another_order(size: int) -> None:
    numbers, cells = set(range(size)), {(0.5, number) for number in range(size)}
    thing = Animal(1)
    thing.found = {"cells": [cells]}  # type: ignore[attr-defined]
    orders = list(numbers), list(cells)
    scatter_sets([numbers, thing])
    assert numbers == set(range(size)) and cells == {(0.5, number) for number in range(size)}
    assert list(numbers) != orders[0] and list(cells) != orders[1]


def test_where_objects_hash_by_their_address() -> None:
    animals = [Animal(1), Animal(2)]
    found: list[Any] = [{*animals}, {"deep": [{"er": frozenset(animals)}]}]
    found += [{(1, animals[0]), (2, animals[1])}, Herd(animals)]
    for value in found:
        assert any(has_addresses(each) for _, each in sets_in({"a": value}, "root"))
    for value in [{animals[0]}, {1, 2}, {"a", "b"}, {Animal, Colour}, set(Colour), animals]:
        assert not any(has_addresses(each) for _, each in sets_in({"a": value}, "root"))
