"""Classes of a function are found in workers, which know them by another ``__qualname__``."""

from functools import cached_property, lru_cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from usual import first_of

import plangym_like

pytestmark = pytest.mark.filterwarnings("ignore:.*already returned terminated")


def local_classes() -> dict[str, Any]:
    class Point:
        def __init__(self, x: float) -> None:
            self.x = x

    class Slotted:
        __slots__ = ("x",)

        def __init__(self, x: float) -> None:
            self.x = x

    class Late:
        class Point:
            def __init__(self, x: float) -> None:
                self.x = 2 * x

        class Mark(Point):
            pass

    class Walk(gym.Env):
        observation_space = gym.spaces.Box(-1e9, 1e9, (1,), np.float64)
        action_space = gym.spaces.Discrete(2)

        @cached_property
        def factor(self) -> float:
            return 2.0

        @lru_cache  # noqa: B019 - a function with a cache
        def worth(x: float) -> float:
            return 3 * x

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.points: list[Any] = [Point(0.0)]
            self.slotted = Slotted(0.0)
            return np.zeros(1), {}

        def step(self, action: Any) -> Any:
            x = self.points[-1].x + 1 + self.np_random.random() + action
            self.points = [*self.points, (Point if x < 3 else Late.Mark)(x)][-3:]
            self.slotted = Slotted(self.slotted.x + self.factor)
            reward = sum(point.x for point in self.points) + Walk.worth(x)
            return np.array([x]), float(reward), False, False, {"slotted": self.slotted}

    class Saved(Walk):
        def save_state(self) -> Any:
            return [self.slotted.x, *(point.x for point in self.points)]

        def load_state(self, saved: Any) -> None:
            self.slotted = Slotted(saved[0])
            self.points = [Point(x) for x in saved[1:]]

        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            self.points = [Point(point.x) for point in self.points]
            return obs, reward, *rest

    class Best(gym.RewardWrapper):
        best = 0.0

        def reward(self, reward: Any) -> float:
            self.best = max(self.best, float(reward))
            return self.best

    class Maker:
        def __call__(self) -> Any:
            return Walk()

        def make(self) -> Any:
            return Walk()

    class Pole(CartPoleEnv):
        pass

    return {
        "class": (Walk, {}),
        "replay": (Walk, {"snapshot": "replay"}),
        "native": (Saved, {}),
        "function": (lambda: Best(Walk()), {}),
        "object": (Maker(), {}),
        "method": (Maker().make, {}),
        "wrapper": ("CartPole-v1", {"wrappers": [Best, lambda env: Best(env)]}),
        "subclass": (Pole, {}),
    }


@pytest.mark.parametrize("name", first_of(local_classes()))
def test_classes_of_a_function_work_in_workers(name: str) -> None:
    what, options = local_classes()[name]
    with (
        plangym_like.make(what, audit="off", **options) as serial,
        plangym_like.make(what, n_workers=2, isolate=True, audit_every=1, **options) as isolated,
    ):
        states = serial.reset(seed=0).state
        for _ in range(4):
            actions = np.arange(8) % 2
            here, there = serial.step_batch(actions, states), isolated.step_batch(actions, states)
            assert np.array_equal(here.rewards, there.rewards)
            # Rows of workers go on here, and rows of this process there.
            assert np.array_equal(
                serial.step_batch(actions, there.states).rewards,
                isolated.step_batch(actions, here.states).rewards,
            )
            states = there.states
        assert isolated.stats.rows_audited


def test_two_classes_of_one_name_are_told_apart() -> None:
    class Item:
        worth = 1

    class Box:
        class Item:
            worth = 2

    class Shop(gym.Env):
        observation_space = gym.spaces.Discrete(99)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.items: list[Any] = [Item()]
            return 0, {}

        def step(self, action: Any) -> Any:
            self.items = [(Box.Item if action else Item)()]
            return self.items[0].worth, 0.0, False, False, {}

    with plangym_like.make(Shop, n_workers=1, isolate=True) as env:
        assert (env.snapshot, env.exactness) == ("pickle", "exact")
        states = env.reset(seed=0).state
        for _ in range(2):
            batch = env.step_batch([0, 1], states)
            states = batch.states
            assert batch.obs.tolist() == [1, 2]
