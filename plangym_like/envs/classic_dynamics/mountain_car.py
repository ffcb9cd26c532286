"""The vectorised steps of MountainCar and MountainCarContinuous."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from plangym_like.envs.classic_dynamics.dynamics import (
    Array,
    Columns,
    Dynamics,
    Flags,
    Floats,
    cosine,
)
from plangym_like.envs.fast_form import NotVectorisableError


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


class MountainCarContinuous(Dynamics):
    """MountainCarContinuous, whose states have single precision after the first step.

    The first step after a reset is computed in double precision, and so are steps with actions in
    double precision that are not clipped.
    """

    order = (0, 1)
    constants = (
        "min_action",
        "max_action",
        "min_position",
        "max_position",
        "max_speed",
        "goal_position",
        "goal_velocity",
        "power",
    )
    num_actions = 0
    takes_single = True
    leaves_single = True
    sample_range = (1.4, 0.08)
    unsupported_reason = staticmethod(MountainCar.unsupported_reason)

    @classmethod
    def suits(cls, env: Any) -> bool:
        """As in `Dynamics`, but with one more condition.

        Comparing a bound with the goal must give the same result in ``float32`` as in ``float64``.
        """
        if not super().suits(env):
            return False
        pairs = [(place, env.goal_position) for place in (env.min_position, env.max_position)]
        pairs += [(speed, env.goal_velocity) for speed in (-env.max_speed, 0.0, env.max_speed)]
        return all((a >= b) == bool(np.float32(a) >= np.float32(b)) for a, b in pairs)

    def advance(self, columns: Columns, actions: Array, rewards: Floats, terminated: Flags) -> None:
        c, x, single = self.values, columns.x, columns.single
        action = actions[:, 0]
        cost = np.float_power(action.astype(np.float64), 2.0) * 0.1
        if action.dtype == np.float64 and not np.isfinite(cost).all():
            raise NotVectorisableError  # math.pow raises OverflowError
        push = action * c.power
        low, high = action < c.min_action, action > c.max_action
        limited = low | high
        if not limited.any():
            self._move(x, single, push, terminated)
        else:
            # A clipped force is a Python number, which keeps the precision of the state.
            limits = np.where(low, float(c.min_action), float(c.max_action)) * c.power
            for pushes, rows in ((push, ~limited), (limits, limited)):
                moved, ended = x[:, rows], terminated[rows]
                some = None if single is None else single[rows]
                self._move(moved, some, pushes[rows], ended, weak=pushes is limits)
                x[:, rows], terminated[rows] = moved, ended
        np.subtract(np.where(terminated, 100.0, 0.0), cost, out=rewards)

    def _move(
        self,
        x: Floats,
        single: Flags | None,
        push: Array,
        terminated: Flags,
        *,
        weak: bool = False,
    ) -> None:
        """Move `x` by `push`, each row in its own precision; fill `terminated`.

        If `weak` is true, a push of higher precision does not raise the precision of a row.
        """
        if single is None or single.all():
            self._drive(x, np.float32, push, weak, terminated)
        elif not single.any():
            self._drive(x, np.float64, push, weak, terminated)
        else:
            for rows, precision in ((single, np.float32), (~single, np.float64)):
                part, ended = x[:, rows], terminated[rows]
                self._drive(part, precision, push[rows], weak, ended)
                x[:, rows], terminated[rows] = part, ended

    def _drive(
        self,
        x: Floats,
        precision: type[np.floating[Any]],
        push: Array,
        weak: bool,
        terminated: Flags,
    ) -> None:
        c = self.values
        position, velocity = x.astype(precision)
        slope = 0.0025 * cosine((3 * position).astype(np.float64))
        force = push - slope.astype(push.dtype)
        velocity = velocity + (force.astype(precision) if weak else force)
        fast, slow = velocity > c.max_speed, velocity < -c.max_speed
        velocity[fast] = c.max_speed
        velocity[slow] = -c.max_speed
        limited = fast | slow
        if velocity.dtype == precision or not limited.any():
            self._arrive(x, position, velocity, terminated)
            return
        # A clipped speed is a Python number too.
        for rows, kind in ((limited, precision), (~limited, velocity.dtype)):
            moved, ended = x[:, rows], terminated[rows]
            self._arrive(moved, position[rows], velocity[rows].astype(kind), ended)
            x[:, rows], terminated[rows] = moved, ended

    def _arrive(
        self,
        x: Floats,
        position: Array,
        velocity: Array,
        terminated: Flags,
    ) -> None:
        c = self.values
        position = position + velocity
        position[position > c.max_position] = c.max_position
        position[position < c.min_position] = c.min_position
        velocity[(position == c.min_position) & (velocity < 0)] = 0.0
        np.greater_equal(position, c.goal_position, out=terminated)
        terminated &= velocity >= c.goal_velocity
        x[0] = position.astype(np.float32)
        x[1] = velocity.astype(np.float32)
