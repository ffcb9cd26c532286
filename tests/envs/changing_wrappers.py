"""Wrappers that change the environment inside them, each in one way.

They change the attribute `name` of the environment, a number between `low` and `high`.
"""

from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np


class Changing(gymnasium.Wrapper):
    """Draws values for an attribute of the environment."""

    def __init__(self, env: Any, name: str, low: float = 0.0, high: float = 20.0) -> None:
        super().__init__(env)
        self.name, self.low, self.high = name, low, high

    def put(self, share: float) -> None:
        setattr(self.unwrapped, self.name, self.low + float(share) * (self.high - self.low))


class BeforeReset(Changing):
    """Domain randomisation: another value in each episode, set before the inner reset."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.put(np.random.default_rng(seed).random())
        return self.env.reset(seed=seed, options=options)


class AfterReset(Changing):
    """Sets the value after the inner reset, from the environment's own generator."""

    def reset(self, **kwargs: Any) -> Any:
        result = self.env.reset(**kwargs)
        self.put(self.np_random.random())
        return result


class BeforeStep(Changing):
    """Changes the value before each inner step, as the number of steps says."""

    steps = 0

    def reset(self, **kwargs: Any) -> Any:
        self.steps = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.put(self.steps % 7 / 7)
        return self.env.step(action)


class AfterStep(Changing):
    """Changes the value after each inner step, as the observation says."""

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.put(abs(float(np.ravel(result[0])[0])) % 1)
        return result


class Late(Changing):
    """Changes the value once, at the thirtieth step of an episode."""

    steps = 0

    def reset(self, **kwargs: Any) -> Any:
        self.steps = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 30:
            self.put(0.9)
        return self.env.step(action)


class BySetWrapperAttr(Changing):
    """Sets the value with Gymnasium's method, before the inner reset."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        value = float(np.random.default_rng(seed).uniform(self.low, self.high))
        self.env.set_wrapper_attr(self.name, value)
        return self.env.reset(seed=seed, options=options)


class KeepsTheBase(Changing):
    """Holds the environment itself since it was made."""

    def __init__(self, env: Any, name: str, **kwargs: Any) -> None:
        super().__init__(env, name, **kwargs)
        self.game = env.unwrapped

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        setattr(self.game, self.name, self.low + 0.1 * abs(float(result[1])) % 1)
        return result


class EveryThirdEpisode(Changing):
    """Changes the value in every third episode only, so it lasts over resets."""

    episodes = 0

    def reset(self, **kwargs: Any) -> Any:
        if self.episodes % 3 == 0:
            self.put(self.episodes % 10 / 10)
        self.episodes += 1
        return self.env.reset(**kwargs)


class Compounding(Changing):
    """Makes the value a little smaller in each episode."""

    def reset(self, **kwargs: Any) -> Any:
        setattr(self.unwrapped, self.name, 0.7 * getattr(self.unwrapped, self.name))
        return self.env.reset(**kwargs)


class OwnGenerator(Changing):
    """Draws from a generator of its own, which begins differently in every copy."""

    def __init__(self, env: Any, name: str, **kwargs: Any) -> None:
        super().__init__(env, name, **kwargs)
        self.dice = np.random.default_rng()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if seed is not None:
            self.dice = np.random.default_rng(seed)
        self.put(self.dice.random())
        return self.env.reset(seed=seed, options=options)


class InPlace(gymnasium.Wrapper):
    """Multiplies an array that the environment holds at `path`, in each episode and step."""

    def __init__(self, env: Any, path: str) -> None:
        super().__init__(env)
        self.path = path
        self.usual = attrgetter(path)(self.unwrapped).copy()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        array = attrgetter(self.path)(self.unwrapped)
        array[:] = self.usual * np.random.default_rng(seed).uniform(0.7, 1.4, array.shape)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        attrgetter(self.path)(self.unwrapped)[-1] *= 1.001
        return result


class HoldsAnArray(gymnasium.Wrapper):
    """Holds an array of the environment since it was made, and changes it in each step."""

    def __init__(self, env: Any, path: str) -> None:
        super().__init__(env)
        self.array = attrgetter(path)(self.unwrapped)

    def step(self, action: Any) -> Any:
        self.array[-1] *= 1.01
        return self.env.step(action)


class BySeedMethod(gymnasium.Wrapper):
    """Seeds the environment with a method of its own, after the inner reset."""

    def __init__(self, env: Any, method: str = "seed_dice") -> None:
        super().__init__(env)
        self.method = method

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        result = self.env.reset(seed=seed, options=options)
        getattr(self.unwrapped, self.method)(0 if seed is None else seed)
        return result


# The kinds that take the name of an attribute, and those that take the path of an array.
BY_NAME = (
    *(BeforeReset, AfterReset, BeforeStep, AfterStep, Late, BySetWrapperAttr, KeepsTheBase),
    *(EveryThirdEpisode, Compounding, OwnGenerator),
)
BY_PATH = (InPlace, HoldsAnArray)
# The kinds whose unseeded resets draw from the operating system.
SEEDED_ONLY = (BeforeReset, BySetWrapperAttr, InPlace)
