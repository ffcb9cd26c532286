"""Infos and memories are compared by value, never by address or by how they are pickled."""

from __future__ import annotations

import copy
from collections import namedtuple
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import plangym_like
from plangym_like.snapshots.differences import difference

Pair = namedtuple("Pair", "one other")


class Slotted:
    __slots__ = ("one", "other")

    def __init__(self, value: int) -> None:
        self.one, self.other = f"value {value}", f"value {value}"


class Texts(list):
    """Has a ``__dict__`` that says nothing."""


class Thing:
    def __init__(self, value: int) -> None:
        self.value, self.me = value, self


VALUES: dict[str, Any] = {
    "slots": Slotted,
    "list of its own": lambda value: Texts([f"text {value}"]),
    "error": lambda value: ValueError(f"text {value}"),
    "set": lambda value: {f"text {k}" for k in range(value, value + 9)},
    "keys without a hash": lambda value: {Thing(0): value},
    "named": lambda value: Pair(value, Slotted(value)),
    "masked": lambda value: np.ma.masked_array([1, value], [False, False]),
    "space": lambda value: gym.spaces.Discrete(value + 1),
}


@pytest.mark.parametrize("kind", VALUES)
def test_copies_are_equal_and_other_values_are_not(kind: str) -> None:
    one = VALUES[kind](1)
    assert difference(one, copy.deepcopy(one), "info") is None
    assert difference(VALUES[kind](1), VALUES[kind](1), "info") is None
    found = difference(one, VALUES[kind](2), "info")
    assert found is not None and found[0].startswith("info")


@pytest.mark.full  # importing torch takes longer than all other tests of this file
def test_tensors_are_compared_by_their_numbers() -> None:
    torch = pytest.importorskip("torch")
    for kind in (torch.arange, lambda n: torch.nn.Parameter(torch.ones(n))):
        assert difference(kind(3), kind(3), "info") is None
        assert difference(kind(3), kind(4), "info") is not None


class Telling(gym.Env):
    """Puts objects of many kinds into its info."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (1,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def told(self) -> Any:
        found = {kind: make(self.count) for kind, make in VALUES.items()}
        return {**found, "itself": self, "generator": (x for x in range(3))}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1), self.told()

    def step(self, action: Any) -> Any:
        self.count += 1 + int(action)
        return np.full(1, float(self.count)), 1.0, False, False, self.told()


def test_objects_in_infos_are_no_false_alarm() -> None:
    with plangym_like.make(Telling, audit_every=1) as env:
        assert env.exactness == "exact", env.exactness_note
        states = env.reset(seed=0).state
        for _ in range(3):
            states = env.step_batch(np.arange(6) % 3, states).states
        assert env.stats.rows_audited


def test_the_last_of_many_equal_sets_is_compared_too() -> None:
    one, other = ({"a": {1, 2}, "b": [{3}, {4}], "c": {5, last}} for last in (6, 7))
    assert difference(one, copy.deepcopy(one), "info") is None
    found = difference(one, other, "info")
    assert found is not None and found[0].startswith("info['c']")
