"""Environments, wrappers and simulators that are deliberately wrong, for the checker to find.

Most hide their fault until step 30 of an episode, so that no trial when they are made sees it, and
say of themselves (``state_attributes``) that their memory is less than it is.
"""

import itertools
import os
import pickle
import time
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import EzPickle

from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.pickled import PickledEnv, PickledSimulator
from plangym_like.envs.replayed import ReplayedEnv

HIDDEN_UNTIL = 30


class Walk(gymnasium.Env):
    """A walk on a line: nothing is wrong with it."""

    state_attributes: tuple[str, ...] = ("x", "time", "_np_random")
    observation_space = spaces.Box(-1000, 1000, (2,), np.float64)
    action_space = spaces.Discrete(3)
    length = 70

    def __init__(self) -> None:
        self.x = 0.0
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = float(self.np_random.normal())
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        self.x += float(action) - 1 + float(self.np_random.normal()) / 8
        bonus = self.fault(int(action)) if self.time > HIDDEN_UNTIL else 0.0
        return self.observe(), self.x + bonus, self.time >= self.length, False, {"time": self.time}

    def observe(self) -> Any:
        return np.array([self.x, self.time])

    def fault(self, action: int) -> float:
        return 0.0


class ClassCounter(Walk):
    total = 0

    def fault(self, action: int) -> float:
        ClassCounter.total += 1
        return float(ClassCounter.total)


_module_generator = np.random.default_rng(0)


class ModuleGenerator(Walk):
    def fault(self, action: int) -> float:
        return float(_module_generator.random())


class GlobalGenerator(Walk):
    def fault(self, action: int) -> float:
        return float(np.random.random())


class Closure(Walk):
    def __init__(self) -> None:
        super().__init__()
        count = 0

        def tick() -> int:
            nonlocal count
            count += 1
            return count

        self.tick = tick

    def fault(self, action: int) -> float:
        return float(self.tick())


class LazyAttribute(Walk):
    def fault(self, action: int) -> float:
        if not hasattr(self, "prices"):
            self.prices = self.np_random.random(3)
        return float(self.prices[action])


class WallClock(Walk):
    def fault(self, action: int) -> float:
        return time.perf_counter() % 1.0


class CachedObservation(Walk):
    """Shows what it saw last, and does not save it."""

    seen = 0.0

    def observe(self) -> Any:
        shown, self.seen = self.seen, self.x
        return np.array([self.x if self.time <= HIDDEN_UNTIL else shown, self.time])


class StaleDerived(Walk):
    """Pays for a speed that is computed at the end of each step, and not saved."""

    speed = 0.0

    def fault(self, action: int) -> float:
        paid, self.speed = self.speed, self.x / self.time
        return paid


class OwnGenerator(Walk):
    """Draws from a second generator that it does not save."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.dice = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def fault(self, action: int) -> float:
        return float(self.dice.random())


class SharedTable(Walk):
    """Pays for places where no copy of it has been yet."""

    visits: dict[int, int] = {}  # noqa: RUF012

    def fault(self, action: int) -> float:
        place = int(self.x)
        self.visits[place] = self.visits.get(place, 0) + 1
        return 1 / self.visits[place]


class HashOfText(Walk):
    """Is another in every process, as hashes of text are."""

    def fault(self, action: int) -> float:
        return hash(f"place {self.time}") % 1000 / 10


class ProcessNumber(Walk):
    def fault(self, action: int) -> float:
        return float(os.getpid() % 100000)


class UnseededReset(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.x = float(np.random.default_rng().normal())
        return self.observe(), {}


class Watched(Walk):
    """Changes when it is saved."""

    state_attributes = ("x", "time", "_np_random", "looks")
    _looks = 0

    @property
    def looks(self) -> int:
        self._looks += 1
        return self._looks

    @looks.setter
    def looks(self, value: int) -> None:
        self._looks = value

    def fault(self, action: int) -> float:
        return float(self._looks)


class RestoreCounter(Walk):
    """Counts how often it was restored."""

    state_attributes = ("position", "time", "_np_random")
    restored = 0

    @property
    def position(self) -> float:
        return self.x

    @position.setter
    def position(self, value: float) -> None:
        self.restored += 1
        self.x = value

    def fault(self, action: int) -> float:
        return float(self.restored)


class UnsteadyInfo(Walk):
    counter = itertools.count()

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        if self.time > HIDDEN_UNTIL:
            info["frame"] = next(self.counter)
        return *rest, info


class ForgetfulWrapper(gymnasium.Wrapper):
    """Pays less and less, and says that it remembers nothing.

    Only after more steps than an episode has: the trial at `make` takes too few.
    """

    state_attributes = ()

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.steps = 0

    def reset(self, **kwargs: Any) -> Any:
        self.steps = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        return obs, float(reward) / max(1, self.steps - 145), terminated, truncated, info


def forgetful() -> gymnasium.Env:
    return ForgetfulWrapper(Walk())


class Native(EzPickle, Walk):
    """An `EzPickle`, as most simulators in C++ are: its pickle is how it was made."""

    state_attributes = None

    def __init__(self) -> None:
        Walk.__init__(self)
        EzPickle.__init__(self)


class _Unstepped(PickledSimulator):
    """Pickles the environment itself, as is done everywhere."""

    def read(self, payload: Any) -> int:
        data = pickle.dumps(self.base)
        payload[:8].view(np.int64)[0] = len(data)
        payload[8 : 8 + len(data)] = np.frombuffer(data, np.uint8)
        return 8 + len(data)

    def write(self, payload: Any) -> None:
        used = int(payload[:8].view(np.int64)[0])
        fresh = pickle.loads(payload[8 : 8 + used].tobytes())
        fresh.reset(seed=0)
        vars(self.base).update(vars(fresh))


class Unstepped(FamilyEnv):
    simulator_class = _Unstepped


class _Ordered(PickledSimulator):
    """Adds to each row what the row before it in the chunk was paid."""

    def step_rows(self, rows: Any, start: int, stop: int) -> None:
        super().step_rows(rows, start, stop)
        rows.rewards[start + 1 : stop] += rows.rewards[start : stop - 1]


class Ordered(FamilyEnv):
    simulator_class = _Ordered


class _Careless(PickledSimulator):
    """Writes into the rows that it is given."""

    def write(self, payload: Any) -> None:
        super().write(payload)
        payload[-1] ^= 1


class Careless(FamilyEnv):
    simulator_class = _Careless


class _StaleInfo(PickledSimulator):
    """Gives each row of a batch the same info."""

    def step_rows(self, rows: Any, start: int, stop: int) -> None:
        super().step_rows(rows, start, stop)
        rows.infos.update({row: {"time": 1} for row in range(start, stop)})


class StaleInfo(FamilyEnv):
    simulator_class = _StaleInfo


class _Reseedless(PickledSimulator):
    """Takes any generator for that of a seed."""

    def reseed(self, seed: int) -> None:
        self.base._np_random = np.random.default_rng()


class Reseedless(FamilyEnv):
    simulator_class = _Reseedless


class _LastReward(PickledSimulator):
    """Pays only for the last of the steps that an action lasts."""

    def step(self, action: Any, dt: int) -> Any:
        for _ in range(dt - 1):
            super().step(action, 1)
        return super().step(action, 1)


class LastReward(FamilyEnv):
    simulator_class = _LastReward


class UnseededLuck(Walk):
    """Is lucky, late, in episodes without a seed, and never after it was restored."""

    state_attributes = ("position", "time", "_np_random")
    luck = 0.0

    @property
    def position(self) -> float:
        return self.x

    @position.setter
    def position(self, value: float) -> None:
        self.x, self.luck = value, 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.luck = float(np.random.default_rng().random()) if seed is None else 0.0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + (self.luck if self.time > 15 else 0.0), *rest


class OtherGenerator(Walk):
    """Gives wrappers another generator than its own, and does not save it."""

    _others: Any = None

    @property
    def np_random(self) -> Any:
        if self._others is None:
            self._others = np.random.default_rng(0)
        return self._others

    def step(self, action: Any) -> Any:
        self.time += 1
        self.x += float(action) - 1
        return self.observe(), self.x, self.time >= self.length, False, {}


class Late(Walk):
    """Is wrong after 110 steps."""

    length = 400
    total = 0

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        Late.total += self.time > 110
        return obs, reward + Late.total, *rest


class Broken(NamedTuple):
    """How to make it; the check that it fails; what the report has to name."""

    make: Any
    check: str
    names: str
    env_class: Any = PickledEnv


BROKEN: dict[str, Broken] = {
    "a class-level counter": Broken(ClassCounter, "repeat", "reward"),
    "a module's generator": Broken(ModuleGenerator, "repeat", "reward"),
    "the global generator": Broken(GlobalGenerator, "repeat", r"reward(?s:.*)numpy\.random"),
    "a closure": Broken(Closure, "restore", "reward"),
    "a lazy attribute": Broken(LazyAttribute, "restore", r"LazyAttribute\.prices"),
    "wall-clock time": Broken(WallClock, "repeat", "reward"),
    "a cached observation": Broken(
        CachedObservation, "restore", r"observation\[0\](?s:.*)CachedObservation\.seen"
    ),
    "a stale derived field": Broken(StaleDerived, "restore", r"reward(?s:.*)StaleDerived\.speed"),
    "a second generator": Broken(OwnGenerator, "restore", r"OwnGenerator\.dice"),
    "a table of the class": Broken(SharedTable, "repeat", "reward"),
    "the hash of a text": Broken(HashOfText, "workers", "reward"),
    "the number of the process": Broken(ProcessNumber, "workers", "reward"),
    "a reset without its seed": Broken(UnseededReset, "repeat", r"observation\[0\]"),
    "a save that changes it": Broken(Watched, "saving", "reward"),
    "a restore that changes it": Broken(RestoreCounter, "restore", r"RestoreCounter\.restored"),
    "an unsteady info": Broken(UnsteadyInfo, "repeat", r"info\['frame'\]"),
    "a wrapper that forgets": Broken(forgetful, "restore", r"reward(?s:.*)ForgetfulWrapper\.steps"),
    "an EzPickle": Broken(Native, "made", "Native is an EzPickle"),
    "an EzPickle that comes back unstepped": Broken(
        Walk, "made", "does not repeat itself", Unstepped
    ),
    "rows that see each other": Broken(Walk, "purity", "reward", Ordered),
    "rows that are written into": Broken(Walk, "restore", "the row that was given", Careless),
    "an info that is another in batches": Broken(Walk, "purity", r"info\['time'\]", StaleInfo),
    "seeds that are ignored": Broken(Walk, "seeds", "observation", Reseedless),
    "rewards that are not summed": Broken(Walk, "dt", "reward", LastReward),
    "luck without a seed": Broken(UnseededLuck, "unseeded", "reward"),
    "a generator for wrappers alone": Broken(OtherGenerator, "wrappers", "observation"),
    "a class-level counter, replayed": Broken(ClassCounter, "repeat", "reward", ReplayedEnv),
    "wall-clock time, replayed": Broken(WallClock, "repeat", "reward", ReplayedEnv),
}
