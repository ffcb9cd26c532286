"""The vectorised step of CartPole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from plangym_like.envs.classic_dynamics.dynamics import Array, Columns, Dynamics, Flags, Floats

_LARGEST = 1e30


class CartPole(Dynamics):
    """CartPole, with positions before velocities in ``Columns.x``.

    In this order, both positions are updated in one operation, and so are both velocities.
    Expressions are split into in-place operations, because allocating arrays would double the cost.
    """

    order = (0, 2, 1, 3)
    constants = (
        "gravity",
        "masscart",
        "masspole",
        "total_mass",
        "length",
        "polemass_length",
        "force_mag",
        "tau",
        "theta_threshold_radians",
        "x_threshold",
        "kinematics_integrator",
        "_sutton_barto_reward",
    )
    num_actions = 2
    hidden = "steps_beyond_terminated"
    most_singly = 6
    sample_range = (3.0, 4.0, 0.3, 4.0)

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._numbers = SimpleNamespace(**vars(self.values))
        self._forces = np.array([-env.force_mag, env.force_mag], np.float64)
        # NumPy reads a zero-dimensional array twice as fast as a Python number.
        for name, value in vars(self.values).items():
            if type(value) in (int, float):
                setattr(self.values, name, np.array(value, np.float64))
        self._ratio = np.array(4.0 / 3.0)
        self._scratch = np.empty((4, 0))

    def load(self, states: Floats, x: Floats) -> None:
        x.reshape(2, 2, -1)[:] = states.reshape(len(states), 2, 2).transpose(2, 1, 0)

    def advance(self, columns: Columns, actions: Array, rewards: Floats, terminated: Flags) -> None:
        if self._scratch.shape[1] != len(actions):
            self._scratch = np.empty((4, len(actions)))
        c, scratch = self.values, self._scratch
        accelerations, moved = scratch[:2], scratch[2:]
        temp, turning, cosine, other = scratch
        positions, velocities = columns.x[:2], columns.x[2:]
        np.cos(positions[1], out=cosine)
        np.sin(positions[1], out=turning)

        np.square(velocities[1], out=temp)
        temp *= c.polemass_length
        temp *= turning
        temp += self._forces.take(actions, out=other, mode="clip")
        temp /= c.total_mass

        turning *= c.gravity
        turning -= np.multiply(cosine, temp, out=other)
        np.square(cosine, out=other)
        other *= c.masspole
        other /= c.total_mass
        np.subtract(self._ratio, other, out=other)
        other *= c.length
        turning /= other

        np.multiply(turning, c.polemass_length, out=other)
        other *= cosine
        other /= c.total_mass
        temp -= other

        accelerations *= c.tau
        if c.kinematics_integrator == "euler":
            positions += np.multiply(velocities, c.tau, out=moved)
            velocities += accelerations
        else:
            velocities += accelerations
            positions += np.multiply(velocities, c.tau, out=moved)

        np.absolute(positions, out=moved)
        np.greater(moved[0], c.x_threshold, out=terminated)
        terminated |= moved[1] > c.theta_threshold_radians
        rewards.fill(0.0 if c._sutton_barto_reward else 1.0)
        if np.count_nonzero(terminated):
            (ended,) = terminated.nonzero()
            steps = columns.hidden[ended]
            # The step that ends the episode is rewarded like any other, but later steps are not.
            rewards[ended] = -1.0 if c._sutton_barto_reward else steps == self.no_hidden
            columns.hidden[ended] = steps + 1

    def advance_one(
        self, x: Sequence[float], hidden: Any, action: Any
    ) -> tuple[Sequence[float], Any, float, bool] | None:
        c = self._numbers
        place, speed, angle, turning = x
        # Rows with numbers near overflow, or with NaN, are stepped by the environment itself.
        if not speed * speed + angle * angle + turning * turning < _LARGEST:
            return None
        force = c.force_mag if action == 1 else -c.force_mag
        cosine, sine = math.cos(angle), math.sin(angle)
        temp = (force + c.polemass_length * (turning * turning) * sine) / c.total_mass
        bend = (c.gravity * sine - cosine * temp) / (
            c.length * (4.0 / 3.0 - c.masspole * (cosine * cosine) / c.total_mass)
        )
        push = temp - c.polemass_length * bend * cosine / c.total_mass
        if c.kinematics_integrator == "euler":
            place, angle = place + c.tau * speed, angle + c.tau * turning
            speed, turning = speed + c.tau * push, turning + c.tau * bend
        else:
            speed, turning = speed + c.tau * push, turning + c.tau * bend
            place, angle = place + c.tau * speed, angle + c.tau * turning
        ended = abs(place) > c.x_threshold or abs(angle) > c.theta_threshold_radians
        reward = 1.0
        if c._sutton_barto_reward:
            reward = -1.0 if ended else 0.0
        elif ended:
            reward = float(hidden == -1)
        return (place, speed, angle, turning), hidden + ended, reward, ended
