"""Objects of a module are themselves after a restore, in every process."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import tiles
from tiles import Cave, Maze

import plangym_like
from plangym_like.errors import SnapshotError


def played(env: Any, actions: list[int], seed: int = 3) -> list[float]:
    env.reset(seed=seed)
    return [env.step(action)[1] for action in actions]


def local_maze() -> Any:
    wall = tiles.Tile("local wall", 2.0)

    class Local(Maze):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            result = super().reset(seed=seed)
            self.own = wall
            return result

        def step(self, action: Any, nothing: Any = tiles.NOBODY) -> Any:
            obs, reward, *rest = super().step(action)
            return obs, reward + (128.0 if self.own is wall else 0.0), *rest

    return Local


@pytest.mark.parametrize("kind", [Maze, local_maze()])
@pytest.mark.parametrize("workers", [None, 1])
def test_what_code_compares_by_is_stays_itself(kind: Any, workers: int | None) -> None:
    actions = [0, 1, 2, 1, 0, 2, 2, 1, 1, 0] * 3
    truth = played(kind(), actions)
    with plangym_like.make(kind, n_workers=workers, isolate=bool(workers)) as env:
        assert (env.snapshot, env.exactness) == ("pickle", "exact")
        state, found = env.reset(seed=3).state, []
        for action in actions:
            env.reset(seed=9)
            batch = env.step_batch([action], state, return_state=True)
            state = batch.states[0]
            found.append(float(batch.rewards[0]))
    assert found == truth


def test_rows_are_the_same_in_every_process() -> None:
    isolated = plangym_like.make(Maze, n_workers=1, isolate=True)
    with plangym_like.make(Maze) as serial, isolated:
        state = serial.reset(seed=1).state
        assert np.array_equal(isolated.reset(seed=1).state, state)
        here, there = (env.step_batch([0, 1, 2], state).states for env in (serial, isolated))
        assert np.array_equal(here, there)


def test_an_object_that_steps_change_is_saved_with_its_attributes() -> None:
    actions = [0, 1, 2, 1, 0] * 2
    truth = played(Cave(), actions)
    for options in ({}, {"n_workers": 1, "isolate": True}):
        with plangym_like.make(Cave, **options) as made:
            assert (made.snapshot, made.exactness) == ("pickle", "exact")
            state, found = made.reset(seed=3).state, []
            for action in actions:
                batch = made.step_batch([action, 1], [state, state], return_state=True)
                state = batch.states[0]
                found.append(float(batch.rewards[0]))
        assert found == truth


def test_objects_that_a_reset_makes_are_not_shared() -> None:
    class Register(Maze):
        made: Any = None

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            result = super().reset(seed=seed)
            self.own = type(self).made = tiles.Torch()
            return result

    with plangym_like.make(Register) as one, plangym_like.make(Register) as other:
        state = one.reset(seed=1).state
        other.reset(seed=2)
        other.set_state(state)
        assert other.gym_env.unwrapped.own is not one.gym_env.unwrapped.own


class Plain(gymnasium.Env[Any, Any]):
    """Calls `begin` in each reset, and pays what `late` returns after the steps of the trial."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        self.begin()
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        reward = 0.0 if self.time < 20 else float(self.late(int(action)))
        return np.full(1, self.time, np.float64), reward, False, False, {}

    def begin(self) -> None:
        raise NotImplementedError

    def late(self, action: int) -> float:
        raise NotImplementedError


class Level:
    def __init__(self) -> None:
        self.grid = np.zeros(8, int)


LEVEL = Level()


class HoldsAnArray(Plain):
    """Refers to an array also through an object of the module."""

    def begin(self) -> None:
        LEVEL.grid[:] = 0
        self.level, self.grid = LEVEL, LEVEL.grid

    def late(self, action: int) -> float:
        self.grid[self.time % 8] += action
        return float(self.level.grid.sum())


class Room:
    def __init__(self) -> None:
        self.exits: list[Room] = []


ROOMS = [Room() for _ in range(6)]
for _at, _room in enumerate(ROOMS):
    _room.exits = [ROOMS[(_at + 1) % 6], ROOMS[_at - 1]]
START = ROOMS[0]


class Rooms(Plain):
    """Counts new rooms."""

    def begin(self) -> None:
        self.room, self.seen = START, [START]

    def late(self, action: int) -> float:
        self.room = self.room.exits[action % 2]
        if self.room in self.seen:
            return 0.0
        self.seen.append(self.room)
        return 1.0


class Door:
    def __init__(self) -> None:
        self.keys = [tiles.Tile("red", 1.0), tiles.Tile("blue", 1.0)]


DOOR = Door()


class Keys(Plain):
    """Refers to an object inside an object of the module."""

    def begin(self) -> None:
        self.key = DOOR.keys[0]

    def late(self, action: int) -> float:
        return float(self.key is DOOR.keys[0])


class Red:
    class Mark:
        NONE = object()
        TEAM = tiles.Tile("team", 1.0)


class Blue:
    class Mark:
        NONE = object()
        TEAM = tiles.Tile("team", 1.0)


class SameNames(Plain):
    """Refers to attributes of two classes of one name."""

    def begin(self) -> None:
        self.one, self.other = Red.Mark.TEAM, Blue.Mark.TEAM

    def late(self, action: int) -> float:
        return float(self.one is Red.Mark.TEAM) + 2 * (self.other is Blue.Mark.TEAM)


class SameSentinels(SameNames):
    def begin(self) -> None:
        self.one, self.other = Red.Mark.NONE, Blue.Mark.NONE  # type: ignore[assignment]

    def late(self, action: int) -> float:
        return float(self.one is Red.Mark.NONE) + 2 * (self.other is Blue.Mark.NONE)


def north() -> None:
    """Is a key."""


def south() -> None:
    """Is another key."""


TOKENS = {north: object(), south: object()}


class FunctionKeys(Plain):
    """Refers to values of functions in a dict."""

    def begin(self) -> None:
        self.one, self.other = TOKENS[north], TOKENS[south]

    def late(self, action: int) -> float:
        return float(self.one is TOKENS[north]) + 2 * (self.other is TOKENS[south])


def rule(kind: Any) -> Any:
    def applies(other: Any) -> bool:
        return other is kind

    applies.kind = kind  # type: ignore[attr-defined]
    return applies


FIRST, SECOND = (rule(tiles.Tile("kind", 1.0)) for _ in range(2))


class Closures(Plain):
    """Refers to objects in two closures of one function."""

    def begin(self) -> None:
        self.one, self.other = FIRST.kind, SECOND.kind

    def late(self, action: int) -> float:
        return float(FIRST(self.one)) + 2 * SECOND(self.other)


NESTED = ((tiles.Tile("inner", 1.0),), {"a": {"b": tiles.Tile("b", 1.0)}})


class Nested(Plain):
    def begin(self) -> None:
        self.one, self.other = NESTED[0][0], NESTED[1]["a"]["b"]

    def late(self, action: int) -> float:
        return float(self.one is NESTED[0][0]) + 2 * (self.other is NESTED[1]["a"]["b"])


TURN = tiles.Turn(3)


class Caches(Plain):
    """Asks for a cached property in a late step."""

    def begin(self) -> None:
        self.turn = TURN

    def late(self, action: int) -> float:
        return self.turn.double + float(self.turn is TURN)


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *((kind, "pickle") for kind in (HoldsAnArray, Nested, Caches)),
        *((kind, "replay") for kind in (Rooms, Keys, SameNames, SameSentinels, FunctionKeys)),
        (Closures, "replay"),
    ],
)
def test_late_steps_from_rows_are_those_of_an_episode(kind: Any, way: str) -> None:
    actions = [0, 1, 2, 1, 1, 2] * 5
    truth = played(kind(), actions)
    assert len(set(truth)) > 1
    with plangym_like.make(kind) as env:
        assert (env.snapshot, env.exactness) == (way, "exact"), env.snapshot_note
        state, found = env.reset(seed=3).state, []
        for action in actions:
            batch = env.step_batch([(action + 1) % 3, action], [state, state], return_state=True)
            state = batch.states[1]
            found.append(float(batch.rewards[1]))
    assert found == truth
    if way == "replay":
        with pytest.raises(SnapshotError, match="could not refer to the same one|by identity"):
            plangym_like.make(kind, snapshot="pickle")


class Picture:
    def __init__(self) -> None:
        self.name, self.image = "wall", None

    def draw(self) -> Any:
        self.image = np.zeros((2, 2, 3), np.uint8)
        return self.image


class Lazy(Plain):
    """An object of its module caches a value in a late step, or in `render`."""

    picture = Picture()

    def begin(self) -> None:
        self.wall = self.picture

    def late(self, action: int) -> float:
        if action:
            self.wall.draw()
        return float(self.wall is type(self).picture)


def test_an_object_that_changes_later_is_an_error() -> None:
    with plangym_like.make(Lazy) as env:
        assert env.snapshot == "pickle"
        state = env.reset(seed=1).state
        for _ in range(20):
            before, state = state, env.step_batch([0], state, return_state=True).states[0]
        message = "attribute 'image' of .*Lazy.picture .* has changed .* snapshot='replay'"
        try:
            for _ in range(2):
                with pytest.raises(SnapshotError, match=message):
                    env.step(1, state=state)
            with pytest.raises(SnapshotError, match=message):
                env.set_state(before)
            with pytest.raises(SnapshotError, match="could not refer to the same one"):
                plangym_like.make(Lazy, snapshot="pickle")
        finally:
            Lazy.picture.image = None
        assert env.step(0, state=state).reward == 1.0
