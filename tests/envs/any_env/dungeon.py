"""An environment made of objects that share each other, and a wrapper that holds some of them."""

import collections
import dataclasses
import enum
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers
from gymnasium.utils import EzPickle


class Mood(enum.Enum):
    ASLEEP = "asleep"
    AWAKE = "awake"


@dataclasses.dataclass
class Cell:
    kind: str
    visits: int = 0


class Monster:
    def __init__(self, rng: np.random.Generator, cell: Cell) -> None:
        self.rng = rng
        self.cell = cell
        self.mood = Mood.ASLEEP


class Dungeon(gym.Env):
    """A ring of cells with a monster that draws from the environment's generator."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, size: int = 9, render_mode: str | None = None) -> None:
        self.size = size
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 100, (3,), np.float64)
        self.action_space = gym.spaces.Discrete(3)
        self.score = lambda cell: -1.0 if cell.kind == "trap" else 0.5
        self.episodes = 0
        self.log: collections.deque = collections.deque(maxlen=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episodes += 1
        kinds = self.np_random.choice(["floor", "trap", "door"], self.size)
        self.cells = [Cell(str(kind)) for kind in kinds]
        self.here = self.cells[0]
        self.monster = Monster(self.np_random, self.cells[-1])
        self.time = 0
        return self._obs(), {"episodes": self.episodes}

    def step(self, action: Any) -> Any:
        self.time += 1
        place = (self.cells.index(self.here) + int(action) - 1) % self.size
        self.here = self.cells[place]
        self.here.visits += 1
        self.log.append((place, self.here.kind))
        if self.monster.rng.random() < 0.4:
            self.monster.mood = Mood.AWAKE
            self.monster.cell = self.cells[int(self.monster.rng.integers(self.size))]
        caught = self.monster.mood is Mood.AWAKE and self.monster.cell is self.here
        reward = self.score(self.here) - 10.0 * caught
        info = {"log": list(self.log), "mood": self.monster.mood.value}
        return self._obs(), reward, bool(caught and self.time > 5), False, info

    def _obs(self) -> Any:
        return np.array([self.cells.index(self.here), self.here.visits, self.time], np.float64)

    def render(self) -> Any:
        image = np.zeros((8, self.size, 3), np.uint8)
        image[:, self.cells.index(self.here)] = 255
        return image


class Shy(EzPickle, Dungeon):
    """Says that it cannot be pickled."""

    def __init__(self) -> None:
        Dungeon.__init__(self)
        EzPickle.__init__(self)


class ClassCounter(Dungeon):
    """Remembers in its class."""

    total = 0

    def step(self, action: Any) -> Any:
        ClassCounter.total += 1
        obs, reward, *rest = super().step(action)
        return obs, reward + ClassCounter.total, *rest


class Diary(gym.Wrapper):
    """Remembers with objects of its own, one of which is the environment's."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.pages: list[Cell] = []

    def reset(self, **kwargs: Any) -> Any:
        self.pages = []
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.pages.append(self.unwrapped.here)
        del self.pages[:-3]
        info = {**info, "visits": [cell.visits for cell in self.pages]}
        return obs, reward, terminated, truncated, info


CHAINS: dict[str, list[Any]] = {
    "bare": [],
    "diary": [Diary],
    "gymnasium's": [
        (wrappers.TimeLimit, {"max_episode_steps": 25}),
        (wrappers.FrameStackObservation, {"stack_size": 3}),
        wrappers.NormalizeObservation,
        (wrappers.StickyAction, {"repeat_action_probability": 0.3}),
    ],
    "both": [Diary, (wrappers.DelayObservation, {"delay": 2}), Diary, wrappers.NormalizeReward],
}
