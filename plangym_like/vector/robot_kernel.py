"""`RobotLaneKernel`: steps lanes of one of Gymnasium's MuJoCo robots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.mujoco.batch import Frames, Recording, simulate
from plangym_like.envs.mujoco.env import MujocoSimulator
from plangym_like.envs.mujoco.physics import INTEGRATION
from plangym_like.vector.kernel_lanes import LaneKernel, is_bare, shows_its_base, time_limit
from plangym_like.vector.lanes import StepArrays, is_plan_env

# Robots with fewer degrees of freedom end their episodes so early that resets cost more than
# vectorised results save (`benchmarks/vector_ids.py`).
_FEWEST_DEGREES = 4


class RobotLaneKernel(LaneKernel):
    """Simulates lanes one after the other, each in its own environment.

    Rewards, observations and infos of all lanes are computed from the simulations' data with NumPy,
    as in batches (see `RobotKernel`). Actions of a dtype for which batches would call the
    environment's own ``step`` are not supported.

    Parameters
    ----------
    envs : sequence of PlanEnv
        Environments that were made in the same way, and that no other code can reach; `suits` is
        true of the first.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        self._simulator: MujocoSimulator = envs[0].simulator
        self.info_types = self._simulator.codec.info_types
        self._currents = [env.row_stepper.current for env in envs]
        self._limits = [time_limit(env.simulator.env) for env in envs]
        recordings = []
        for env in envs:
            recordings.append(Recording(env.simulator.codec.robot, env.simulator.codec))
        self._recording = recordings[0]
        self._simulations = [recording.simulation() for recording in recordings]
        self._record = self._recording.memory(len(envs), 1)
        self._views = self._record.views(len(envs))
        # Whether the record holds the current state of a lane.
        self._is_recorded = np.zeros(len(envs), bool)

    @staticmethod
    def suits(env: Any) -> bool:
        """Return whether this kernel supports `env` and others like it."""
        if not is_plan_env(env) or not isinstance(env.simulator, MujocoSimulator):
            return False
        if not shows_its_base(env) or not is_bare(env.simulator.env):
            return False
        if env.simulator.codec.robot.versions:
            return False
        return env.simulator.base.model.nv >= _FEWEST_DEGREES and env.simulator.steps_batches

    def read(self, lane: int) -> None:
        self._is_recorded[lane] = False

    def write(self, lane: int) -> None:
        if self._is_recorded[lane] and not self._recording.robot.contact_forces:
            # `MujocoEnv` computes contact forces in each step, although no step reads them.
            simulation = self._simulations[lane]
            mujoco.mj_rnePostConstraint(simulation.model, simulation.data)
        self._is_recorded[lane] = False

    def step(
        self, actions: Any, out: StepArrays, lanes: NDArray[np.intp] | None
    ) -> dict[str, NDArray[Any]] | None:
        if self._simulator.kernel_for(actions) is None:
            return None
        rows: Any = slice(None) if lanes is None else lanes
        chosen = range(len(self._currents)) if lanes is None else lanes.tolist()
        actions = actions[rows]
        self._simulate(chosen, rows, actions)
        found = out if lanes is None else StepArrays(*(array[rows] for array in out))
        found.truncated[...] = [_count_step(self._limits[lane]) for lane in chosen]
        numbers = self._record.numbers[rows]
        look = self._recording.look
        frames = Frames(look(numbers[:, :1]), look(numbers[:, 1:]), actions[:, None])
        rewards, ended, infos = self._recording.compute_rewards(frames)
        self._recording.robot.observe(look(numbers[:, 1]), found.obs)
        found.rewards[...] = rewards[:, 0]
        found.terminated[...] = ended if isinstance(ended, bool) else ended[:, 0]
        if lanes is not None:
            for target, values in zip(out, found, strict=True):
                target[lanes] = values
        return {name: column[:, 0].copy() for name, column in infos.items()}

    def _simulate(self, chosen: Sequence[int], rows: Any, actions: NDArray[Any]) -> None:
        """Simulate the lanes `chosen` for one frame, from their current states."""
        numbers = self._record.numbers
        for lane in chosen:
            if self._currents[lane].row is not None:
                self._currents[lane].bring_back()
        if self._is_recorded[rows].all():
            numbers[rows, 0] = numbers[rows, 1]
        else:
            for lane in chosen:
                self._observe(lane, *self._views[lane][0])
        numbers[rows, 0, self._recording.places["ctrl"][0]] = actions
        self._is_recorded[rows] = False
        simulate(
            self._recording.robot,
            [self._simulations[lane] for lane in chosen],
            [self._views[lane] for lane in chosen],
            actions,
            np.ones(len(chosen), np.int64),
            np.zeros(1, np.int64),
        )
        self._is_recorded[rows] = True

    def _observe(self, lane: int, state: NDArray[Any], everything: NDArray[np.uint8]) -> None:
        """Write the current state of a lane, and all data that are recorded, into these arrays."""
        simulation = self._simulations[lane]
        mujoco.mj_getState(simulation.model, simulation.data, state, INTEGRATION)
        for view, place in simulation.parts:
            everything[place] = view


def _count_step(limit: Any) -> bool:
    """Count a step of the episode; return whether the time limit has been reached."""
    if limit is None:
        return False
    limit._elapsed_steps += 1
    return bool(limit._elapsed_steps >= limit._max_episode_steps)
