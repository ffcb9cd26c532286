"""Wrappers that change the environment inside them, each in one way, and environments for them.

``where`` names what is changed, as a path from the environment: ``"force"``, or
``"model.opt.timestep"``. Arrays are changed in place. ``values`` are the smallest and the largest
new value.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import PendulumEnv

LATE = 150


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

    def change(self, number: float) -> None:
        """Set the new value; `number` is between 0 and 1."""
        *path, last = self.where.split(".")
        thing: Any = self.unwrapped
        for name in path:
            thing = getattr(thing, name)
        low, high = self.values
        self.put(thing, last, low + (high - low) * number)

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


class InReset(Changing):
    """Domain randomisation: draws the value from the seed of each episode."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.change(np.random.default_rng(seed).random())
        return super().reset(seed=seed, options=options)


class AfterReset(Changing):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        result = super().reset(seed=seed, options=options)
        self.change(np.random.default_rng(seed).random())
        return result


class BeforeStep(Changing):
    def step(self, action: Any) -> Any:
        self.change(self.steps / 200)
        return super().step(action)


class AfterStep(Changing):
    def step(self, action: Any) -> Any:
        result = super().step(action)
        self.change(self.steps / 200)
        return result


class Late(Changing):
    """Changes the value once, long after every trial."""

    def step(self, action: Any) -> Any:
        if self.steps == LATE:
            self.change(0.75)
        return super().step(action)


class ByWrapperAttribute(InReset):
    """Sets the attribute with Gymnasium's method for it."""

    def put(self, thing: Any, name: str, value: float) -> None:
        if thing is not self.unwrapped or not isinstance(getattr(thing, name), int | float):
            super().put(thing, name, value)
        else:
            self.env.set_wrapper_attr(name, type(getattr(thing, name))(value))


class InClass(InReset):
    """Sets the value in the class of the environment."""

    def put(self, thing: Any, name: str, value: float) -> None:
        put_in_class(type(thing), name, value)


class LateInClass(Late):
    def put(self, thing: Any, name: str, value: float) -> None:
        put_in_class(type(thing), name, value)


# What the classes had before; tests put it back.
IN_CLASSES: dict[tuple[type, str], Any] = {}


def put_in_class(kind: type, name: str, value: float) -> None:
    owner = next(each for each in kind.__mro__ if name in vars(each))
    IN_CLASSES.setdefault((owner, name), vars(owner)[name])
    setattr(owner, name, value)


def put_back() -> None:
    """Give all classes their own values again."""
    while IN_CLASSES:
        (owner, name), value = IN_CLASSES.popitem()
        setattr(owner, name, value)


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
