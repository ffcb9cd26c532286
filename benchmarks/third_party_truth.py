"""Episodes of other packages' environments as Gymnasium alone plays them, and where they differ."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("MPLBACKEND", "Agg")
# What has to be imported so that a package registers its environments.
MODULES = (
    *("mo_gymnasium", "gym_pusht", "highway_env", "popgym.envs", "minatar", "minatar.gym"),
    *("panda_gym", "rware", "minigrid", "flappy_bird_gymnasium", "gym_anytrading"),
    *("tetris_gymnasium.envs", "gymnasium_robotics", "metaworld", "vizdoom.gymnasium_wrapper"),
    *("pybullet_envs_gymnasium", "PyFlyt.gym_envs", "gym_classics", "evogym.envs", "nle"),
    *("bluesky_gym", "gym_electric_motor", "gym_simplegrid", "gymnasium_2048"),
    *("gymnasium_sudoku", "mobile_env", "myosuite"),
    *("arcle", "boing_gym", "buffalo_gym", "crosswalk_env", "envpack", "glucosim.envs"),
    *("gym_aloha", "gym_bullet_chess", "gym_classics2", "gym_invmgmt", "gym_platform"),
    *("gym_sailing", "gymnasium_cartpole_swingup", "gymnasium_mars_lander"),
    *("gymnasium_snake_game", "gymtonic", "kaist_or_gym", "lettuce_greenhouse_gym", "memory_gym"),
    *("multi_level_maze", "nasim", "neurogym", "numberlink", "oncosim.envs", "or_gymnasium"),
    *("pgtg", "pickomino_env", "sepsisim.envs", "space_mining", "stokasta"),
)
REGISTER = ("register_envs", "_register_highway_envs", "register")
OWN = ("gymnasium.envs.", "gymnasium.", "ale_py", "plangym_like", "stable_retro", "shimmy")
# Seed, steps, and how often each action is repeated; as many as there is time for.
JOURNEYS = ((0, 300, 1), (1, 60, 3), *((seed, 150, 1) for seed in range(2, 10)))
SECONDS = 1.2
PARTS = ("observation", "reward", "terminated", "truncated", "info")


class Crafter(gymnasium.Env[Any, Any]):
    """crafter has the interface that came before Gymnasium's."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 as Gymnasium declares it

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(17)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of a new game."""
        super().reset(seed=seed)
        game = importlib.import_module("crafter").Env
        self.game = game(seed=int(self.np_random.integers(2**31)))
        return self.game.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the game."""
        obs, reward, done, info = self.game.step(action)
        return obs, float(reward), bool(done and info["discount"] == 0), bool(done), info


class Odometer(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A user's wrapper with memory of its own."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.steps, self.total = 0, 0.0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin counting again."""
        self.steps, self.total = 0, 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Add up steps and rewards."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        self.total += float(reward)
        return obs, self.total / self.steps, terminated, truncated, info


def listed(module: str | None = None) -> Iterator[tuple[str, str, str]]:
    """Yield package, id and module to import of everything that packages (or one) register."""
    known: dict[str, str] = {}
    for name in (*MODULES, "crafter") if module is None else (module,):
        try:
            module = importlib.import_module(name)
            for register in REGISTER:
                with contextlib.suppress(Exception):
                    getattr(module, register, lambda: None)()
        except BaseException as error:
            print(f"{name}: {error!r}", file=sys.stderr)
        else:
            if name == "crafter":
                gymnasium.register("Crafter-v1", Crafter)
        for one in gymnasium.registry:
            known.setdefault(one, name)
    for name, spec in gymnasium.registry.items():
        maker = spec.entry_point
        place = maker if isinstance(maker, str) else getattr(maker, "__module__", "")
        package = place.partition(".")[0].partition(":")[0]
        if place and not place.startswith(OWN):
            yield ("crafter" if name == "Crafter-v1" else package), name, known[name]


def wrappers_of(name: str) -> list[Any]:
    """Return the wrappers without which rewards are vectors, or lists with one for each agent."""
    maker = gymnasium.spec(name).entry_point
    if isinstance(maker, str) and maker.startswith("rware"):
        return [functools.partial(gymnasium.wrappers.TransformReward, func=sum)]
    if isinstance(maker, str) and maker.startswith("mo_gymnasium"):
        return [importlib.import_module("mo_gymnasium").wrappers.LinearReward]
    return []


def plain_env(name: str, wrappers: list[Any]) -> gymnasium.Env[Any, Any]:
    """Return what the user of Gymnasium alone would have."""
    env = gymnasium.make(name, disable_env_checker=True)
    for wrapper in wrappers:
        env = wrapper(env)
    return env


@dataclass
class Journey:
    """An episode: what was done, and what ``reset`` and each step gave."""

    seed: int
    repeat: int
    actions: list[Any] = field(default_factory=list)
    outcomes: list[tuple[Any, ...]] = field(default_factory=list)


def play(
    env: gymnasium.Env[Any, Any], seed: int, length: int, repeat: int, actions: list[Any] | None
) -> Journey:
    """Play an episode: `actions`, or random ones, each `repeat` times."""
    journey = Journey(seed, repeat)
    obs, info = env.reset(seed=seed)
    journey.outcomes.append(copy.deepcopy((obs, 0.0, False, False, info)))
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    deadline = time.monotonic() + SECONDS
    while len(journey.actions) < (length if actions is None else len(actions)):
        if actions is None and time.monotonic() > deadline:
            break
        action = space.sample() if actions is None else actions[len(journey.actions)]
        total = 0.0
        try:
            for _ in range(repeat):
                obs, reward, terminated, truncated, info = env.step(copy.deepcopy(action))
                total += float(reward)
                if terminated or truncated:
                    break
        except TypeError:
            raise
        except Exception:
            # An action that is illegal now ends the comparison, not the environment.
            break
        journey.actions.append(action)
        outcome = (obs, total, bool(terminated), bool(truncated), info)
        journey.outcomes.append(copy.deepcopy(outcome))
        if terminated or truncated:
            break
    return journey


def play_all(
    name: str, wrappers: list[Any], plans: list[Journey] | None, *, one: bool = False
) -> list[Journey]:
    """Play every journey, each in a new environment, or all of them in `one`."""
    journeys = []
    deadline = time.monotonic() + SECONDS
    shared = plain_env(name, wrappers) if one else None
    for number, (seed, length, repeat) in enumerate(JOURNEYS):
        if (number >= len(plans)) if plans else (number and time.monotonic() > deadline):
            break
        env = shared or plain_env(name, wrappers)
        try:
            actions = plans[number].actions if plans else None
            journeys.append(play(env, seed, length, repeat, actions))
        finally:
            if not one:
                env.close()
    if shared is not None:
        shared.close()
    return journeys


def differs(one: Any, other: Any) -> bool:
    """Tell whether two values differ; numbers are compared in the dtype of the first."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() != other.keys() or any(differs(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) != len(other) or any(map(differs, one, other))
    if isinstance(one, np.ndarray | np.generic | bool | int | float):
        left = np.asarray(one)
        try:
            right = np.asarray(other)
            right = right.astype(left.dtype) if left.dtype != object else right
        except (TypeError, ValueError):
            return True
        if left.dtype == object:
            return left.shape != right.shape or any(map(differs, left.flat, right.flat))
        return left.shape != right.shape or left.tobytes() != right.tobytes()
    if type(one) is not type(other):
        return True
    shown = repr(one)
    return " at 0x" not in shown and shown != repr(other)


def parted(one: tuple[Any, ...], other: tuple[Any, ...]) -> str | None:
    """Return the first part of two outcomes that differs."""
    for part, left, right in zip(PARTS, one, other, strict=True):
        if differs(left, right):
            return part
    return None


def first_differences(truths: list[list[Journey]]) -> list[dict[str, int]]:
    """Return for each journey from which step on which part of the truth does not repeat itself."""
    found = []
    for plays in zip(*truths, strict=True):
        marks: dict[str, int] = {}
        for other in plays[1:]:
            shorter = min(len(plays[0].outcomes), len(other.outcomes))
            for step in range(max(len(plays[0].outcomes), len(other.outcomes))):
                if step >= shorter:
                    marks["observation"] = min(step, marks.get("observation", step))
                    break
                part = parted(plays[0].outcomes[step], other.outcomes[step])
                if part is not None:
                    marks[part] = min(step, marks.get(part, step))
                    if part != "info":
                        break
        found.append(marks)
    return found
