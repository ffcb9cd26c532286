"""`RowLanes`: lanes that are state rows of one `PlanEnv`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.ownership import owned
from plangym_like.errors import InputError
from plangym_like.results import STEP_COUNTS, BatchInfo
from plangym_like.states.rows import Row
from plangym_like.vector.lanes import Lanes, StepArrays, Which, open_env_of
from plangym_like.vector.tree import take, tree_map


class RowLanes(Lanes):
    """Lanes whose states are one batch; each step is one call of `PlanEnv.step_batch`.

    Stepping lanes therefore uses the environment's workers and the kernel of its family.

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
        # The infos of the last step, until they are requested, and the lanes of that step.
        self._batch: BatchInfo | None = None
        self._stepped: Sequence[int] = ()
        # The last seed of each lane; the environment holds only the seed of its last reset.
        self._seeds: list[int | None] = [None] * num_lanes
        self._initial = self._initial_state()

    def _initial_state(self) -> Row | None:
        """Return the environment's state before its first reset.

        Return ``None`` if it has already been reset, or if this state cannot be saved.
        """
        stepper = self._env.row_stepper
        if stepper.current.started:
            return None
        # Before its first reset, an environment may have no state that could be saved.
        with contextlib.suppress(Exception):
            stepper.simulator.renew()
            row: Row = stepper.current.read()
            return row
        return None

    @property
    def infos(self) -> list[dict[str, Any]]:
        batch, self._batch = self._batch, None
        if batch is not None:
            for lane, info in zip(self._stepped, batch.env_infos(), strict=True):
                self._infos[lane] = info
        return self._infos

    def info_columns(self) -> dict[str, NDArray[Any]] | None:
        batch = self._batch
        if batch is None or batch.has_objects or not isinstance(self._stepped, range):
            return None
        return {name: batch.column(name) for name in sorted(batch.keys() - {*STEP_COUNTS})}

    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        env = self._env
        if self._states is not None and self._states[lane].any():
            # The reset continues with the lane's own generator.
            env.set_state(self._states[lane])
        else:
            # The environment may be in the state of another lane, with the generator of that lane.
            if self._initial is not None:
                env.set_state(self._initial)
            if seed is None:
                seed = int(np.random.SeedSequence().generate_state(1)[0])
        state, obs, info = env.reset(seed=seed, options=options)
        self._seeds[lane] = self._seeds[lane] if seed is None else seed
        self._set_state(lane, state)
        return obs, info

    def _step(self, actions: Any, out: StepArrays, lanes: Which) -> None:
        assert self._states is not None
        rows: Any = slice(None) if lanes is None else np.asarray(lanes, np.intp)
        result = self._env.step_batch(take(actions, rows), self._states[rows])
        self._states[rows] = result.states

        def write(target: NDArray[Any], values: Any) -> None:
            target[rows] = values

        found = StepArrays(result.obs, result.rewards, result.terminateds, result.truncateds)
        tree_map(write, out, found)
        if lanes is not None:
            _ = self.infos  # stores the infos of the previous step, which other lanes keep
        self._batch, self._stepped = result.infos, self._chosen(lanes)

    def call(self, name: str, *args: Any, lanes: Which = None, **kwargs: Any) -> list[Any]:
        if name == "set_wrapper_attr":
            self.set_attr(args[0], args[1:])
        if name == "get_wrapper_attr" and args == ("np_random_seed",):
            name, args = "np_random_seed", ()
        if name == "np_random_seed" and self._states is not None:
            return [self._seeds[lane] for lane in self._chosen(lanes)]
        values = []
        for lane in self._chosen(lanes):
            if self._states is not None:
                self._env.set_state(self._states[lane])
            value = open_env_of(self._env).get_wrapper_attr(name)
            # All lanes use the same environment, and it may return one of its own objects.
            values.append(owned(value(*args, **kwargs) if callable(value) else value))
            if self._states is not None:
                self._states[lane] = self._env.get_state()
        return values

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        raise InputError(
            f"{name!r} cannot be set: all lanes are state rows of one environment. "
            "vectorise=False makes an environment for each lane"
        )

    def _get_state(self, lane: int) -> Row:
        assert self._states is not None
        row: Row = self._states[lane]
        return row

    def _set_state(self, lane: int, row: Row, seed: int | None = None) -> None:
        if seed is not None:
            self._env.set_state(row)
            self._env.simulator.reseed(seed)
            row = self._env.get_state()
        if self._states is None:
            self._states = np.zeros((self.num_lanes, len(row)), np.uint8)
        self._states[lane] = row
