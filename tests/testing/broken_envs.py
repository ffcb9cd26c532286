"""Environments, wrappers and simulators that are deliberately wrong, for the checker to find.

Most hide their fault until step 30 of an episode, so that no trial when they are made sees it, and
say of themselves (``state_attributes``) that their memory is less than it is.
"""

import os
from typing import Any, NamedTuple

import gymnasium
import hostile_envs
import numpy as np

from plangym_like.envs.family_env import AnyEnv, FamilyEnv
from plangym_like.envs.pickled import PickledEnv, PickledSimulator


class Walk(hostile_envs.Walk):
    """A walk on a line: nothing is wrong with it. Others hide their fault in `extra`."""

    state_attributes: tuple[str, ...] = ("x", "time", "_np_random")
    begins = 31


class ClassCounter(Walk):
    total = 0

    def extra(self, action: int) -> float:
        ClassCounter.total += 1
        return float(ClassCounter.total)


class LazyAttribute(Walk):
    def extra(self, action: int) -> float:
        if not hasattr(self, "prices"):
            self.prices = self.np_random.random(3)
        return float(self.prices[action])


class ProcessNumber(Walk):
    def extra(self, action: int) -> float:
        return float(os.getpid() % 100000)


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

    def extra(self, action: int) -> float:
        return float(self._looks)


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


class Ordered(PickledSimulator):
    """Adds to each row what the row before it in the chunk was paid."""

    def step_rows(self, rows: Any, start: int, stop: int) -> None:
        super().step_rows(rows, start, stop)
        rows.rewards[start + 1 : stop] += rows.rewards[start : stop - 1]


class Careless(PickledSimulator):
    """Writes into the rows that it is given."""

    def write(self, payload: Any) -> None:
        super().write(payload)
        payload[-1] ^= 1


class Reseedless(PickledSimulator):
    """Takes any generator for that of a seed."""

    def reseed(self, seed: int) -> None:
        self.base._np_random = np.random.default_rng()


class LastReward(PickledSimulator):
    """Pays only for the last of the steps that an action lasts."""

    def step(self, action: Any, dt: int) -> Any:
        for _ in range(dt - 1):
            super().step(action, 1)
        return super().step(action, 1)


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


class OtherNumber(Walk):
    state_attributes: Any = ("x", ("time", int))

    def extra(self, action: int) -> float:
        self.time = np.int64(self.time)  # type: ignore[assignment]
        return 0.0


class Broken(NamedTuple):
    """How to make it; the check that it fails; what the report has to name."""

    make: Any
    check: str
    names: str
    env_class: Any = PickledEnv


def with_simulator(simulator: Any) -> Any:
    """Return a class of environments with a simulator of this class."""
    return type(simulator.__name__, (FamilyEnv,), {"simulator_class": simulator})


BROKEN: dict[str, Broken] = {
    "a class-level counter": Broken(ClassCounter, "repeat", "reward"),
    "a number of another type": Broken(OtherNumber, "made", r"convert it with int\(", AnyEnv),
    "a lazy attribute": Broken(LazyAttribute, "restore", r"LazyAttribute\.prices"),
    "the number of the process": Broken(ProcessNumber, "workers", "reward"),
    "a save that changes it": Broken(Watched, "saving", "reward"),
    "a wrapper that forgets": Broken(forgetful, "restore", r"reward(?s:.*)ForgetfulWrapper\.steps"),
    "rows that see each other": Broken(Walk, "purity", "reward", with_simulator(Ordered)),
    "rows that are written into": Broken(
        Walk, "restore", "the row that was given", with_simulator(Careless)
    ),
    "seeds that are ignored": Broken(Walk, "seeds", "observation", with_simulator(Reseedless)),
    "rewards that are not summed": Broken(Walk, "dt", "reward", with_simulator(LastReward)),
    "luck without a seed": Broken(UnseededLuck, "unseeded", "reward"),
    "a generator for wrappers alone": Broken(OtherGenerator, "wrappers", "observation"),
}
