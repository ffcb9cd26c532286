"""Lanes of any Gymnasium environments, stepped one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.batchers.engine.lanes import Flags, Lanes
from plangym_like.batchers.engine.nests import (
    as_arrays,
    empty,
    layout_of,
    layout_of_space,
    map_nest,
    put,
    take,
)


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
        first = [self._reset_one(lane, *pair) for lane, pair in enumerate(pairs)]
        self.observation = layout_of(first[0], self.envs[0].observation_space)
        obs = as_arrays(empty(self.observation, (self.num_lanes,)))
        for lane, value in enumerate(first):
            put(obs, lane, value)
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
            put(obs, lane, self._reset_one(lane, seed, options[place] if options else None))

    def _reset_one(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        try:
            obs, self.infos[lane] = self.envs[lane].reset(seed=seed, options=options)
        except BaseException as error:
            error.add_note(f"raised while lane {lane} was reset")
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
        lane = -1
        try:
            for lane in range(self.num_lanes) if lanes is None else lanes:
                value, rewards[lane], terminated[lane], truncated[lane], self.infos[lane] = (
                    self.envs[lane].step(_own(actions, lane))
                )
                if plain:
                    obs[lane] = value
                else:
                    put(obs, lane, value)
        except BaseException as error:
            error.add_note(f"raised while lane {lane} was stepped")
            raise


def _own(actions: Any, lane: int) -> Any:
    """Return a copy of the action: an environment may keep it longer than the row keeps it."""
    if isinstance(actions, np.ndarray):
        row = actions[lane]
        return row.copy() if isinstance(row, np.ndarray) else row
    return map_nest(lambda leaf: leaf.copy(), take(actions, lane))
