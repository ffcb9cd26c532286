"""Objects that code names and compares by identity are the same objects in restored states."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

import plangym_like
from plangym_like.envs.pickled import PickledSimulator
from plangym_like.errors import SnapshotError
from plangym_like.snapshots.outside_values import CodeSearch, named_objects

LATE = 30  # steps; the trial takes fewer


class Tile:
    def __init__(self, name: str) -> None:
        self.name = name
        self.visits = 0


FLOOR = Tile("floor")
TILES = {"wall": Tile("wall"), "door": [Tile("door")]}
NOTHING = object()


class Late(gymnasium.Env[Any, Any]):
    """Rewards depend on `value` after `LATE` steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        self.begin()
        return np.zeros(1), {}

    def begin(self) -> None:
        raise NotImplementedError

    def value(self) -> float:
        raise NotImplementedError

    def step(self, action: Any) -> Any:
        self.time += 1
        reward = self.value() if self.time > LATE else 0.0
        return np.zeros(1), reward, False, self.time > LATE + 5, {}


class Global(Late):
    def begin(self) -> None:
        self.tile = FLOOR

    def value(self) -> float:
        return float(self.tile is FLOOR)


class InContainers(Late):
    def begin(self) -> None:
        self.grid = [[TILES["wall"]], TILES["door"]]

    def value(self) -> float:
        return (self.grid[0][0] is TILES["wall"]) + 2.0 * (self.grid[1][0] is TILES["door"][0])


@dataclasses.dataclass(frozen=True, slots=True)
class Colour:
    name: str


RED = Colour("red")


class Frozen(Late):
    def begin(self) -> None:
        self.colour = RED

    def value(self) -> float:
        return float(self.colour is RED)


class Sentinel(Late):
    """The object is part of the state only later."""

    def begin(self) -> None:
        self.target: Any = None

    def value(self) -> float:
        found = float(self.target is NOTHING)
        self.target = NOTHING
        return found


class Lazy(types.ModuleType):
    """As some packages do, it imports a module for each name that it does not have."""

    def __getattr__(self, name: str) -> Any:
        if name in ("__func__", "fget"):
            raise RecursionError(f"{name} was imported")
        raise AttributeError(name)


PACKAGE: Any = types.ModuleType("package")
PACKAGE.lazy = Lazy("lazy")


class NamesLazyModule(Global):
    def value(self) -> float:
        return super().value() if PACKAGE.lazy.__name__ == "lazy" else 0.0


class ClassAttribute(Late):
    home: ClassVar[Tile] = Tile("home")

    def begin(self) -> None:
        self.tile = self.home

    def value(self) -> float:
        return float(self.tile is self.home)


class Default(Late):
    def begin(self) -> None:
        self.tile = self.neighbour()

    def neighbour(self, tile: Tile = Tile("neighbour")) -> Tile:  # noqa: B008
        return tile

    def value(self) -> float:
        return float(self.tile is self.neighbour())


def is_floor(tile: Any) -> bool:
    return tile is FLOOR


class FromTheStart(Late):
    """The attribute is set when the environment is made, and never again."""

    def __init__(self) -> None:
        self.tile = FLOOR

    def begin(self) -> None:
        pass

    def value(self) -> float:
        return float(is_floor(self.tile))


KINDS = [
    Global,
    NamesLazyModule,
    InContainers,
    Frozen,
    Sentinel,
    ClassAttribute,
    Default,
    FromTheStart,
]


@pytest.mark.parametrize("n_workers", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_restored_states_hold_the_same_object(kind: Any, n_workers: int | None) -> None:
    raw = kind()
    raw.reset(seed=0)
    with plangym_like.make(kind, n_workers=n_workers) as env:
        assert (env.snapshot, env.exactness) == ("pickle", "exact")
        state = env.reset(seed=0).state
        for _ in range(LATE + 5):
            expected = raw.step(0)
            result = env.step_batch([0] * 6, state)
            assert result.rewards.tolist() == [expected[1]] * 6
            state = result.states[0]
        assert result.rewards[0] > 0


class Moody(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.tile, self.steps = FLOOR, 0

    def step(self, action: Any) -> Any:
        obs, _, *rest = self.env.step(action)
        self.steps += 1
        return obs, float(self.steps > LATE and self.tile is FLOOR), *rest


def test_wrappers_hold_the_same_object_after_the_trial() -> None:
    env = plangym_like.make("Pendulum-v1", wrappers=[Moody])
    state = env.reset(seed=0).state
    for _ in range(LATE + 1):
        state, _, reward, *_ = env.step([0.0], state)
    assert reward == 1.0


class Counting(Late):
    def begin(self) -> None:
        self.tile = FLOOR

    def value(self) -> float:
        self.tile.visits += 1
        return 1.0


def test_an_object_that_has_changed_is_an_error_and_no_reference() -> None:
    sim = PickledSimulator(Counting)
    sim.reset(0)
    row = np.zeros(sim.payload_nbytes, np.uint8)
    sim.read(row)
    try:
        FLOOR.visits += 1
        with pytest.raises(SnapshotError, match=r"is FLOOR \(a global of .*, and it has changed"):
            sim.read(row)
        with pytest.raises(SnapshotError, match="has changed"):
            sim.write(row)
    finally:
        FLOOR.visits = 0
    sim.write(row)


def test_an_object_whose_place_is_unknown_here_is_an_error() -> None:
    pickle = PickledSimulator(Global).codec.pickle
    with pytest.raises(SnapshotError, match="refers to somewhere, which this process does not"):
        pickle.thing_at("somewhere")


def test_only_instances_of_python_classes_are_found() -> None:
    found = dict(named_objects(CodeSearch(Sentinel())))
    assert NOTHING in found.values()
    assert not any(isinstance(thing, type | float | dict | list) for thing in found.values())
    assert not list(named_objects(CodeSearch(gymnasium.make("CartPole-v1"))))
