"""Pendulum over columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.classic_dynamics.columns import Columns, Floats
from plangym_like.envs.classic_dynamics.dynamics import Dynamics


class Pendulum(Dynamics):
    """The torque is ``float32``, all else double; ``last_u`` is only drawn, never computed with."""

    order = (0, 1)
    constants = ("max_speed", "max_torque", "dt", "g", "m", "l")
    num_actions = 0
    hidden = "last_u"
    no_hidden = np.float32(np.nan)
    reach = (12.0, 9.0)

    @staticmethod
    def as_hidden(number: Any) -> Any:
        return None if np.isnan(number) else np.float32(number)

    def advance(
        self,
        columns: Columns,
        actions: NDArray[Any],
        rewards: Floats,
        terminated: NDArray[np.bool_],
    ) -> None:
        c = self.values
        angle, speed = columns.x
        torque = np.clip(actions[:, 0], -c.max_torque, c.max_torque)
        columns.hidden[:] = torque
        costs = np.float_power(np.remainder(angle + np.pi, 2 * np.pi) - np.pi, 2.0)
        costs += 0.1 * np.float_power(speed, 2.0)
        # libm's powf is behind `**` of a single float32, but behind no operation on arrays of them.
        costs += 0.001 * np.array([number**2 for number in torque], np.float32)
        fall = 3 * c.g / (2 * c.l) * np.sin(angle)
        speed += (fall + 3.0 / (c.m * c.l**2) * torque) * c.dt
        np.clip(speed, -c.max_speed, c.max_speed, out=speed)
        angle += speed * c.dt
        np.subtract(0.0, costs, out=rewards)
        terminated.fill(False)

    def observe(self, x: Floats, states: Floats, out: NDArray[np.float32]) -> None:
        out[:, 0] = np.cos(x[0])
        out[:, 1] = np.sin(x[0])
        out[:, 2] = x[1]
