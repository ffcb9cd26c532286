"""The vectorised step of Pendulum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.classic_dynamics.dynamics import Array, Columns, Dynamics, Flags, Floats


class Pendulum(Dynamics):
    """Pendulum. Torques have the precision of the actions; only images depend on ``last_u``."""

    order = (0, 1)
    constants = ("max_speed", "max_torque", "dt", "g", "m", "l")
    num_actions = 0
    hidden = "last_u"
    no_hidden = np.float64(np.nan)
    hidden_kinds = "fde"
    sample_range = (12.0, 9.0)

    @classmethod
    def as_hidden(cls, number: Any, kind: int = 0) -> Any:
        if np.isnan(number):
            return None
        with np.errstate(over="ignore"):
            return np.dtype(cls.hidden_kinds[kind % 3]).type(number)

    def advance(self, columns: Columns, actions: Array, rewards: Floats, terminated: Flags) -> None:
        c = self.values
        angle, speed = columns.x
        torque = np.clip(actions[:, 0], -c.max_torque, c.max_torque)
        columns.hidden[:] = torque
        self.hidden_kind = self.kind_of(torque)
        costs = np.float_power(np.remainder(angle + np.pi, 2 * np.pi) - np.pi, 2.0)
        costs += 0.1 * np.float_power(speed, 2.0)
        costs += 0.001 * _squared(torque)
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


def _squared(torque: Array) -> Array:
    """Return the square of each torque as ``**`` computes it for a single number."""
    if torque.dtype == np.float64:
        squares: Array = np.float_power(torque, 2.0)
        return squares
    # `**` of a single float32 calls libm's powf, which no operation on float32 arrays does.
    return np.array([number**2 for number in torque], torque.dtype)
