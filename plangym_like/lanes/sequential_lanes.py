"""`SequentialLanes`: lanes that are stepped one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.lanes.fitting import as_fitting, put_fitting
from plangym_like.lanes.lanes import Flags, Lanes, Which, add_note, is_plan_env
from plangym_like.lanes.tree import take, tree_map

# Rewards and flags of these types need no further checks.
_NUMBERS = frozenset((float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_))
_FLAGS = frozenset((bool, np.bool_))


class SequentialLanes(Lanes):
    """The general form of lanes: calls the ``step`` of each lane, in order.

    Parameters
    ----------
    envs : sequence of gymnasium.Env or PlanEnv
        One for each lane.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        super().__init__(envs, len(envs))
        self._gym_envs = list(map(as_gym_env, self.envs))

    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        return self._gym_envs[lane].reset(seed=seed, options=options)

    def step(
        self,
        actions: Any,
        obs: Any,
        rewards: NDArray[Any],
        terminated: Flags,
        truncated: Flags,
        lanes: Which = None,
    ) -> None:
        plain = isinstance(obs, np.ndarray)
        shape, dtype = (obs.shape[1:], obs.dtype) if plain else ((), None)
        lane = -1
        try:
            for lane in range(self.num_lanes) if lanes is None else lanes:
                value, reward, ended, cut, self.infos[lane] = self._gym_envs[lane].step(
                    _own_action(actions, lane)
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
            add_note(error, f"raised while lane {lane} was stepped")
            raise


def as_gym_env(env: Any) -> Any:
    """Return `env` with Gymnasium's ``reset`` and ``step``, and without automatic resets."""
    return _PlanGymEnv(env) if is_plan_env(env) else env


class _PlanGymEnv:
    def __init__(self, env: Any) -> None:
        self._env = env

    def reset(self, *, seed: int | None, options: dict[str, Any] | None) -> Any:
        return self._env.reset(seed=seed, options=options, return_state=False)

    def step(self, action: Any) -> Any:
        env, autoreset = self._env, self._env.autoreset
        env.autoreset = False
        try:
            result = env.step(action)
        finally:
            env.autoreset = autoreset
        without_step_counts(result[4])
        return result


def without_step_counts(info: dict[str, Any]) -> None:
    """Remove the keys that a `PlanEnv` adds to the infos of its environment."""
    info.pop("n_step", None)
    info.pop("dt", None)


def _as_flag(value: Any, place: str) -> bool:
    return bool(as_fitting(value, (), np.dtype(bool), place))


def _own_action(actions: Any, lane: int) -> Any:
    """Return a copy of the action, since an environment may keep it after the row changes."""
    if isinstance(actions, np.ndarray):
        row = actions[lane]
        return row.copy() if isinstance(row, np.ndarray) else row
    return tree_map(lambda leaf: leaf.copy(), take(actions, lane))
