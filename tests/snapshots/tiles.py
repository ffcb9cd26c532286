"""A game whose tiles are objects of its module, which its code compares by ``is``."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any, NamedTuple

import gymnasium
import numpy as np


class Tile:
    def __init__(self, name: str, cost: float) -> None:
        self.name, self.cost = name, cost


@dataclasses.dataclass(frozen=True, slots=True)
class Gem:
    worth: float


class Way(NamedTuple):
    dx: int


class Turn:
    """Has tuples inside each other, and caches a value."""

    def __init__(self, step: int) -> None:
        self.steps = (step, ("steps", 1.5))

    @functools.cached_property
    def double(self) -> int:
        return 2 * self.steps[0]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


WALL, FLOOR = Tile("wall", -1.0), Tile("floor", 0.25)
KINDS = {"door": Tile("door", 0.5)}
GEM = Gem(3.0)
LEFT, RIGHT = Way(-1), Way(1)
ON, OFF = Turn(1), Turn(-1)
NOBODY = object()


class Maze(gymnasium.Env[Any, Any]):
    """Pays for what it finds; each comparison is one of identity."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)
    START = Tile("start", 0.125)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        kinds = [WALL, FLOOR, KINDS["door"], self.START]
        self.cells = [kinds[int(at)] for at in self.np_random.integers(0, 4, 12)]
        self.here, self.way, self.turn, self.bag = 0, RIGHT, ON, [GEM]
        self.guest: Any = NOBODY
        self.colour = Colour.RED
        return self._obs(), {}

    def step(self, action: Any, nothing: Any = NOBODY) -> Any:
        if action == 2:
            self.way = LEFT if self.way is RIGHT else RIGHT
            self.turn = OFF if self.turn is ON else ON
            self.guest = self if self.guest is nothing else nothing
        self.here = (self.here + self.way.dx) % 12
        tile = self.cells[self.here]
        found = [WALL, FLOOR, KINDS["door"], Maze.START]
        reward = 1.0 + [each is tile for each in found].index(True)
        reward += 8.0 * (self.turn is ON) + self.turn.double
        reward += 32.0 * (self.bag[-1] is GEM) + 64.0 * (self.colour is Colour.RED)
        self.cells[self.here - 1] = KINDS["door"] if action else WALL
        return self._obs(), reward, False, False, {}

    def _obs(self) -> Any:
        return np.array([self.here, self.turn.steps[0]], np.float64)


class Torch:
    def __init__(self) -> None:
        self.light = 9


TORCH = Torch()


class Cave(Maze):
    """Has an object of the module that steps change."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.torch = TORCH
        self.torch.light = 9
        return super().reset(seed=seed)

    def step(self, action: Any, nothing: Any = NOBODY) -> Any:
        obs, reward, *rest = super().step(action)
        self.torch.light -= int(action)
        return obs, reward + self.torch.light, *rest
