"""Gymnasium's classic control over columns of numbers: N rows at once, each as if alone.

Every result is bit-identical to that of the environment's own ``step``, so every expression keeps
that step's operands, order and dtypes; the formulas are those of
``gymnasium/envs/classic_control``. Three things follow from how NumPy treats numbers and arrays:

- ``x**2`` of a single number is libm's ``pow``, of an array it is ``x * x``, and now and then
  the two differ in the last bit; ``np.float_power`` is ``pow`` for arrays too.
- A ``float32`` with a Python ``float`` stays ``float32``, in arithmetic and in comparisons.
- Constants are read from the living environment, since that is where people edit them.
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
from plangym_like.envs.classic_dynamics.classic_blocks import ClassicBlocks
from plangym_like.envs.classic_dynamics.dynamics import Dynamics
from plangym_like.envs.classic_dynamics.elementary_functions import elementary_functions_agree
from plangym_like.envs.classic_dynamics.mountain_car import MountainCar
from plangym_like.envs.classic_dynamics.mountain_car_continuous import MountainCarContinuous
from plangym_like.envs.classic_dynamics.pendulum import Pendulum

DYNAMICS: dict[type[Any], type[Dynamics]] = {
    AcrobotEnv: Acrobot,
    CartPoleEnv: CartPole,
    Continuous_MountainCarEnv: MountainCarContinuous,
    MountainCarEnv: MountainCar,
    PendulumEnv: Pendulum,
}

__all__ = ["DYNAMICS", "ClassicBlocks", "Dynamics", "elementary_functions_agree"]
