"""Objects of a module are themselves after a restore, in every process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiles
from tiles import Cave, Maze

import plangym_like
from plangym_like.snapshots.chain_pickle import ChainPickle
from plangym_like.snapshots.outside_values import CodeSearch


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


def chain(env: Any) -> ChainPickle:
    env.reset(seed=0)
    return ChainPickle(env, [*CodeSearch(env).shared_objects()])


def test_an_object_that_steps_change_is_saved_with_its_attributes() -> None:
    env = Cave()
    saver = chain(env)
    first = saver.encoded()
    env.step(2)
    assert tiles.TORCH.light == 7
    second = saver.encoded()
    saver.restore(saver.decoded(first))
    assert env.torch.light == 9 and tiles.TORCH.light == 7 and env.torch is not tiles.TORCH
    saver.restore(saver.decoded(second))
    assert env.torch.light == 7 and tiles.TORCH.light == 7
    tiles.TORCH.light = 9
    saver.restore(saver.decoded(first))
    assert env.torch is tiles.TORCH
    actions = [0, 1, 2, 1, 0] * 2
    truth = played(Cave(), actions)
    with plangym_like.make(Cave) as made:
        state, found = made.reset(seed=3).state, []
        for action in actions:
            state, _, reward, *_ = made.step(action, state=state)
            found.append(float(reward))
            made.step(1, state=state)
    assert found == truth


def test_a_change_inside_an_attribute_is_noticed() -> None:
    env = Maze()
    saver = chain(env)
    first = saver.encoded()
    tiles.ON.steps.append(5)
    try:
        assert len(saver.encoded()) > len(first)
        saver.restore(saver.decoded(first))
        assert env.turn is not tiles.ON and env.turn.steps == [1]
        assert env.turn.back.back is env.turn
    finally:
        tiles.ON.steps.pop()
    saver.restore(saver.decoded(first))
    assert env.turn is tiles.ON


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
