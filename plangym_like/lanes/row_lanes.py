"""Lanes that are state rows of one `PlanEnv`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.lanes.lanes import Flags, Lanes, Which
from plangym_like.lanes.tree import take, tree_map
from plangym_like.states import Row


class RowLanes(Lanes):
    """One batch of states for all lanes: each step is one `PlanEnv.step_batch`.

    So lanes are stepped in the fast form of the family, and by the workers of the environment.

    Parameters
    ----------
    env : PlanEnv
        Used by these lanes alone: each reset changes its current state.
    num_lanes : int
    """

    def __init__(self, env: Any, num_lanes: int) -> None:
        super().__init__([env], num_lanes)
        self._env = env
        self._states: Row | None = None

    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        env = self._env
        if self._states is not None and self._states[lane].any():
            # The reset goes on with the lane's own generator.
            env.set_state(self._states[lane])
        elif seed is None:
            # A new generator, since the environment's belongs to another lane.
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        state, obs, info = env.reset(seed=seed, options=options)
        self._set_state(lane, state)
        return obs, info

    def step(
        self,
        actions: Any,
        obs: Any,
        rewards: NDArray[Any],
        terminated: Flags,
        truncated: Flags,
        lanes: Which = None,
    ) -> None:
        assert self._states is not None
        rows: Any = slice(None) if lanes is None else np.asarray(lanes, np.intp)
        result = self._env.step_batch(take(actions, rows), self._states[rows])
        self._states[rows] = result.states

        def write(target: NDArray[Any], values: Any) -> None:
            target[rows] = values

        tree_map(write, obs, result.obs)
        write(rewards, result.rewards)
        write(terminated, result.terminateds)
        write(truncated, result.truncateds)
        for lane, info in zip(self._chosen(lanes), result.infos.env_infos(), strict=True):
            self.infos[lane] = info

    def _get_state(self, lane: int) -> Row:
        assert self._states is not None
        row: Row = self._states[lane]
        return row

    def _set_state(self, lane: int, row: Row) -> None:
        if self._states is None:
            self._states = np.zeros((self.num_lanes, len(row)), np.uint8)
        self._states[lane] = row
