"""The vectorised step of MountainCar."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from plangym_like.envs.classic_dynamics.columns import Array, Columns, Flags, Floats
from plangym_like.envs.classic_dynamics.dynamics import Dynamics, cosine


class MountainCar(Dynamics):
    """MountainCar with its three discrete actions."""

    order = (0, 1)
    constants = (
        "min_position",
        "max_position",
        "max_speed",
        "goal_position",
        "goal_velocity",
        "force",
        "gravity",
    )
    num_actions = 3
    sample_range = (1.4, 0.08)

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._pushes = np.array([(action - 1) * env.force for action in range(3)], np.float64)

    @staticmethod
    def unsupported_reason(env: Any, action: Any) -> str:
        return "its position is infinite" if math.isinf(3.0 * float(env.state[0])) else ""

    def advance(self, columns: Columns, actions: Array, rewards: Floats, terminated: Flags) -> None:
        c = self.values
        position, velocity = columns.x
        velocity += self._pushes.take(actions) + cosine(3 * position) * -c.gravity
        np.clip(velocity, -c.max_speed, c.max_speed, out=velocity)
        position += velocity
        np.clip(position, c.min_position, c.max_position, out=position)
        velocity[(position == c.min_position) & (velocity < 0)] = 0.0
        np.greater_equal(position, c.goal_position, out=terminated)
        terminated &= velocity >= c.goal_velocity
        rewards.fill(-1.0)
