"""Vectorised steps of Gymnasium's classic control: N rows at once, with an array per variable.

Every result is bit-identical to the result of the environment's own ``step``. So every expression
keeps the operands, order and dtypes of the formulas in ``gymnasium/envs/classic_control``.
Constants are read from the environment. If users change them there, a simulator makes a new
vectorised form; `ClassicLanes` raise an error.
Two rules of NumPy matter here:

- ``x**2`` uses libm's ``pow`` for a single number but ``x * x`` for an array, and the two sometimes
  differ in the last bit; ``np.float_power`` uses ``pow`` for arrays too.
- A ``float32`` combined with a Python ``float`` stays ``float32``, in arithmetic and comparisons.
"""

from __future__ import annotations

from typing import Any

from gymnasium.envs.classic_control import (
    AcrobotEnv,
    CartPoleEnv,
    Continuous_MountainCarEnv,
    MountainCarEnv,
    PendulumEnv,
)

from plangym_like.envs.classic_dynamics.acrobot import Acrobot
from plangym_like.envs.classic_dynamics.cart_pole import CartPole
from plangym_like.envs.classic_dynamics.dynamics import Dynamics, elementary_functions_agree
from plangym_like.envs.classic_dynamics.mountain_car import MountainCar, MountainCarContinuous
from plangym_like.envs.classic_dynamics.pendulum import Pendulum

DYNAMICS: dict[type[Any], type[Dynamics]] = {
    AcrobotEnv: Acrobot,
    CartPoleEnv: CartPole,
    Continuous_MountainCarEnv: MountainCarContinuous,
    MountainCarEnv: MountainCar,
    PendulumEnv: Pendulum,
}

__all__ = ["DYNAMICS", "Dynamics", "elementary_functions_agree"]
