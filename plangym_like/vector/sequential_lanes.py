"""`SequentialLanes`: lanes that are stepped one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from plangym_like.batch.ownership import owned, owned_info
from plangym_like.batch.simulator import EnvStep, as_flag, as_reward
from plangym_like.batch.spaces import parts_of, put, put_parts
from plangym_like.env import PlanEnv
from plangym_like.envs.wrapping import omit_unread_screens
from plangym_like.errors import ActionError, InputError
from plangym_like.vector.lanes import (
    Lanes,
    Step,
    add_note,
    is_plan_env,
    last_user,
)
from plangym_like.vector.tree import take

# Rewards and flags of these types need no further checks, and values of infos no copies.
_FLAGS = frozenset((bool, np.bool_))
_NUMBERS = frozenset((float, np.float64, np.float32, np.int64, np.int32)) | _FLAGS
_are_fixed = (frozenset((int, str, type(None))) | _NUMBERS).issuperset
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
        # The objects whose `step` is called, and the current states to bring back before.
        are_live = [isinstance(env, LiveEnv) for env in self._gym_envs]
        each = list(zip(self._gym_envs, are_live, strict=True))
        self._runners = [env.stepped if is_live else env for env, is_live in each]
        self._currents = [env.current if is_live else None for env, is_live in each]
        # The first action and the number of actions. Only set for a `PlanEnv`, because other
        # environments check their actions themselves.
        space = self.action_space
        self._choices: tuple[int, int] | None = None
        if isinstance(space, Discrete) and any(map(is_plan_env, envs)):
            self._choices = int(space.start), int(space.n)

    def check_not_used_elsewhere(self) -> None:
        for lane, env in enumerate(self.envs, self.first_lane):
            if last_user(env) is not self:
                raise InputError(
                    f"environment {lane} has been reset elsewhere (by another rollout, or by "
                    "evaluate), so its episode here is lost. Use separate environments"
                )

    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        return self._gym_envs[lane].reset(seed=seed, options=options)

    def collect(self, step: Step) -> None:
        actions, (obs, rewards, terminated, truncated), lanes, ended, finals = step
        plain = isinstance(obs, np.ndarray)
        shape, dtype, parts = (obs.shape[1:], obs.dtype, []) if plain else ((), None, parts_of(obs))
        whole = plain and shape == () and dtype == np.int64
        simple = type(actions) is np.ndarray and not actions.dtype.hasobject
        numbers = simple and actions.ndim == 1
        chosen, flags = self._chosen(lanes), None if ended is None else ended.tolist()
        if self._choices is not None:
            self._check_choices(actions, chosen, flags)
        lane, is_reset, infos, running = -1, False, self._infos, None
        runners, currents = self._runners, self._currents
        try:
            for lane in chosen:
                is_reset = flags is not None and flags[lane]
                if is_reset:
                    rewards[lane], terminated[lane], truncated[lane] = 0.0, False, False
                    value, info = self._gym_envs[lane].reset(seed=None, options=None)
                else:
                    current = currents[lane]
                    if current is not None and current.row is not None:
                        current.bring_back()
                    # A copy, because the environment may keep or change it; numbers cannot change.
                    if numbers:
                        action = actions[lane]
                    else:
                        action = actions[lane].copy() if simple else owned(take(actions, lane))
                    running = current
                    value, reward, over, cut, info = runners[lane].step(action)
                    running = None
                    if type(reward) not in _NUMBERS:
                        reward = as_reward(reward)
                    if type(over) not in _FLAGS:
                        over = as_flag("terminated", over)
                    if type(cut) not in _FLAGS:
                        cut = as_flag("truncated", cut)
                    rewards[lane], terminated[lane], truncated[lane] = reward, over, cut
                    if finals is not None and (over or cut):
                        # As the environment returned it: an array may have other types.
                        finals[lane] = owned(value), owned_info(info)
                        is_reset = True
                        value, info = self._gym_envs[lane].reset(seed=None, options=None)
                # Copied before the next step, because environments may share memory of infos.
                fixed = type(info) is dict and (not info or _are_fixed(map(type, info.values())))
                infos[lane] = info.copy() if fixed else owned_info(info)
                if type(value) is np.ndarray:
                    fits = plain and value.dtype is dtype and value.shape == shape
                else:
                    fits = whole and type(value) is int
                if fits:
                    obs[lane] = value
                elif not put_parts(obs, parts, lane, value):
                    put(self.observation_space, obs, lane, value)
        except BaseException as error:
            done = "reset" if is_reset else "stepped"
            if running is not None:
                self._gym_envs[lane].fail()
            add_note(error, f"raised while lane {self.first_lane + lane} was {done}")
            raise

    def _check_choices(
        self, actions: NDArray[Any], lanes: Sequence[int], ended: Sequence[bool] | None
    ) -> None:
        """Raise `ActionError` if an action is outside its space; lanes that are reset need none."""
        assert self._choices is not None
        first, count = self._choices
        are_whole = actions.dtype.kind in "iu"
        if are_whole and len(actions) <= _FEW:
            chosen = actions.tolist()  # usually valid also for lanes that are reset
            if min(chosen) >= first and max(chosen) < first + count:
                return
        if ended is not None:
            lanes = [lane for lane in lanes if not ended[lane]]
        if len(lanes) < self.num_lanes:
            actions = actions[lanes]
        if are_whole:
            # Viewed as unsigned numbers, negative offsets are large.
            offsets = (actions - first if first else actions).astype(np.uint64, copy=False)
            if not np.count_nonzero(offsets >= count):
                return
        raise ActionError(f"actions must be in {self.action_space}, got {actions.dtype} {actions}")


def as_gym_env(env: Any) -> Any:
    """Return `env` with Gymnasium's ``reset`` and ``step``, and without automatic resets."""
    if not is_plan_env(env):
        omit_unread_screens(env)
        return env
    needs_view = env.return_image or env.layout.out_of_bounds != "pass"
    return env.as_gym() if needs_view else LiveEnv(env)


class LiveEnv:
    """The Gymnasium environment inside a `PlanEnv`, stepped without the checks of the `PlanEnv`.

    Its observations and infos are not copied, because lanes copy them.

    Attributes
    ----------
    current : CurrentState
        If its row is set aside, it must be brought back before a step.
    stepped : object
        Its ``step`` steps the environment. Call `fail` if that raises an exception.
    """

    def __init__(self, env: PlanEnv) -> None:
        self._view = env.as_gym()
        self.current = env.row_stepper.current
        self._simulator = env.row_stepper.simulator
        self.stepped = self._simulator.env if self._simulator.steps_env_alone else self
        # Whether the environment has raised an exception since its last reset. If so, its current
        # state is lost, but the next reset keeps the random generator and the wrappers' state, as
        # in Gymnasium.
        self._has_raised = False

    def step(self, action: Any) -> EnvStep:
        return self._simulator.step(action, 1)[:5]

    def reset(self, *, seed: int | None, options: dict[str, Any] | None) -> Any:
        current = self.current
        usable = self._has_raised or not current.lost
        if not (current.started and usable and current.row is None):
            return self._view.reset(seed=seed, options=options)
        self._has_raised = True
        result = current.restart(seed, options)
        self._has_raised = False
        return result

    def fail(self) -> None:
        """Record that a step has raised an exception."""
        self._has_raised = True
        self.current.fail()
