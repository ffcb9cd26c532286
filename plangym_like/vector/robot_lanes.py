"""`RobotLanes`: lanes of one of Gymnasium's MuJoCo robots, with results computed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from plangym_like.envs.mujoco.batch import Recording, simulate
from plangym_like.envs.mujoco.env import MujocoSimulator
from plangym_like.envs.mujoco.physics import INTEGRATION
from plangym_like.states.rows import Row
from plangym_like.vector.classic_lanes import is_bare, shows_its_base, time_limit
from plangym_like.vector.lanes import Lanes, Which, gym_env_of, is_plan_env
from plangym_like.vector.sequential_lanes import SequentialLanes
from plangym_like.vector.step_arrays import Finals, Flags, StepArrays

_NUMBERS = (bool, int, float)
# Methods that change nothing, and types of values that give no access to the simulation or the
# settings of an environment.
_READING = ("get_wrapper_attr", "has_wrapper_attr")
_HARMLESS = (*_NUMBERS, str, type(None), np.generic, np.random.Generator, Space)
# Robots with fewer degrees of freedom end their episodes so early that resets cost more than
# vectorised results save.
_FEWEST_DEGREES = 4


class RobotLanes(SequentialLanes):
    """Lanes that are simulated one after the other, each in its own environment.

    Rewards, observations and infos of all lanes are computed from the simulations' data with NumPy,
    as in batches (see `RobotKernel`), and equal the environments' own results bit for bit. The
    environments' own ``step`` is called only for actions of a dtype for which batches would call
    it. Once other code may change the environments, these lanes become `SequentialLanes`, which
    call it always.

    Parameters
    ----------
    envs : sequence of PlanEnv
        Environments that were made in the same way, and only here; `has_robot_form` is true of the
        first.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        super().__init__(envs)
        # The infos of the last step, until they are requested, and the lanes of that step.
        self._columns: dict[str, NDArray[Any]] | None = None
        self._stepped: Sequence[int] = ()
        # Whether the record holds the current state of a lane.
        self._is_recorded = np.zeros(len(envs), bool)
        self._simulator: MujocoSimulator = self.envs[0].simulator
        self._robots = [_LaneRobot(env) for env in self.envs]
        self._recording = self._robots[0].recording
        self._record = self._recording.memory(len(envs), 1)

    # The environments

    def call(self, name: str, *args: Any, lanes: Which = None, **kwargs: Any) -> list[Any]:
        self._complete()
        is_harmless = False
        try:
            values = super().call(name, *args, lanes=lanes, **kwargs)
            is_read = name in _READING or not callable(
                gym_env_of(self.envs[0]).get_wrapper_attr(name)
            )
            is_harmless = is_read and _are_harmless(values)
        finally:
            if not is_harmless:
                self.expose()
        return values

    def expose(self) -> None:
        self._complete()
        _ = self.infos  # stores the infos of the last step
        self._become_sequential()

    def _complete(self) -> None:
        """Compute what only other code reads."""
        if not self._recording.robot.contact_forces:
            # `MujocoEnv` computes contact forces in each step, although no step reads them.
            for lane in np.flatnonzero(self._is_recorded).tolist():
                simulation = self._robots[lane].simulation
                mujoco.mj_rnePostConstraint(simulation.model, simulation.data)
        self._is_recorded[:] = False

    # Stepping

    @property
    def infos(self) -> list[dict[str, Any]]:
        columns, self._columns = self._columns, None
        if columns is not None:
            types = self._simulator.codec.info_types
            for place, lane in enumerate(self._stepped):
                info = {name: column[place] for name, column in columns.items()}
                # NumPy's types follow from the columns.
                info.update({k: info[k].item() for k in info if types[k] in _NUMBERS})
                self._infos[lane] = info
        return self._infos

    def info_columns(self) -> dict[str, NDArray[Any]] | None:
        if self._columns is not None and isinstance(self._stepped, range):
            return self._columns
        return None

    def _reset(self, lane: int, seed: int | None, options: dict[str, Any] | None) -> Any:
        self._is_recorded[lane] = False
        return super()._reset(lane, seed, options)

    def _set_state(self, lane: int, row: Row, seed: int | None = None) -> None:
        self._is_recorded[lane] = False
        super()._set_state(lane, row, seed)

    def step(self, actions: Any, out: StepArrays, lanes: Which = None) -> None:
        chosen = self._chosen(lanes)
        is_alone = self._simulator.kernel_for(actions) is None
        if lanes is not None or is_alone:
            _ = self.infos  # stores the infos of the previous step, which other lanes keep
        if is_alone:
            self._is_recorded[chosen] = False
            super().step(actions, out, lanes)
            return
        if len(chosen) == 0:
            return
        rows: Any = slice(None) if lanes is None else np.asarray(chosen, np.intp)
        self._columns = None
        mine = actions[rows]
        self._simulate(chosen, rows, mine)
        found = out if lanes is None else StepArrays(*(array[rows] for array in out))
        found.truncated[...] = [self._robots[lane].count_step() for lane in chosen]
        numbers = self._record.numbers[rows]
        rewards, ended, infos = self._recording.compute_rewards(numbers, mine[:, None])
        self._recording.observe(numbers[:, 1], found.obs)
        found.rewards[...] = rewards[:, 0]
        found.terminated[...] = ended if isinstance(ended, bool) else ended[:, 0]
        self._columns = {name: column[:, 0].copy() for name, column in infos.items()}
        self._stepped = chosen
        if lanes is not None:
            for target, values in zip(out, found, strict=True):
                target[rows] = values

    def step_next(self, actions: Any, out: StepArrays, ended: Flags, lanes: Which = None) -> None:
        Lanes.step_next(self, actions, out, ended, lanes)

    def step_same(self, actions: Any, out: StepArrays, lanes: Which = None) -> Finals:
        return Lanes.step_same(self, actions, out, lanes)

    def _simulate(self, chosen: Sequence[int], rows: Any, actions: NDArray[Any]) -> None:
        """Simulate the lanes `chosen` for one frame, from their current states."""
        numbers, views = self._record.numbers, self._record.views(self.num_lanes)
        robots = [self._robots[lane] for lane in chosen]
        for robot in robots:
            if robot.current.row is not None:
                robot.current.bring_back()
        if self._is_recorded[rows].all():
            numbers[rows, 0] = numbers[rows, 1]
        else:
            for lane, robot in zip(chosen, robots, strict=True):
                robot.read(*views[lane][0])
        numbers[rows, 0, self._recording.places["ctrl"][0]] = actions
        self._is_recorded[rows] = False
        simulate(
            self._recording.robot,
            [robot.simulation for robot in robots],
            [views[lane] for lane in chosen],
            actions,
            np.ones(len(chosen), np.int64),
            np.zeros(1, np.int64),
        )
        self._is_recorded[rows] = True


class _LaneRobot:
    """The simulation of one lane, and the settings on which its steps depend."""

    def __init__(self, env: Any) -> None:
        simulator: MujocoSimulator = env.simulator
        codec = simulator.codec
        assert codec.robot is not None
        self.recording = Recording(codec.robot, codec)
        self.simulation = self.recording.simulation()
        self.current = env.row_stepper.current
        self._limit = time_limit(simulator.env)

    def read(self, state: NDArray[np.float64], everything: NDArray[np.uint8]) -> None:
        """Write the current state, and all data that are recorded, into these arrays."""
        simulation = self.simulation
        mujoco.mj_getState(simulation.model, simulation.data, state, INTEGRATION)
        for view, place in simulation.parts:
            everything[place] = view

    def count_step(self) -> bool:
        """Count a step of the episode; return whether the time limit has been reached."""
        limit = self._limit
        if limit is None:
            return False
        limit._elapsed_steps += 1
        return bool(limit._elapsed_steps >= limit._max_episode_steps)


def has_robot_form(env: Any) -> bool:
    """Return whether `RobotLanes` support `env` and others like it."""
    if not is_plan_env(env) or not isinstance(env.simulator, MujocoSimulator):
        return False
    if not shows_its_base(env) or not is_bare(env.simulator.env):
        return False
    return env.simulator.base.model.nv >= _FEWEST_DEGREES and env.simulator.steps_batches


def _are_harmless(values: Sequence[Any]) -> bool:
    return all(
        isinstance(value, _HARMLESS) or (isinstance(value, tuple) and _are_harmless(value))
        for value in values
    )
