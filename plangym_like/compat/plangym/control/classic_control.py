"""Gymnasium's classic control."""

from plangym_like.compat.plangym.plangym_env import PlangymEnv
from plangym_like.envs.classic.env import ClassicControlEnv


class ClassicControl(PlangymEnv):
    """CartPole, MountainCar, MountainCarContinuous, Pendulum or Acrobot.

    Examples
    --------
    >>> env = ClassicControl("CartPole-v1")
    >>> state, obs, info = env.reset()
    >>> state, obs, reward, terminal, truncated, info = env.step(1, state, dt=2)
    >>> reward
    2.0
    """

    core_class = ClassicControlEnv
