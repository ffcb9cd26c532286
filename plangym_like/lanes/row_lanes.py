"""`RowLanes`: lanes that are state rows of one `PlanEnv`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.lanes.lanes import Flags, Lanes, Which
from plangym_like.lanes.sequential_lanes import without_step_counts
from plangym_like.lanes.tree import take, tree_map
from plangym_like.states import Row
from plangym_like.transitions import BatchInfo


class RowLanes(Lanes):
    """Lanes whose states are one batch; each step is one call of `PlanEnv.step_batch`.

    So lanes are stepped with the fast form of the family, and by the workers of the environment.

    Parameters
    ----------
    env : PlanEnv
        The environment, which only these lanes may use: each reset changes its current state.
    num_lanes : int
    """

    def __init__(self, env: Any, num_lanes: int) -> None:
        super().__init__([env], num_lanes)
        self._env = env
        self._states: Row | None = None

    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        env = self._env
        if self._states is not None and self._states[lane].any():
            # The reset continues with the lane's own generator.
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
        for lane, info in zip(self._chosen(lanes), _by_row(result.infos), strict=True):
            self.infos[lane] = info

    def _get_state(self, lane: int) -> Row:
        assert self._states is not None
        row: Row = self._states[lane]
        return row

    def _set_state(self, lane: int, row: Row) -> None:
        if self._states is None:
            self._states = np.zeros((self.num_lanes, len(row)), np.uint8)
        self._states[lane] = row


def _by_row(infos: BatchInfo) -> list[dict[str, Any]]:
    """Return the infos of the environment for each row."""
    if infos.has_objects:
        rows = list(infos)
        for info in rows:
            without_step_counts(info)
        return rows
    names = sorted(infos.keys() - {"n_step", "dt"})
    if not names:
        return [{} for _ in infos]
    columns = (infos.column(name) for name in names)
    values = (column.tolist() if column.ndim == 1 else column for column in columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
