"""The vectorised step of Acrobot."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.classic_control.acrobot import rk4
from numpy.typing import NDArray

from plangym_like.envs.classic_dynamics.dynamics import Array, Columns, Dynamics, Flags, Floats
from plangym_like.envs.fast_form import NotVectorisableError

# Gymnasium wraps angles into [-pi, pi] one turn at a time; for larger angles, this takes too long.
_FAR = 1e5


class Acrobot(Dynamics):
    """Acrobot, with one fourth-order Runge-Kutta step. The next states have double precision."""

    order = (0, 1, 2, 3)
    constants = (
        "dt",
        "LINK_LENGTH_1",
        "LINK_MASS_1",
        "LINK_MASS_2",
        "LINK_COM_POS_1",
        "LINK_COM_POS_2",
        "LINK_MOI",
        "MAX_VEL_1",
        "MAX_VEL_2",
        "torque_noise_max",
        "book_or_nips",
    )
    methods = ("_get_ob", "_terminal", "_dsdt")
    num_actions = 3
    takes_single = True
    sample_range = (3.2, 3.2, 13.0, 29.0)

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._torques = np.array(env.AVAIL_TORQUE, np.float64)

    @classmethod
    def signature(cls, env: Any) -> tuple[Any, ...] | None:
        values = super().signature(env)
        return None if values is None else (*values, *env.AVAIL_TORQUE)

    @classmethod
    def suits(cls, env: Any) -> bool:
        """As in `Dynamics`, but False if torques are noisy or their number is not `num_actions`."""
        quiet = not env.torque_noise_max > 0
        return quiet and len(env.AVAIL_TORQUE) == cls.num_actions and super().suits(env)

    @staticmethod
    def unsupported_reason(env: Any, action: Any) -> str:
        state = np.asarray(env.state, np.float64)
        if (np.abs(state) <= (4.0, 4.0, env.MAX_VEL_1, env.MAX_VEL_2)).all():
            return ""
        start = np.append(state, env.AVAIL_TORQUE[action])
        integrate: Any = rk4
        first, second = integrate(env._dsdt, start, [0, env.dt])[:2]
        if not max(abs(first), abs(second)) > _FAR:
            return ""
        return f"its angles would become {first:.3g} and {second:.3g} radians in one step"

    def advance(self, columns: Columns, actions: Array, rewards: Floats, terminated: Flags) -> None:
        c, x = self.values, columns.x
        if columns.single is not None and columns.single.any():
            x[:, columns.single] = x[:, columns.single].astype(np.float32)
        torque = self._torques.take(actions)
        half = c.dt / 2.0
        first = self._slope(x, torque)
        second = self._slope(x + half * first, torque)
        third = self._slope(x + half * second, torque)
        fourth = self._slope(x + c.dt * third, torque)
        x += c.dt / 6.0 * (first + 2 * second + 2 * third + fourth)
        _wrap(x[0])
        _wrap(x[1])
        np.clip(x[2], -c.MAX_VEL_1, c.MAX_VEL_1, out=x[2])
        np.clip(x[3], -c.MAX_VEL_2, c.MAX_VEL_2, out=x[3])
        np.greater(-np.cos(x[0]) - np.cos(x[1] + x[0]), 1.0, out=terminated)
        np.subtract(terminated, 1.0, out=rewards)

    def _slope(self, x: Floats, torque: Floats) -> Floats:
        c = self.values
        m1, m2, l1, g = c.LINK_MASS_1, c.LINK_MASS_2, c.LINK_LENGTH_1, 9.8
        lc1, lc2, inertia = c.LINK_COM_POS_1, c.LINK_COM_POS_2, c.LINK_MOI
        theta1, theta2, dtheta1, dtheta2 = x
        cos2, sin2 = np.cos(theta2), np.sin(theta2)
        d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * cos2) + inertia + inertia
        d2 = m2 * (lc2**2 + l1 * lc2 * cos2) + inertia
        phi2 = m2 * lc2 * g * np.cos(theta1 + theta2 - np.pi / 2.0)
        phi1 = (
            -m2 * l1 * lc2 * np.float_power(dtheta2, 2.0) * sin2
            - 2 * m2 * l1 * lc2 * dtheta2 * dtheta1 * sin2
            + (m1 * lc1 + m2 * l1) * g * np.cos(theta1 - np.pi / 2)
            + phi2
        )
        pull = torque + d2 / d1 * phi1
        if c.book_or_nips != "nips":
            pull -= m2 * l1 * lc2 * np.float_power(dtheta1, 2.0) * sin2
        slope = np.empty_like(x)
        slope[:2] = x[2:]
        slope[3] = (pull - phi2) / (m2 * lc2**2 + inertia - np.float_power(d2, 2.0) / d1)
        np.divide(-(d2 * slope[3] + phi1), d1, out=slope[2])
        return slope

    def observe(self, x: Floats, states: Floats, out: NDArray[np.float32]) -> None:
        out[:, 0] = np.cos(x[0])
        out[:, 1] = np.sin(x[0])
        out[:, 2] = np.cos(x[1])
        out[:, 3] = np.sin(x[1])
        out[:, 4] = x[2]
        out[:, 5] = x[3]


def _wrap(angles: Floats) -> None:
    """Wrap `angles` into ``[-pi, pi]`` in place.

    As in Gymnasium, turns are added or subtracted one by one, because each result is rounded.
    """
    if (np.abs(angles) > _FAR).any():
        raise NotVectorisableError
    turn = np.pi - -np.pi
    while len(far := np.flatnonzero(angles > np.pi)):
        angles[far] -= turn
    while len(far := np.flatnonzero(angles < -np.pi)):
        angles[far] += turn
