"""Environments that keep values in their class or module, or in caches of functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CACHE: dict[int, float] = {}
MEMO: dict[int, float] = {}
COUNT = 0
# After so many steps of a process, results change.
MANY = 250


class Walk(gymnasium.Env[Any, Any]):
    """A walk on a line, to whose rewards `extra` is added from step `begins` on."""

    observation_space: Any = spaces.Box(-1000, 1000, (2,), np.float64)
    action_space: Any = spaces.Discrete(3)
    begins = 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.time = float(self.np_random.normal()), 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        self.x += float(action) - 1
        bonus = self.extra() if self.time >= self.begins else 0.0
        return self._observe(), self.x + bonus, self.time >= 60, False, {}

    def _observe(self) -> Any:
        return np.array([self.x, float(self.time)])

    def extra(self) -> float:
        return 0.0


class ModuleCache(Walk):
    """Pays what the first episode found at the same time."""

    def extra(self) -> float:
        if self.time not in CACHE:
            CACHE[self.time] = self.x
        return CACHE[self.time]


class ClassCache(Walk):
    """The same in a class attribute that is made in a step."""

    def extra(self) -> float:
        if "found" not in vars(ClassCache):
            ClassCache.found = {}  # type: ignore[attr-defined]
        return float(ClassCache.found.setdefault(self.time, self.x))  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=500)
def first_of(time: int) -> list[float]:
    return []


class CachedFunction(Walk):
    """The same in lists that an ``lru_cache`` keeps."""

    def extra(self) -> float:
        kept = first_of(self.time)
        if not kept:
            kept.append(self.x)
        return kept[0]


class LateModuleCache(ModuleCache):
    begins = 30


class LateClassCache(ClassCache):
    begins = 30


class LateCachedFunction(CachedFunction):
    begins = 30


class ClassCounter(Walk):
    count = 0

    def extra(self) -> float:
        ClassCounter.count += 1
        return float(ClassCounter.count > MANY)


class ModuleCounter(Walk):
    def extra(self) -> float:
        global COUNT
        COUNT += 1
        return float(COUNT > MANY)


@functools.cache
def square(number: int) -> int:
    return number * number


class Memo(Walk):
    """Keeps the results of pure functions."""

    def extra(self) -> float:
        if self.time not in MEMO:
            MEMO[self.time] = self.time / 2
        return MEMO[self.time] + square(self.time)


class Statistics(Walk):
    """Counts its steps; no step reads the number."""

    steps = 0

    def extra(self) -> float:
        Statistics.steps += 1
        return 0.0


def forget() -> None:
    """Bring this process back to where it was when the module was imported."""
    global COUNT
    COUNT = ClassCounter.count = Statistics.steps = 0
    CACHE.clear()
    MEMO.clear()
    if "found" in vars(ClassCache):
        del ClassCache.found  # type: ignore[attr-defined]
    first_of.cache_clear()
    square.cache_clear()


# Environment -> what errors name.
EARLY: dict[Callable[[], Walk], str] = {
    ModuleCache: r"CACHE \(a global of caching_envs\) changed from \{\}",
    ClassCache: r"ClassCache.found \(a class attribute\) changed from nothing",
    CachedFunction: r"the lru_cache first_of \(a global of caching_envs\) holds",
}
LATE: dict[Callable[[], Walk], str] = {
    LateModuleCache: EARLY[ModuleCache],
    LateClassCache: EARLY[ClassCache],
    LateCachedFunction: EARLY[CachedFunction],
    ClassCounter: r"ClassCounter.count \(a class attribute\) changed from \d+ to",
    ModuleCounter: r"COUNT \(a global of caching_envs\) changed from \d+ to",
}
