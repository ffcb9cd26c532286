"""`SequentialLanes`: lanes that are stepped one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from plangym_like.batch.ownership import owned, owned_info
from plangym_like.batch.simulator import as_flag, as_reward
from plangym_like.batch.spaces import put
from plangym_like.env import PlanEnv
from plangym_like.envs.atari.preprocessing import speed_up_preprocessing
from plangym_like.errors import ActionError, InputError
from plangym_like.vector.batching import alike_columns
from plangym_like.vector.lanes import Lanes, Which, add_note, is_plan_env, last_user
from plangym_like.vector.step_arrays import StepArrays
from plangym_like.vector.tree import take

# Rewards and flags of these types need no further checks.
_NUMBERS = frozenset((float, bool, np.float64, np.float32, np.int64, np.int32, np.bool_))
_FLAGS = frozenset((bool, np.bool_))
# Infos of these types can be stored in an array and read back unchanged.
_PYTHONS = frozenset((float, int, bool))
# Up to this many actions are checked faster one by one than by NumPy.
_FEW = 8


class SequentialLanes(Lanes):
    """The general form of lanes: calls ``step`` of each lane's environment, in order.

    Parameters
    ----------
    envs : sequence of gymnasium.Env or PlanEnv
        One for each lane.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        super().__init__(envs, len(envs))
        self._gym_envs = list(map(as_gym_env, self.envs))
        # The first action and the number of actions. Only set for a `PlanEnv`, because other
        # environments check their actions themselves.
        space = self.action_space
        self._choices: tuple[int, int] | None = None
        if isinstance(space, Discrete) and any(map(is_plan_env, envs)):
            self._choices = int(space.start), int(space.n)
        # The last observation of each lane's last episode, as its environment returned it.
        self._final_observations: list[Any] = [None] * len(envs)
        # Whether all `infos` come from one step of all lanes.
        self._all_stepped = False

    def check_not_used_elsewhere(self) -> None:
        for lane, env in enumerate(self.envs, self.first_lane):
            if last_user(env) is not self:
                raise InputError(
                    f"environment {lane} has been reset elsewhere (by another rollout, or by "
                    "evaluate), so its episode here is lost. Use separate environments"
                )

    def info_columns(self) -> dict[str, NDArray[Any]] | None:
        if not self._all_stepped:
            return None
        try:
            return alike_columns(self._infos, only=_PYTHONS)
        except OverflowError:  # an int does not fit into 64 bits
            return None

    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        self._all_stepped = False
        return self._gym_envs[lane].reset(seed=seed, options=options)

    def step(self, actions: Any, out: StepArrays, lanes: Which = None) -> None:
        obs, rewards, terminated, truncated = out
        if self._choices is not None:
            self._check_choices(actions if lanes is None else actions[lanes])
        plain = isinstance(obs, np.ndarray)
        shape, dtype = (obs.shape[1:], obs.dtype) if plain else ((), None)
        whole = plain and shape == () and dtype == np.int64
        simple = type(actions) is np.ndarray and not actions.dtype.hasobject
        lane, self._all_stepped = -1, False
        try:
            for lane in range(self.num_lanes) if lanes is None else self._chosen(lanes):
                # A copy, because the environment may keep or change it.
                action = actions[lane].copy() if simple else owned(take(actions, lane))
                value, reward, ended, cut, info = self._gym_envs[lane].step(action)
                # Copied before the next step, because environments may share memory of infos.
                self._infos[lane] = owned_info(info)
                if type(reward) not in _NUMBERS:
                    reward = as_reward(reward)
                if type(ended) not in _FLAGS:
                    ended = as_flag("terminated", ended)
                if type(cut) not in _FLAGS:
                    cut = as_flag("truncated", cut)
                rewards[lane], terminated[lane], truncated[lane] = reward, ended, cut
                if (
                    plain
                    and type(value) is np.ndarray
                    and value.dtype is dtype
                    and value.shape == shape
                ) or (whole and type(value) is int):
                    obs[lane] = value
                else:
                    put(self.observation_space, obs, lane, value)
                if ended or cut:
                    self._final_observations[lane] = owned(value)
        except BaseException as error:
            add_note(error, f"raised while lane {self.first_lane + lane} was stepped")
            raise
        self._all_stepped = lanes is None

    def _check_choices(self, actions: NDArray[Any]) -> None:
        assert self._choices is not None
        first, count = self._choices
        if 0 < len(actions) <= _FEW:
            chosen = actions.tolist()
            if min(chosen) >= first and max(chosen) < first + count:
                return
        # Viewed as unsigned numbers, negative offsets are large.
        offsets = (actions - first if first else actions).astype(np.uint64, copy=False)
        if np.count_nonzero(offsets >= count):
            raise ActionError(f"actions must be in {self.action_space}, got {actions}")

    def _final_observation(self, lane: int, obs: Any) -> Any:
        return self._final_observations[lane]


def one_by_one(lanes: Lanes) -> SequentialLanes:
    """Return `SequentialLanes` that take over the environments of `lanes`.

    Parameters
    ----------
    lanes : Lanes
        Each environment must be in the current state of its lane.
    """
    others = SequentialLanes(lanes.envs)
    others._infos, others.first_lane = lanes.infos, lanes.first_lane
    return others


def as_gym_env(env: Any) -> Any:
    """Return `env` with Gymnasium's ``reset`` and ``step``, and without automatic resets."""
    if not is_plan_env(env):
        speed_up_preprocessing(env)
        return env
    needs_view = env.return_image or env.layout.out_of_bounds != "pass"
    return env.as_gym() if needs_view else LiveEnv(env)


class LiveEnv:
    """The Gymnasium environment inside a `PlanEnv`, stepped without the checks of the `PlanEnv`.

    Its observations and infos are not copied, because lanes copy them.
    """

    def __init__(self, env: PlanEnv) -> None:
        self._view = env.as_gym()
        stepper = env.row_stepper
        self.current, self._simulator = stepper.current, stepper.simulator
        # Whether the environment has raised an exception since its last reset. If so, its current
        # state is lost, but the next reset keeps the random generator and the wrappers' state, as
        # in Gymnasium.
        self._has_raised = False

    def reset(self, *, seed: int | None, options: dict[str, Any] | None) -> Any:
        current = self.current
        usable = self._has_raised or not current.lost
        if not (current.started and usable and current.row is None):
            return self._view.reset(seed=seed, options=options)
        self._has_raised = True
        result = current.restart(seed, options)
        self._has_raised = False
        return result

    def step(self, action: Any) -> Any:
        if self.current.row is not None:
            self.current.bring_back()
        try:
            return self._simulator.step_env(action)
        except BaseException:
            self._has_raised = True
            self.current.fail()
            raise
