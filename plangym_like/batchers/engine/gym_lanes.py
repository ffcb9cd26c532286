"""Lanes of any Gymnasium environments, stepped one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.batchers.engine.fitting import as_fitting, put_fitting
from plangym_like.batchers.engine.lanes import Flags, Lanes
from plangym_like.batchers.engine.nests import (
    as_arrays,
    empty,
    layout_of,
    layout_of_space,
    map_nest,
    take,
)

# Rewards of these types are numbers, and flags of these types are flags; others are looked at.
_NUMBERS = frozenset((float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_))
_FLAGS = frozenset((bool, np.bool_))


class GymLanes(Lanes):
    """The general form: each lane's own ``step``, in the order of the lanes."""

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        super().__init__(envs)
        self.action = layout_of_space(self.envs[0].action_space)

    def start(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> Any:
        nones = [None] * self.num_lanes
        pairs = zip(seeds or nones, options or nones, strict=True)
        obs: Any = None
        for lane, pair in enumerate(pairs):
            value = self._reset_one(lane, *pair)
            if lane == 0:
                self.observation = layout_of(value, self.envs[0].observation_space)
                obs = as_arrays(empty(self.observation, (self.num_lanes,)))
            # At once: another environment may use the same memory for its own.
            put_fitting(obs, lane, value)
        return obs

    def reset(
        self,
        obs: Any,
        lanes: Sequence[int] | NDArray[np.intp] | None = None,
        *,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> None:
        for place, lane in enumerate(range(self.num_lanes) if lanes is None else lanes):
            seed = seeds[place] if seeds else None
            value = self._reset_one(lane, seed, options[place] if options else None)
            put_fitting(obs, lane, value)

    def _reset_one(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        try:
            obs, self.infos[lane] = self.envs[lane].reset(seed=seed, options=options)
        except BaseException as error:
            _note(error, f"raised while lane {lane} was reset")
            raise
        return obs

    def step(
        self,
        actions: Any,
        obs: Any,
        rewards: NDArray[Any],
        terminated: Flags,
        truncated: Flags,
        lanes: Sequence[int] | NDArray[np.intp] | None = None,
    ) -> None:
        plain = isinstance(obs, np.ndarray)
        shape, dtype = (obs.shape[1:], obs.dtype) if plain else ((), None)
        lane = -1
        try:
            for lane in range(self.num_lanes) if lanes is None else lanes:
                value, reward, ended, cut, self.infos[lane] = self.envs[lane].step(
                    _own(actions, lane)
                )
                if type(reward) not in _NUMBERS:
                    reward = as_fitting(reward, (), rewards.dtype, f"lane {lane}'s reward")
                if type(ended) not in _FLAGS:
                    ended = _as_flag(ended, f"lane {lane}'s terminated")
                if type(cut) not in _FLAGS:
                    cut = _as_flag(cut, f"lane {lane}'s truncated")
                rewards[lane], terminated[lane], truncated[lane] = reward, ended, cut
                if (
                    plain
                    and type(value) is np.ndarray
                    and value.dtype is dtype
                    and value.shape == shape
                ):
                    obs[lane] = value
                else:
                    put_fitting(obs, lane, value)
        except BaseException as error:
            _note(error, f"raised while lane {lane} was stepped")
            raise


def _as_flag(value: Any, place: str) -> bool:
    return bool(as_fitting(value, (), np.dtype(bool), place))


def _note(error: BaseException, note: str) -> None:
    """Add a note to what an environment raised.

    `StopIteration` is raised as a `RuntimeError`: it would end the loop that takes what is
    collected, as if all was done.
    """
    if isinstance(error, StopIteration):
        failure = RuntimeError("an environment raised StopIteration")
        failure.add_note(note)
        raise failure from error
    error.add_note(note)


def _own(actions: Any, lane: int) -> Any:
    """Return a copy of the action: an environment may keep it longer than the row keeps it."""
    if isinstance(actions, np.ndarray):
        row = actions[lane]
        return row.copy() if isinstance(row, np.ndarray) else row
    return map_nest(lambda leaf: leaf.copy(), take(actions, lane))
