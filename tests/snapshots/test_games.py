"""Environments whose game is kept in objects of pygame, or that end pygame when they are closed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import plangym_like

pygame = pytest.importorskip("pygame")
LATE = 40


class Game(gymnasium.Env[Any, Any]):
    """What `moved` says is in the rewards, but only after more steps than a trial takes."""

    observation_space = gymnasium.spaces.Box(-1000, 1000, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        self.begin()
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        self.move(int(action))
        late = self.time > LATE
        return np.full(1, self.time), self.moved() if late else 0.0, False, False, {}

    def begin(self) -> None: ...

    def move(self, action: int) -> None: ...

    def moved(self) -> float:
        return 0.0


class Shapes(Game):
    def begin(self) -> None:
        self.here = pygame.Rect(0, 0, 3, 3)
        self.targets = [pygame.FRect(0.5, 0, 3, 3)]
        self.speed = {"all": pygame.math.Vector2(0, 1)}
        self.tint = pygame.Color(1, 2, 3)

    def move(self, action: int) -> None:
        self.here.x += action
        self.targets[0].x += action
        self.speed["all"] += (action, 0)
        self.tint.r += action

    def moved(self) -> float:
        return self.here.x + self.targets[0].x + self.speed["all"].x + self.tint.r


class Enemy(pygame.sprite.Sprite):
    def __init__(self) -> None:
        super().__init__()
        self.image = pygame.Surface((2, 2))
        self.hits = 0


class Sprites(Game):
    def begin(self) -> None:
        self.enemies = pygame.sprite.Group(Enemy())

    def move(self, action: int) -> None:
        for enemy in self.enemies:
            enemy.hits += action

    def moved(self) -> float:
        return float(sum(enemy.hits for enemy in self.enemies))


class Ends(Game):
    """Draws text in each step, and ends pygame in ``close``."""

    def begin(self) -> None:
        pygame.font.init()
        self.font = pygame.font.Font(None, 12)

    def move(self, action: int) -> None:
        self.width = self.font.render("x" * (1 + action), True, (1, 2, 3)).get_width()

    def moved(self) -> float:
        return float(self.width)

    def close(self) -> None:
        pygame.quit()


def plays_on(env: Any) -> None:
    """Check rows from many depths against an episode that is never restored."""
    plan = [step % 3 for step in range(LATE + 20)]
    plain = type(env.simulator.env.unwrapped)()
    plain.reset(seed=0)
    expected = [plain.step(action)[1] for action in plan]
    states = [env.reset(seed=0).state]
    for action in plan:
        states.append(env.step(action, states[-1]).state)
    order = np.random.default_rng(0).permutation(len(plan))
    batch = env.step_batch([plan[at] for at in order], np.stack([states[at] for at in order]))
    assert batch.rewards.tolist() == [expected[at] for at in order]
    assert len(set(expected)) > 2


@pytest.mark.parametrize(
    ("kind", "way", "why"),
    [
        (Shapes, "pickle", ""),
        (Sprites, "replay", "has an image, and pickles hold no images"),
    ],
)
def test_games_in_objects_of_pygame_are_saved(kind: type[Game], way: str, why: str) -> None:
    with plangym_like.make(kind) as env:
        assert (env.snapshot, env.exactness) == (way, "exact"), env.snapshot_note
        assert why in env.snapshot_note
        plays_on(env)


@pytest.mark.parametrize("way", ["auto", "replay"])
def test_closing_a_copy_does_not_end_pygame(way: str) -> None:
    quits = pygame.quit, pygame.font.quit
    # Two copies are kept, so most restores close one.
    with plangym_like.make(Ends, snapshot=way, live_prefixes=2) as env:
        assert env.exactness == "exact"
        plays_on(env)
        assert pygame.font.get_init()
        assert (pygame.quit, pygame.font.quit) == quits
    assert not pygame.font.get_init()
