"""Small environments that are hard to save, or whose steps depend on more than their state.

Each keeps something where a snapshot may miss it, or hands out what it still uses. `ENVS` lists
them. What is wrong shows from step `LATE` on, after any short trial; `EARLY` is from the first.
"""

from __future__ import annotations

import collections
import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

EARLY, LATE = 1, 30


class Walk(gymnasium.Env[Any, Any]):
    """A walk on a line: nothing is wrong with it.

    Others override `extra`, which is added to the reward of each step from `begins` on.
    """

    observation_space: Any = spaces.Box(-1000, 1000, (2,), np.float64)
    action_space: Any = spaces.Discrete(3)
    length = 70
    begins = EARLY

    def __init__(self) -> None:
        self.x = 0.0
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = float(self.np_random.normal())
        self.time = 0
        self.begin()
        return self.observe(), self.tell()

    def step(self, action: Any) -> Any:
        self.time += 1
        self.x += float(action) - 1 + float(self.np_random.normal()) / 8
        bonus = self.extra(int(action)) if self.time >= self.begins else 0.0
        return self.observe(), self.x + bonus, self.time >= self.length, False, self.tell()

    def begin(self) -> None:
        """Start an episode."""

    def observe(self) -> Any:
        return np.array([self.x, self.time])

    def tell(self) -> dict[str, Any]:
        return {"time": self.time}

    def extra(self, action: int) -> float:
        return 0.0


# Handed out while still in use


class PersistentInfo(Walk):
    """One dict for all infos."""

    def __init__(self) -> None:
        super().__init__()
        self.info: dict[str, Any] = {"count": 0}

    def begin(self) -> None:
        self.info["count"] = 0

    def tell(self) -> dict[str, Any]:
        return self.info

    def extra(self, action: int) -> float:
        self.info["count"] += action
        return float(self.info["count"])


class OwnBuffer(Walk):
    """Observes its own array, which the next reset overwrites."""

    length = 12

    def __init__(self) -> None:
        super().__init__()
        self.seen = np.zeros(2)

    def observe(self) -> Any:
        self.seen[:] = self.x, self.time
        return self.seen


class Objects(Walk):
    """Observes a sequence, which is a list of objects in batches, and reuses its arrays."""

    observation_space = spaces.Sequence(spaces.Box(-1000, 1000, (2,), np.float64))

    def __init__(self) -> None:
        super().__init__()
        self.seen = (np.zeros(2), np.zeros(2))

    def observe(self) -> Any:
        for part in self.seen:
            part[:] = self.x, self.time
        return self.seen


class ChangesAction(Walk):
    """Writes into the action that it is given."""

    action_space = spaces.Box(-1, 1, (2,), np.float64)

    def step(self, action: Any) -> Any:
        action *= 2
        self.time += 1
        self.x += float(action.sum())
        return self.observe(), self.x, self.time >= self.length, False, {}


# State outside the object


class ClassCounter(Walk):
    total = 0

    def extra(self, action: int) -> float:
        type(self).total += 1
        return type(self).total % 7 / 7


class Closure(Walk):
    def __init__(self) -> None:
        super().__init__()
        total = 0

        def count() -> float:
            nonlocal total
            total += 1
            return total % 7 / 7

        self.count = count

    def extra(self, action: int) -> float:
        return self.count()


# Randomness


class NumpyGlobal(Walk):
    def extra(self, action: int) -> float:
        return float(np.random.random())


class OwnRandom(Walk):
    """Has a second generator, which a seed does not set; its steps are pure."""

    def __init__(self) -> None:
        super().__init__()
        self.own = random.Random(5)
        self.other = np.random.default_rng(5)

    def extra(self, action: int) -> float:
        return self.own.random() + self.other.random()


# Clocks, addresses, hashes


class WallClock(Walk):
    def extra(self, action: int) -> float:
        return time.perf_counter() % 1


class ClockInInfo(Walk):
    def tell(self) -> dict[str, Any]:
        return {"seconds": time.perf_counter()}


class StringSet(Walk):
    """Iterates over a set whose order follows from the hash seed of the process."""

    def begin(self) -> None:
        self.words = {f"word {number}" for number in range(9)}

    def extra(self, action: int) -> float:
        word = next(iter(self.words))
        self.words.discard(word)
        self.words.add(f"{word} {self.time}" if len(word) < 30 else f"word {self.time}")
        return float(sum(map(ord, word)) % 97)


class Orders(Walk):
    """Dicts, deques and iterators, whose order a snapshot has to keep."""

    def begin(self) -> None:
        self.table = {number * 7 % 5: number for number in range(5)}
        self.queue = collections.deque(range(5), maxlen=5)
        self.counter = itertools.count()

    def extra(self, action: int) -> float:
        key, value = next(iter(self.table.items()))
        del self.table[key]
        self.table[key] = value + action
        self.queue.append(next(self.counter))
        return float(key + self.queue[0] + next(iter(self.table)))


# What no pickle takes


class Lock(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def extra(self, action: int) -> float:
        with self.lock:
            return 0.5


# Own snapshots


class SavesItself(Walk):
    """Implements ``save_state`` and ``load_state``, rightly."""

    def save_state(self) -> bytes:
        return np.array([self.x, self.time]).tobytes() + repr(self.generator_state()).encode()

    def generator_state(self) -> Any:
        return self.np_random.bit_generator.state

    def load_state(self, data: bytes) -> None:
        self.x, steps = np.frombuffer(data[:16])
        self.x, self.time = float(self.x), int(steps)
        self.np_random.bit_generator.state = eval(data[16:])


class ForgetsItself(SavesItself):
    """Its ``save_state`` leaves out what decides later."""

    def begin(self) -> None:
        self.forgotten = 0

    def extra(self, action: int) -> float:
        self.forgotten += action
        return float(self.forgotten)


# Results that fit no array


class NoObservation(Walk):
    def observe(self) -> Any:
        return None if self.time >= self.begins else super().observe()


def late(kind: type[Walk]) -> type[Walk]:
    """Return `kind`, behaving itself before step `LATE`."""
    body = {"begins": LATE, "length": 70, "__module__": __name__}
    return type(f"Late{kind.__name__}", (kind,), body)


_SUDDEN: tuple[type[Walk], ...] = (
    *(ClassCounter, Closure, NumpyGlobal, WallClock),
    *(StringSet, ForgetsItself, NoObservation),
)
# Workers find these classes by name.
globals().update({kind.__name__: kind for kind in map(late, _SUDDEN)})

ENVS: tuple[Callable[[], Walk], ...] = tuple(
    kind
    for name, kind in sorted(globals().items())
    if isinstance(kind, type) and issubclass(kind, Walk)
)

HANDED_OUT = (PersistentInfo, OwnBuffer, Objects, ChangesAction)
