"""Wrappers that change the environment inside them, each in one way, and environments for them.

``where`` names what is changed, as a path from the environment: ``"force"``, or
``"model.opt.timestep"``. Arrays are changed in place. ``values`` are the smallest and the largest
new value.
"""

from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import PendulumEnv


class Changing(gymnasium.Wrapper):
    """Counts steps, and can change what ``where`` names; it does so nowhere."""

    def __init__(self, env: Any, where: str, values: tuple[float, float]) -> None:
        super().__init__(env)
        self.where, self.values, self.steps = where, values, 0

    def reset(self, **kwargs: Any) -> Any:
        self.steps = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.env.step(action)

    def change(self, share: float) -> None:
        """Set the new value; `share` is between 0 and 1."""
        low, high = self.values
        self.put(*self.place(), low + (high - low) * float(share))

    def place(self) -> tuple[Any, str]:
        """Return the object that has the attribute, and the attribute's name."""
        path, _, last = self.where.rpartition(".")
        return attrgetter(path)(self.unwrapped) if path else self.unwrapped, last

    def put(self, thing: Any, name: str, value: float) -> None:
        old = getattr(thing, name)
        if isinstance(old, dict):
            # The rewards of a table of transitions.
            for each in (pair for actions in old.values() for pair in actions.values()):
                each[:] = [(one, place, value, ended) for one, place, _, ended in each]
        elif isinstance(old, np.ndarray):
            old[...] = value
        else:
            setattr(thing, name, type(old)(value))


class BeforeReset(Changing):
    """Domain randomisation: draws the value from the seed of each episode."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.change(np.random.default_rng(seed).random())
        return super().reset(seed=seed, options=options)


class AfterReset(Changing):
    """Draws the value from the environment's own generator, after the inner reset."""

    def reset(self, **kwargs: Any) -> Any:
        result = super().reset(**kwargs)
        self.change(self.np_random.random())
        return result


class BeforeStep(Changing):
    def step(self, action: Any) -> Any:
        self.change(self.steps % 5 / 5)
        return super().step(action)


class AfterStep(Changing):
    def step(self, action: Any) -> Any:
        result = super().step(action)
        self.change(self.steps % 5 / 5)
        return result


class EveryThirdEpisode(Changing):
    """Changes the value in every third episode only, so it lasts over resets."""

    episodes = 0

    def reset(self, **kwargs: Any) -> Any:
        if self.episodes % 3 == 0:
            self.change(self.episodes % 10 / 10)
        self.episodes += 1
        return super().reset(**kwargs)


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


class BySeedMethod(gymnasium.Wrapper):
    """Seeds the environment with a method of its own, after the inner reset."""

    def __init__(self, env: Any, method: str = "seed_dice") -> None:
        super().__init__(env)
        self.method = method

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        result = self.env.reset(seed=seed, options=options)
        getattr(self.unwrapped, self.method)(0 if seed is None else seed)
        return result


class BySeeding(Changing):
    """Calls a method of the environment that seeds a generator, in every second step."""

    def step(self, action: Any) -> Any:
        if self.steps % 2:
            self.unwrapped.seed_wind(self.steps)
        return super().step(action)


class Weather:
    def __init__(self) -> None:
        self.push = np.ones(1)


class Windy(PendulumEnv):
    """A pendulum with a wind that a generator of its own draws."""

    top_speed = 8.0  # an attribute of the class

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.weather = Weather()
        self.wind = np.random.default_rng(0)

    def seed_wind(self, seed: int) -> None:
        self.wind = np.random.default_rng(seed)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.wind = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action + self.weather.push * self.wind.normal(0, 0.1))
        return obs, float(reward) * self.top_speed, *rest


class Saving(Windy):
    """Saves its own state, which leaves out what only wrappers change."""

    def save_state(self) -> Any:
        return {"state": self.state, "wind": self.wind.bit_generator.state}

    def load_state(self, saved: Any) -> None:
        self.state = saved["state"].copy()
        self.wind.bit_generator.state = saved["wind"]
        self.last_u = None
