"""Gymnasium's classic control."""

from plangym_like.compat.plangym.plangym_env import PlangymEnv
from plangym_like.envs.classic_control import ClassicControlEnv


class ClassicControl(PlangymEnv):
    """CartPole, MountainCar, MountainCarContinuous, Pendulum or Acrobot."""

    core_class = ClassicControlEnv
